"""Train a memory backbone on the membership task.

    python train.py backbone=mamba2 d=128                         the preset that fits the machine
    python train.py preset=smoke                                  seconds, to see that everything works
    python train.py -m backbone=gru,transformer_conv d=64,128     a sweep
    python train.py --help

The same command continues a run that was interrupted. Then: python evaluate.py run=outputs/<run>
"""

from omegaconf import DictConfig

from lab.config import run_hydra


def main(cfg: DictConfig) -> None:
    from lab.training import train

    train(cfg)


if __name__ == "__main__":
    run_hydra(main, "train")
