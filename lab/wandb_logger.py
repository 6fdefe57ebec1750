"""Weights & Biases for training runs: a mirror of the run folder that never asks and never stops a run."""

from __future__ import annotations

import os
from importlib.util import find_spec

from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig, OmegaConf

from backbones.run import Run

from .config import UsageError


def wandb_logger(cfg: DictConfig, run: Run) -> list[WandbLogger]:
    """The W&B logger of a run, or none.

    `auto` is offline unless you are logged in, and off where W&B is not installed. The run folder owns the run's id, so
    a resumed run continues its W&B run, and W&B decides no path.

    Raises:
        UsageError: `online` without W&B or without a login, or an unknown mode.
    """
    mode = cfg.logger.wandb
    if mode not in ("auto", "online", "offline", "off"):
        raise UsageError(f"logger.wandb={mode}: choose auto, online, offline or off")
    if mode == "off" or (mode == "auto" and not find_spec("wandb")):
        return []
    if not find_spec("wandb"):
        raise UsageError(f"logger.wandb={mode} needs W&B: pip install 'ecclab[wandb]'")
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    if mode != "offline" and not wandb.login(prompt=False, verify=False):
        if mode == "online":
            raise UsageError("logger.wandb=online needs a login: set WANDB_API_KEY or run `wandb login`")
        mode = "offline"
    try:
        return [_start(cfg, run, "offline" if mode == "offline" else "online")]
    except wandb.errors.Error as error:
        print(
            f"W&B is not reachable ({error}); logging offline, `wandb sync {run.path}/wandb/offline-*` sends it later"
        )
        return [_start(cfg, run, "offline")]


def _start(cfg: DictConfig, run: Run, mode: str) -> WandbLogger:
    import wandb

    logger = WandbLogger(
        save_dir=str(run.path),
        project=cfg.logger.project,
        name=run.name,
        id=run.name,
        resume="allow" if mode == "online" else None,
        offline=mode == "offline",
        group=cfg.logger.group or cfg.preset,
        tags=[cfg.backbone.name, f"d{cfg.d}", cfg.preset, *cfg.logger.tags],
        log_model=False,
        mode=mode,
        settings=wandb.Settings(console="off", silent=True, init_timeout=30),
    )
    logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
    return logger
