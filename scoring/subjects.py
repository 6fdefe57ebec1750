"""What one figure or page is about: a task, split and query set, with its bands, lengths and systems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scoring.comparisons import CellScore
from scoring.summary import Scores


@dataclass(frozen=True)
class Subject:
    """One kind of question. Systems told about payoff arms appear with their plain run, or with arm A without one."""

    task: str
    split: str
    query_set: str

    @property
    def where(self) -> dict[str, Any]:
        """Fields of the cell key that are fixed."""
        return {"task": self.task, "split": self.split, "query_set": self.query_set}

    @property
    def title(self) -> str:
        return ", ".join([f"{self.query_set} negatives", *self._unusual])

    @property
    def slug(self) -> str:
        """Short name for files."""
        return re.sub(r"[^A-Za-z0-9]+", "_", "_".join([self.query_set, *self._unusual]))

    @property
    def _unusual(self) -> list[str]:
        """Split and task, where they are not the usual ones."""
        return [x for x, usual in ((self.split, "test"), (self.task, "membership")) if x != usual]

    def cells(self, scores: Scores) -> list[CellScore]:
        """Its cells, sorted by architecture, width, band and length."""
        plain = scores.at(**self.where, arm=None)
        have = {c.key._replace(arm="A") for c in plain}
        cells = plain + [c for c in scores.at(**self.where, arm="A") if c.key not in have]
        return sorted(cells, key=lambda c: (c.architecture, c.width or 0, c.system, c.band, c.length))


def subjects(scores: Scores) -> list[Subject]:
    """The subjects of a table; the paper's query set, `uniform`, first."""
    found = {Subject(c.key.task, c.key.split, c.key.query_set) for c in scores.cells}
    return sorted(found, key=lambda s: (s.task, s.split, s.query_set != "uniform", s.query_set))


def bands_of(scores: Scores, cells: Iterable[CellScore]) -> list[str]:
    """Distinct bands as the paper's figures have them: structured first, incompressible last."""
    return sorted({c.band for c in cells}, key=lambda band: (band == scores.settings.base_band, band))


def band_title(band: str) -> str:
    """How a panel names its band."""
    return f"{band} entropy" if band in ("low", "max") else f"band {band}"


def distinct_budgets(flops: Sequence[float | None], budgets: Sequence[float]) -> list[float | None]:
    """The budgets that admit different sets of systems, rising, up to one that admits all (None: no budget)."""
    found: list[float | None] = []
    admitted = 0
    for budget in sorted(budgets):
        fits = sum(f is not None and f <= budget for f in flops)
        if fits > admitted:
            found.append(budget)
            admitted = fits
    return found if admitted == len(flops) else [*found, None]


def mflops(flops: float) -> str:
    """FLOPs in a readable unit, e.g. "1,750 MFLOPs" (the unit of the paper's budgets) or "31.2 TFLOPs"."""
    if flops >= 1e12:
        return f"{flops / 1e12:,.3g} TFLOPs"
    value = flops / 1e6
    return f"{value:,.0f} MFLOPs" if value >= 100 else f"{value:.3g} MFLOPs"
