"""Which of the paper's findings about backbones appear in a study: one small function per finding, no verdict by hand.

A finding is a number, computed from the scores, and a null: the value it has where the finding is absent. It *appears*
where the 95 % interval of the number lies wholly on the finding's side of the null, *does not* where it lies wholly on
the other side, and is *undecided* where the interval holds the null. Intervals redraw streams; they do not know how
much another training run would differ.

Source of the findings: ECCBench, sections 4.4, C.1 and Figure 8 (L = 2048 and 4096, 2 and 4 times the longest training
length). Letters: L stream length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import numpy as np

from scoring.comparisons import CellScore
from scoring.selective import GRID
from scoring.statistics import estimate
from scoring.summary import Scores

APPEARS, ABSENT, UNDECIDED, UNMEASURED = "appears", "does not", "undecided", "not measured"
CHANCE_LINE = 0.60
"""The paper calls a memory above chance from 60 % of yes/no questions on."""
NARROW = ("gru", "ttt_mlp", "gla")
"""Backbones that the paper names as gaining from abstention where the convolutional Transformer does not."""
HALF = int(np.argmin(np.abs(GRID - 0.5)))


class Missing(LookupError):
    """A cell that a finding needs is not in the study."""


class Number(NamedTuple):
    """A value with its redraws [R]."""

    value: float
    draws: np.ndarray

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value, self.draws - other.draws)


@dataclass(frozen=True)
class Evidence:
    """The scores of a study, asked by architecture: the narrowest system of each answers, of several the first named.

    Args:
        scores: of the systems and reference solvers.
        trained_length: the longest stream that training showed.
        systems: the study's, plain ones before variants.
    """

    scores: Scores
    trained_length: int
    systems: tuple[str, ...] = ()

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str, int], CellScore]:
        found: dict[tuple[str, str, str, int], CellScore] = {}
        rank = {system: place for place, system in enumerate(self.systems)}
        for cell in sorted(
            self.scores.cells, key=lambda c: (c.width or 0, rank.get(c.system, len(rank))), reverse=True
        ):
            found[cell.architecture, cell.key.query_set, cell.band, cell.length] = cell
        return found

    def cell(self, name: str, band: str, factor: int, query_set: str = "uniform") -> CellScore:
        """One cell, at `factor` times the longest training length.

        Raises:
            Missing: it was not measured.
        """
        key = (name, query_set, band, factor * self.trained_length)
        if key not in self._cells:
            raise Missing(f"no answers of {name} on {band}, {query_set}, L={key[-1]}")
        return self._cells[key]

    def accuracy(self, name: str, band: str, factor: int, query_set: str = "uniform") -> Number:
        cell = self.cell(name, band, factor, query_set)
        return Number(cell.accuracy, cell.accuracy_draws)

    def gap(self, name: str, factor: int, query_set: str = "uniform") -> Number:
        """Compression: accuracy on regular streams minus accuracy on noise."""
        return self.accuracy(name, "low", factor, query_set) - self.accuracy(name, "max", factor, query_set)

    def gain(self, name: str, band: str, factor: int) -> Number:
        """What abstaining from the less confident half of the questions adds to the accuracy."""
        cell = self.cell(name, band, factor)
        curve = cell.curve
        half = curve.accuracy[np.searchsorted(curve.coverage, GRID[HALF] - 1e-9)]
        return Number(float(half), curve.draws[:, HALF].astype(float)) - self.accuracy(name, band, factor)

    def relief(self, name: str, band: str, factor: int) -> Number:
        """The share of its errors that abstaining from the less confident half removes."""
        gain, accuracy = self.gain(name, band, factor), self.accuracy(name, band, factor)
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = np.where(accuracy.draws < 1, gain.draws / (1 - accuracy.draws), np.nan)
        return Number(gain.value / (1 - accuracy.value) if accuracy.value < 1 else np.nan, draws)

    def order(self, name: str, factor: int) -> Number:
        """Accuracy on noise where each negative permutes a window: 0.5 without memory of order."""
        return self.accuracy(name, "max", factor, "order")


@dataclass(frozen=True)
class Finding:
    """A finding of the paper, or a control of the lab's that it should be read with.

    Args:
        key: short name.
        says: the finding.
        measure: the number, in words.
        null: its value where the finding is absent.
        above: whether the finding is a number above the null, or below it.
        factors: stream lengths, in units of the longest training length.
        of: evidence and factor to the number.
        control: of the lab's, not the paper's.
    """

    key: str
    says: str
    measure: str
    null: float
    above: bool
    factors: tuple[int, ...]
    of: Callable[[Evidence, int], Number]
    control: bool = False


def _mean(numbers: list[Number]) -> Number:
    return Number(fmean(n.value for n in numbers), np.mean([n.draws for n in numbers], axis=0))


def _compression(name: str, label: str) -> Iterator[Finding]:
    yield Finding(
        f"compression_{name}", f"{label} compresses: better on regular streams than on noise (about 30 points there)",
        "accuracy on low minus on max", 0.0, True, (2, 4), lambda e, f: e.gap(name, f),
    )  # fmt: skip
    yield Finding(
        f"compression_{name}_beyond_counts", f"{label}'s gap is more than the symbol counts' on the same questions",
        "its gap minus that of `hist`", 0.0, True, (2, 4), lambda e, f: e.gap(name, f) - e.gap("hist", f), control=True,
    )  # fmt: skip
    yield Finding(
        f"compression_{name}_order", f"{label} compresses where negatives permute a window",
        "accuracy on low minus on max, `order` negatives", 0.0, True, (2, 4), lambda e, f: e.gap(name, f, "order"),
        control=True,
    )  # fmt: skip


FINDINGS: tuple[Finding, ...] = (
    Finding(
        "rope_length", "the RoPE Transformer has extremely low capacity beyond its training length",
        "accuracy on max", CHANCE_LINE, False, (2, 4), lambda e, f: e.accuracy("transformer_rope", "max", f),
    ),
    Finding(
        "rope_trained", "within its training length it has not: the loss is one of extrapolation",
        "accuracy on max", CHANCE_LINE, True, (1,), lambda e, f: e.accuracy("transformer_rope", "max", f), control=True,
    ),
    Finding(
        "conv_capacity", "a local convolution in its place vastly increases capacity (null: by 10 points)",
        "accuracy on max, conv minus RoPE", 0.10, True, (2, 4),
        lambda e, f: e.accuracy("transformer_conv", "max", f) - e.accuracy("transformer_rope", "max", f),
    ),
    *_compression("retnet", "RetNet"),
    *_compression("ttt_mlp", "TTT-MLP"),
    *(
        Finding(
            f"low_above_conv_{name}", f"{label} is more accurate on regular streams than the convolutional Transformer",
            "accuracy on low, minus that of conv", 0.0, True, (2, 4),
            lambda e, f, name=name: e.accuracy(name, "low", f) - e.accuracy("transformer_conv", "low", f),
        )
        for name, label in (("deltanet", "DeltaNet"), ("ttt_mlp", "TTT-MLP"), ("mamba2", "Mamba-2"))
    ),
    Finding(
        "narrow_coverage_low", "the convolutional Transformer spans a narrow range of coverage: abstaining gains it "
        "less than GRU, TTT-MLP or GLA (low)", "gain at half coverage, conv minus their mean, low", 0.0, False, (2, 4),
        lambda e, f: e.gain("transformer_conv", "low", f) - _mean([e.gain(n, "low", f) for n in NARROW]),
    ),
    Finding(
        "narrow_coverage_max", "the same on noise", "gain at half coverage, conv minus their mean, max", 0.0, False,
        (2, 4), lambda e, f: e.gain("transformer_conv", "max", f) - _mean([e.gain(n, "max", f) for n in NARROW]),
    ),
    Finding(
        "narrow_relative_max", "the same in units of its own errors: a memory near the ceiling has little to gain",
        "share of errors removed at half coverage, conv minus their mean, max", 0.0, False, (2, 4),
        lambda e, f: e.relief("transformer_conv", "max", f) - _mean([e.relief(n, "max", f) for n in NARROW]),
        control=True,
    ),
    Finding(
        "rope_calibration", "for the RoPE Transformer accuracy rises little as coverage falls, less than for these",
        "gain at half coverage, RoPE minus their mean, max", 0.0, False, (2, 4),
        lambda e, f: e.gain("transformer_rope", "max", f) - _mean([e.gain(n, "max", f) for n in NARROW]),
    ),
    Finding(
        "mosaic_ceiling", "Memory Mosaic is so accurate that its compression cannot be measured (null: 95 %)",
        "accuracy on max", 0.95, True, (2, 4), lambda e, f: e.accuracy("memory_mosaic", "max", f),
    ),
    Finding(
        "nope_chance", "the Transformer without positions or convolution stays at chance within its training length",
        "accuracy on max", CHANCE_LINE, False, (1,), lambda e, f: e.accuracy("transformer_nope", "max", f),
    ),
    Finding(
        "nope_order", "what it does learn is blind to order (null: 5 points above an even chance)",
        "accuracy on max, `order` negatives", 0.55, False, (1,), lambda e, f: e.order("transformer_nope", f),
        control=True,
    ),
)  # fmt: skip


def verdict(value: float | None, low: float | None, high: float | None, null: float, above: bool) -> str:
    """What an interval says of a finding."""
    if value is None or low is None or high is None:
        return UNMEASURED
    if low > null or high < null:
        return APPEARS if (low > null) == above else ABSENT
    return UNDECIDED


def findings(evidence: Evidence) -> list[dict[str, object]]:
    """One row per finding and length: number, interval, null and verdict."""
    rows = []
    for finding in FINDINGS:
        for factor in finding.factors:
            try:
                number = finding.of(evidence, factor)
                found = estimate(number.value, number.draws, 0, 2)
                value, low, high, note = found.value, found.low, found.high, found.note
            except Missing as missing:
                value = low = high = None
                note = str(missing)
            rows.append({
                "finding": finding.key, "source": "control" if finding.control else "paper", "says": finding.says,
                "measure": finding.measure, "L": factor * evidence.trained_length, "value": value, "low": low,
                "high": high, "null": finding.null, "side": "above" if finding.above else "below",
                "verdict": verdict(value, low, high, finding.null, finding.above), "note": note,
            })  # fmt: skip
    return rows
