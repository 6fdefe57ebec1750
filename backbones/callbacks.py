"""What happens around training steps: atomic checkpoints, the best weights, and a line per validation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import lightning
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

from .run import Run, RunError, replacing


def load_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A Lightning checkpoint, loaded without unpickling code.

    Raises:
        RunError: truncated, damaged, or holding anything but tensors and plain values.
    """
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch.load raises a dozen types for a damaged file
        raise RunError(
            f"cannot resume from {path}: {str(error).splitlines()[0]} Delete the file to start this run again, "
            "or set name=... to start another beside it"
        ) from error


class Notice(Protocol):
    """An announcement that the process will end soon."""

    received: Any
    """None while there is none."""

    def listen(self) -> None:
        """From now on, hear of it."""

    def obey(self) -> None:
        """Do what it asks; the state is on disk."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints that a kill or a full disk leaves whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        with replacing(Path(path)) as temporary:
            torch.save(checkpoint, temporary)

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = True) -> Any:
        return load_checkpoint(path, map_location)


class SaveLast(Callback):
    """`last.ckpt`: everything that resuming needs, after each validation and every `seconds` between them.

    At a step that validates, the checkpoint comes after the validation and holds its result, so that a resumed run
    neither repeats nor skips one. All processes of a distributed run save and stop at the same step, whichever of them
    a clock or a signal told: a checkpoint is a collective.

    Args:
        run: where to.
        validate_every: steps between validations.
        seconds: the most that a kill can lose.
        notice: a scheduler's announcements; when one comes, save at once and obey it.
    """

    def __init__(self, run: Run, validate_every: int, seconds: float = 60.0, notice: Notice | None = None):
        self.run, self.validate_every, self.seconds, self.notice = run, validate_every, seconds, notice
        self._saved = time.monotonic()

    def _save(self, trainer: lightning.Trainer) -> None:
        trainer.save_checkpoint(self.run.last, weights_only=False)  # False: the optimiser and loops too
        self._saved = time.monotonic()

    def _told(self, trainer: lightning.Trainer) -> bool:
        return self._any(trainer, self.notice is not None and self.notice.received is not None)

    @staticmethod
    def _any(trainer: lightning.Trainer, here: bool) -> bool:
        """Whether it holds in any process of the run."""
        return here if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(here, all=False)

    def on_train_start(self, *_: Any) -> None:
        if self.notice is not None:
            self.notice.listen()

    def on_train_batch_end(self, trainer, *_: Any) -> None:
        if trainer.global_step % self.validate_every == 0:
            return
        told = self._told(trainer)
        if told or self._any(trainer, time.monotonic() - self._saved > self.seconds):
            self._save(trainer)
        if told:
            self.notice.obey()

    def on_validation_end(self, trainer, _module) -> None:
        if trainer.sanity_checking:
            return
        self._save(trainer)
        if self._told(trainer):
            self.notice.obey()


class OnResume(Callback):
    """Calls `continue_at(step)` when a checkpoint has been read, before anything is logged."""

    def __init__(self, continue_at: Callable[[int], None]):
        self.continue_at = continue_at

    def on_load_checkpoint(self, _trainer, _module, checkpoint: dict[str, Any]) -> None:
        self.continue_at(int(checkpoint["global_step"]))


class SaveBest(Callback):
    """`best.safetensors`: the weights of the best validation accuracy so far."""

    def __init__(self, run: Run):
        self.run, self.best, self.step = run, -1.0, -1

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.step = state["best"], state["step"]

    def on_validation_end(self, trainer, module) -> None:
        if trainer.sanity_checking:
            return
        accuracy = float(trainer.callback_metrics["val/accuracy"])
        if accuracy > self.best:
            self.best, self.step = accuracy, trainer.global_step
            if trainer.is_global_zero:
                self.run.save_best(module.model, step=self.step, accuracy=accuracy)


class Stopwatch:
    """Minutes on a clock since now, on top of those from before a resume."""

    def __init__(self, clock: Callable[[], float], before: float = 0.0):
        self.clock, self.before, self.started = clock, before, clock()

    @property
    def minutes(self) -> float:
        return self.before + (self.clock() - self.started) / 60


class ValidationLines(Callback):
    """One line per validation and every `seconds` between, and the time that training took: wall clock and processor.

    On a machine that does other things too, processor time is what a quiet machine's clock would have shown for a run
    on one thread.
    """

    def __init__(self, write: Callable[[str], None] = print, seconds: float = 20.0):
        self.write, self.wall, self.cpu = write, Stopwatch(time.monotonic), Stopwatch(time.process_time)
        self.seconds, self._started_at, self._shown = seconds, 0, time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"wall": self.wall.minutes, "cpu": self.cpu.minutes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wall, self.cpu = (Stopwatch(w.clock, state[n]) for n, w in (("wall", self.wall), ("cpu", self.cpu)))

    def on_train_start(self, trainer, _module) -> None:
        self._started_at, self._shown = trainer.global_step, time.monotonic()

    def on_train_batch_end(self, trainer, *_: Any) -> None:
        now = time.monotonic()
        if now - self._shown < self.seconds or not trainer.is_global_zero:
            return
        self._shown = now
        rate = (trainer.global_step - self._started_at) / (now - self.wall.started)
        left = (trainer.max_steps - trainer.global_step) / rate / 60
        self.write(
            f"step {trainer.global_step:>6}/{trainer.max_steps}  {self.wall.minutes:5.1f} min  {left:.0f} min left"
        )

    def on_validation_end(self, trainer, module) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        self._shown = time.monotonic()
        spent = {"time/minutes": self.wall.minutes, "time/cpu_minutes": self.cpu.minutes}
        for logger in trainer.loggers:
            logger.log_metrics(spent, step=trainer.global_step - 1)  # Lightning counts steps from 0
        metrics = trainer.callback_metrics
        lengths = "  ".join(f"L{n} {float(metrics[f'val/accuracy/L{n}']):.3f}" for n in module.validation_lengths)
        loss = metrics.get("train/loss")
        loss = f"loss {float(loss):.3f}  " if loss is not None else ""
        self.write(
            f"step {trainer.global_step:>6}/{trainer.max_steps}  {self.wall.minutes:5.1f} min  {loss}accuracy {lengths}"
        )
