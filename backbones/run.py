"""A run folder, the truth about a training run: what was asked, the weights, and the metrics.

    outputs/<run>/
        config.yaml                  the resolved configuration
        run.json                     what built the model, which code, how it ended
        checkpoints/best.safetensors best weights by validation accuracy; what evaluation loads
        checkpoints/last.ckpt        everything that resuming needs
        metrics.csv                  every logged number
        eval/                        response table, metrics, figures, report

Files are written beside their place and moved into it, so a kill leaves the old one or the new one. Nothing here is
unpickled: weights are safetensors, and a Lightning checkpoint is loaded with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .model import MembershipModel

FORMAT = 1


class RunError(ValueError):
    """A run folder that cannot be used; the message says which file and what to do."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to that becomes `path` when the block ends well, and disappears when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Run:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def record_file(self) -> Path:
        return self.path / "run.json"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def evaluation(self) -> Path:
        return self.path / "eval"

    # ---- the record --------------------------------------------------------------------------------------------------
    def write_record(self, **fields: Any) -> None:
        """Merge `fields` into run.json."""
        record = json.loads(self.record_file.read_text()) if self.record_file.exists() else {"format": FORMAT}
        with replacing(self.record_file) as temporary:
            temporary.write_text(json.dumps(record | fields, indent=2, sort_keys=True) + "\n")

    def record(self) -> dict[str, Any]:
        """What run.json says.

        Raises:
            RunError: not a run folder, unreadable, or from a version whose format this code does not know.
        """
        if not self.record_file.exists():
            raise RunError(f"{self.path} is not a run folder: it has no run.json. Train one with `python train.py`")
        try:
            record = json.loads(self.record_file.read_text())
        except json.JSONDecodeError as error:
            raise RunError(f"{self.record_file} is not readable as JSON ({error}); restore it or train again") from None
        if record.get("format") != FORMAT:
            raise RunError(
                f"{self.path} was written in run format {record.get('format')}, this code reads {FORMAT}; "
                f"check out the code it names ({record.get('code', 'unknown')}) or train again"
            )
        return record

    # ---- weights -----------------------------------------------------------------------------------------------------
    def save_best(self, model: MembershipModel, **metadata: Any) -> None:
        """Write the weights, with `metadata` (step, accuracy) in the file's header."""
        with replacing(self.best) as temporary:
            save_file(
                {name: tensor.clone() for name, tensor in model.state_dict().items()},  # layers may share a parameter
                temporary,
                metadata={key: str(value) for key, value in metadata.items()},
            )

    def load_model(self, device: str | torch.device = "cpu") -> MembershipModel:
        """The trained model in evaluation mode.

        Raises:
            RunError: no weights yet, a truncated file, or weights of another architecture.
        """
        record = self.record()
        if not self.best.exists():
            raise RunError(
                f"{self.path} has no {self.best.relative_to(self.path)} yet; run the same train.py command to finish it"
            )
        try:
            model = MembershipModel(**record["model"])
        except ValueError as error:
            plugins = ", ".join(record.get("plugins", []))
            hint = f" It was trained with plugins=[{plugins}]: import them first." if plugins else ""
            raise RunError(f"{self.path} cannot be built by this code: {error}{hint}") from None
        try:
            weights = load_file(self.best)
        except (SafetensorError, OSError) as error:
            raise RunError(
                f"{self.best} is damaged or truncated ({error}); delete it and run the same train.py command: "
                "training resumes from last.ckpt"
            ) from None
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            detail = str(error).split("\n")[1].strip() if "\n" in str(error) else str(error)
            raise RunError(
                f"{self.best} does not fit the model that this code builds from {self.record_file.name}: {detail} "
                f"The run was trained by code {record.get('code', 'unknown')}; check it out or train again"
            ) from None
        return model.to(device).eval()


def find_runs(pattern: str | list[str]) -> list[Run]:
    """Run folders that match glob patterns, sorted by name; folders without run.json are passed over.

    A string may hold several patterns, separated by commas.

    Raises:
        RunError: nothing matches.
    """
    patterns = [part.strip() for part in pattern.split(",")] if isinstance(pattern, str) else list(pattern)
    paths = sorted({Path(path) for p in patterns for path in glob(p)})
    runs = [Run(path) for path in paths if (path / "run.json").exists()]
    if not runs:
        raise RunError(f"no run folder matches {', '.join(patterns)}; train one with `python train.py`")
    return runs
