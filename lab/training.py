"""One training run, from a resolved configuration to a run folder with weights, metrics and a record."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.callbacks import EarlyStopping, RichProgressBar, Timer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from backbones import MembershipModel
from backbones.callbacks import AtomicCheckpointIO, OnResume, SaveBest, SaveLast, ValidationLines
from backbones.lightning import MembershipTraining, Optimisation, untouched
from backbones.run import Run, replacing
from backbones.version import code_version
from tasks import MembershipConfig, sample
from tasks.datamodule import MembershipData
from tasks.schedule import EpochSchedule, OnlineSchedule

from .config import UsageError, differences, identity, resolve, run_name
from .metrics_log import MetricsLog
from .scheduler import Notice, Stopped, requeue
from .wandb_logger import wandb_logger


def task_config(cfg: DictConfig) -> MembershipConfig:
    return MembershipConfig(vocabulary=cfg.task.vocabulary, candidate_lengths=tuple(cfg.task.candidate_lengths))


def model_arguments(cfg: DictConfig) -> dict[str, Any]:
    """What `MembershipModel` is called with; recorded in run.json, so a run folder alone rebuilds its model."""
    return {
        "name": cfg.backbone.name,
        "width": cfg.d,
        "depth": cfg.depth,
        "vocabulary": cfg.task.vocabulary,
        "longest": max(cfg.task.candidate_lengths),
        "candidate_align": cfg.task.candidate_align,
        "embedding_std": cfg.task.embedding_std,
        **OmegaConf.to_container(cfg.backbone.layer, resolve=True),
    }


def schedule_for(cfg: DictConfig) -> OnlineSchedule | EpochSchedule:
    s = cfg.schedule
    common = {"batch_size": cfg.batch_size, "queries": s.queries, "seed": cfg.seed}
    if s.kind == "online":
        return OnlineSchedule(
            steps=s.steps, min_length=s.min_length, max_length=s.max_length, growth=s.growth,
            query_times=s.query_times, **common,
        )  # fmt: skip
    if s.kind == "epochs":
        lengths = tuple(range(s.lengths.first, s.lengths.last + 1, s.lengths.step))
        return EpochSchedule(
            epochs=s.epochs, streams=s.streams, validation_share=s.held_out, lengths=lengths, **common
        )  # fmt: skip
    raise UsageError(f"schedule.kind={s.kind!r}: choose 'online' or 'epochs'")


def trained_length(cfg: DictConfig) -> int:
    """The longest stream that training shows."""
    return cfg.schedule.max_length if cfg.schedule.kind == "online" else cfg.schedule.lengths.last


def data_for(cfg: DictConfig) -> MembershipData:
    v = cfg.validation
    return MembershipData(
        task_config(cfg), schedule_for(cfg), validation_lengths=tuple(v.lengths), validation_streams=v.streams,
        validation_queries=v.queries, validation_batch=v.batch_size, num_workers=cfg.workers,
    )  # fmt: skip


def module_for(cfg: DictConfig, steps: int) -> MembershipTraining:
    torch.manual_seed(cfg.seed)
    o = cfg.optimiser
    plan = Optimisation(
        lr=cfg.lr,
        steps=steps,
        betas=tuple(o.betas),
        weight_decay=o.weight_decay,
        warmup=o.warmup,
        final_lr=o.final_lr,
        clip=o.clip,
    )
    model = MembershipModel(**model_arguments(cfg))
    return MembershipTraining(model, plan, tuple(cfg.validation.lengths), trained_length(cfg))


def strategy_for(cfg: DictConfig, model: MembershipModel, shortest: int) -> DDPStrategy | str:
    """How several processes share a step.

    Raises:
        UsageError: a sweep in one process, whose jobs Lightning cannot start again.
    """
    if cfg.devices == 1:
        return "auto"
    hydra = HydraConfig.instance().cfg
    if hydra is not None and hydra.hydra.mode == RunMode.MULTIRUN and "SLURM_PROCID" not in os.environ:
        raise UsageError(
            f"devices={cfg.devices} in a sweep: each process would run the whole sweep. Use launcher=ray, "
            "launcher=submitit_slurm with hydra.launcher.tasks_per_node, or one command for each run"
        )
    idle = untouched(model, shortest)
    if idle:
        kinds = sorted({name.split(".", 3)[-1] for name in idle})
        say(f"streams of {shortest} give no gradient to {', '.join(kinds)}: DDP looks for unused parameters")
    return DDPStrategy(find_unused_parameters=bool(idle))


@rank_zero_only
def say(text: str) -> None:
    """Print, in the first process of a run."""
    print(text, flush=True)


def open_run(cfg: DictConfig) -> Run:
    """The folder of this configuration, made or found again; the first process of a run alone makes it.

    Raises:
        UsageError: the folder holds another configuration, or exists although `resume=false`.
    """
    run = Run(Path(cfg.outputs) / run_name(cfg))
    if rank_zero_only.rank:
        return run
    if run.config.exists():
        old = OmegaConf.load(run.config)
        changed = differences(identity(old), identity(cfg))
        if changed:
            raise UsageError(
                f"{run.path} holds another configuration ({'; '.join(changed[:5])}); choose another name=... "
                "or delete the folder"
            )
        if not cfg.resume:
            raise UsageError(f"{run.path} exists and resume=false: choose another name=..., or delete the folder")
        run.record()
        return run
    run.path.mkdir(parents=True, exist_ok=True)
    with replacing(run.config) as temporary:
        OmegaConf.save(cfg, temporary, resolve=True)
    run.write_record(
        model=model_arguments(cfg), code=code_version(), torch=torch.__version__, preset=cfg.preset, seed=cfg.seed,
        trained_length=trained_length(cfg), plugins=list(cfg.plugins), status="training",
    )  # fmt: skip
    return run


def describe(cfg: DictConfig, run: Run, model: MembershipModel, steps: int) -> str:
    """What is about to happen, in a few lines."""
    parameters, longest = sum(p.numel() for p in model.parameters()), trained_length(cfg)
    cost = model.price().total(4 * longest + 1) / 1e6
    kernels = dict.fromkeys(filter(None, (layer.explain() for layer in model.backbone.layers)))
    lines = [
        f"{cfg.backbone.name} d={cfg.d}: {parameters:,} parameters, {cost:,.0f} MFLOPs per answer at L={4 * longest}",
        *kernels,
        f"preset={cfg.preset}: {steps:,} steps of {cfg.batch_size} streams, lr {cfg.lr:g}, lengths to {longest}, "
        f"stop at {cfg.stop.metric} {cfg.stop.at}",
        f"run folder: {run.path}",
    ]
    return "\n".join(lines)


def train(cfg: DictConfig) -> Run:
    """Train what `cfg` describes, or continue where its run folder stopped.

    Returns:
        The run folder.

    Raises:
        UsageError, RunError: settings or files that do not fit; the message says what to do.
    """
    cfg = resolve(cfg)
    if cfg.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device={cfg.device}: choose auto, cpu or cuda")
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda, but torch sees no CUDA device; leave device out for the CPU")
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    try:
        data = data_for(cfg)
        module = module_for(cfg, data.schedule.steps)
        shortest = min(*cfg.validation.lengths, data.schedule.at(0).length)
        sample(data.config, cfg.seed, [0], shortest, 2, split="validation")  # do candidates fit the shortest stream?
    except ValueError as error:
        raise UsageError(str(error)) from error
    strategy = strategy_for(cfg, module.model, shortest)
    run = open_run(cfg)
    say(describe(cfg, run, module.model, data.schedule.steps))
    if run.record_file.exists() and run.record()["status"] == "finished":
        say(f"already trained; evaluate it with: python evaluate.py run={run.path}")
        return run

    metrics, lines, best = MetricsLog(run.path / "metrics.csv"), ValidationLines(say), SaveBest(run)
    notice = Notice()

    @rank_zero_only
    def continue_at(step: int) -> None:
        metrics.resume_at(step)
        say(f"resuming at step {step}")

    callbacks = [
        OnResume(continue_at),
        lines,
        EarlyStopping(cfg.stop.metric, mode="max", patience=10**9, stopping_threshold=cfg.stop.at, verbose=False),
        best,
        SaveLast(run, cfg.validation.every, notice=notice),
    ]
    if cfg.minutes:
        callbacks.append(Timer(timedelta(minutes=cfg.minutes), interval="step", verbose=False))
    if sys.stdout.isatty():
        callbacks.append(RichProgressBar())
    quiet_lightning()
    mirrors = wandb_logger(cfg, run) if rank_zero_only.rank == 0 else []
    trainer = lightning.Trainer(
        accelerator={"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[cfg.device],
        devices=cfg.devices,
        strategy=strategy,
        precision=cfg.precision,
        max_steps=data.schedule.steps,
        val_check_interval=cfg.validation.every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        logger=[metrics, *mirrors],
        log_every_n_steps=min(50, cfg.validation.every),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        use_distributed_sampler=False,
        plugins=[AtomicCheckpointIO()],
    )
    stopped = None
    try:
        with notice:
            trainer.fit(module, data, ckpt_path=str(run.last) if run.last.exists() else None, weights_only=True)
    except Stopped as stop:
        stopped = stop
    finally:
        for mirror in mirrors:  # also after a failure, and before the next job of a sweep
            mirror.experiment.finish()
    if stopped:
        if rank_zero_only.rank:
            sys.exit(0)  # Lightning would kill the first process for any other code
        print(f"stopped by {stopped.received.name} at step {trainer.global_step}; {requeue(stopped.received)}")
        sys.exit(stopped.exit_code)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if trainer.is_global_zero:
        run.write_record(
            status="finished", steps=trainer.global_step, minutes=round(lines.wall.minutes, 2),
            cpu_minutes=round(lines.cpu.minutes, 2), device=str(module.device),
            threads=torch.get_num_threads(), best_step=best.step, best_accuracy=best.best,
        )  # fmt: skip
    say(f"trained {trainer.global_step} steps in {lines.wall.minutes:.1f} min; evaluate it with:")
    say(f"  python evaluate.py run={run.path}")
    return run


def quiet_lightning() -> None:
    """Silence what Lightning says about choices that are made on purpose here, and about itself."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # one batch costs a few per cent of a step
        ".*dataloader is not resumable.*",  # it is: an iterator starts at trainer.global_step
        ".*Starting from v1.9.0.*",
        ".*Checkpoint directory.*exists.*",
        ".*IterableDataset.*",
        ".*recommended to use `sync_dist=True`.*",  # torchmetrics has put the processes together before it is logged
        ".*LeafSpec.*is deprecated.*",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message)
