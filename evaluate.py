"""Evaluate trained memories: their answers to longer streams, scored and drawn.

    python evaluate.py run=outputs/<run>          one run
    python evaluate.py 'runs=outputs/*'           all runs together, one frontier
    python evaluate.py --help

The same command continues an evaluation that was interrupted, and asks no question twice.
"""

from omegaconf import DictConfig

from lab.config import run_hydra


def main(cfg: DictConfig) -> None:
    from lab.report import evaluate_runs

    evaluate_runs(cfg)


if __name__ == "__main__":
    run_hydra(main, "evaluate")
