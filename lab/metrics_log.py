"""`metrics.csv` of a run: one row per logged number, in the tidy form step, name, value, that resuming can continue."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from backbones.run import replacing

COLUMNS = ("step", "name", "value")


class MetricsLog(Logger):
    """Appends to `path`; rows after the step that a run resumes from are dropped, since they will be logged again."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def resume_at(self, step: int) -> None:
        """Forget what was logged after `step`."""
        if not self.path.exists():
            return
        with open(self.path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["step"] or "").isdigit() and int(row["step"]) <= step]
        with replacing(self.path) as temporary, open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return "0"

    @property
    @rank_zero_experiment
    def experiment(self) -> Path:
        return self.path

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration is in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        new = not self.path.exists()
        with open(self.path, "a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(COLUMNS)
            writer.writerows((step, name, value) for name, value in metrics.items() if name != "epoch")
