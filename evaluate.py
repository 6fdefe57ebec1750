"""Evaluate memories: their answers to streams, scored and drawn.

    python evaluate.py run=outputs/<run>                          one run, beyond its training length
    python evaluate.py 'runs=outputs/*'                           all runs together, one frontier
    python evaluate.py split=outputs/text memory=coin             any memory, on a split
    python evaluate.py split=outputs/text memory=server memory.model=NAME 'runs=outputs/*'
    python evaluate.py --help

The same command continues an evaluation that was interrupted, and asks no question twice.
"""

from omegaconf import DictConfig

from lab.config import run_hydra


def main(cfg: DictConfig) -> None:
    from lab.report import report

    report(cfg)


if __name__ == "__main__":
    run_hydra(main, "evaluate")
