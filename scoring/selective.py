"""Selective prediction: what happens to accuracy when the least confident answers are withheld.

All questions with the same confidence enter the curve together, so there is one point per distinct threshold and the
order of rows cannot matter. Abstentions of the system's own never enter: they bound the coverage that it can reach.

Letters: n questions, G distinct confidences, R redraws, P grid coverages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from scoring.cells import Cell
from scoring.statistics import Estimate, Redraws, estimate

GRID = np.linspace(0.01, 1.0, 100)
_SLACK = 1e-9  # 0.55 * 100 is a little more than 55 in floating point and must still count as 55


@dataclass(frozen=True)
class Curve:
    """Coverage and accuracy at each distinct threshold, highest threshold first.

    Attributes:
        threshold, coverage, accuracy: float [G]. Answering where confidence >= threshold covers that share of all
            questions asked, and that share of the answers is right. A system without confidences has one point, the
            answers that it gave, and no threshold (NaN).
        count: int [G], answers given.
        low, high: 95% interval of the accuracy at the coverages `GRID` [P]; NaN beyond the coverage that is reached.
        draws: float32 [R, P], accuracy on each redraw, for frontiers; NaN likewise.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Ranking:
    """Rows in the order in which they enter, with the last row of each group of ties.

    `order` [n'] indexes the entering rows; `ends` [G] indexes `order`.
    """

    order: np.ndarray
    ends: np.ndarray

    @classmethod
    def by(cls, values: np.ndarray, rows: np.ndarray) -> Ranking:
        """Rows `rows` by ascending `values`."""
        order = rows[np.argsort(values[rows], kind="stable")]
        ordered = values[order]
        return cls(order, np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(order) else order)

    def redrawn(self, cell: Cell, redraws: Redraws) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield r redraws at a time: questions entered and right at each group's end [r, G], questions asked [r]."""
        asked = np.bincount(cell.stream, minlength=cell.streams)
        stream, correct = cell.stream[self.order], cell.correct[self.order].astype(np.int32)
        groups = len(self.ends)
        if groups * cell.streams <= len(self.order):
            # Few groups (one, for a system of constant cost): count each stream's rows per group once.
            cells = stream * groups + np.repeat(np.arange(groups), np.diff(self.ends, prepend=-1))
            joined = np.bincount(cells, minlength=groups * cell.streams).reshape(-1, groups)
            joined_right = np.bincount(cells, weights=correct, minlength=joined.size).reshape(-1, groups).astype(int)
            entered, right = joined.cumsum(axis=1), joined_right.cumsum(axis=1)
            for weights in redraws.blocks():
                yield weights @ entered, weights @ right, weights @ asked
            return
        for weights in redraws.blocks(row_cost=len(self.order)):
            drawn = np.take(weights, stream, axis=1)
            right = np.cumsum(drawn * correct, axis=1, dtype=np.int32)[:, self.ends]
            yield np.cumsum(drawn, axis=1, dtype=np.int32)[:, self.ends], right, weights @ asked


def selective_metrics(
    cell: Cell, redraws: Redraws, targets: tuple[float, ...], coverages: tuple[float, ...]
) -> tuple[dict[str, Estimate], Curve | None]:
    """The coverage-accuracy curve and what is read off it.

    Args:
        targets: accuracies for `coverage_at_accuracy_*`: the largest coverage whose accuracy is at least that (0 when
            there is none: the system would have to stay silent).
        coverages: for `risk_at_coverage_*`: the error rate at the smallest coverage on the curve that is at least that.

    Returns:
        `aurc`, the mean over answers of the error rate among answers at least as confident; the metrics above; and the
    """
    names = ["aurc", *(f"coverage_at_accuracy_{t:.2f}" for t in targets)]
    names += [f"risk_at_coverage_{c:.2f}" for c in coverages]
    rows = np.flatnonzero(cell.answered)
    if not len(rows):
        return _undefined(cell, names, "no answered questions"), None
    confidence = np.zeros(cell.n) if cell.confidence is None else np.where(cell.answered, cell.confidence, 0.0)
    ranking = Ranking.by(-confidence, rows)
    entered, right = ranking.ends + 1, np.cumsum(cell.correct[ranking.order])[ranking.ends]
    values, at_grid = _read(entered[None], right[None], np.array([cell.n]), targets, coverages)
    drawn = [_read(*block, targets, coverages) for block in ranking.redrawn(cell, redraws)]
    draws, grid_draws = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    beyond = f"answers only {len(rows) / cell.n:.3f} of the questions"
    found = {name: estimate(values[0, i], draws[:, i], cell.n, cell.streams, beyond) for i, name in enumerate(names)}
    low, high = _bands(grid_draws, at_grid[0], cell.streams)
    threshold = confidence[ranking.order[ranking.ends]]
    if cell.confidence is None:
        found, threshold = _undefined(cell, names, "no confidences given"), np.array([np.nan])
    curve = Curve(threshold, entered / cell.n, right / entered, entered, low, high, grid_draws.astype(np.float32))
    return found, curve


def _undefined(cell: Cell, names: list[str], note: str) -> dict[str, Estimate]:
    return {name: Estimate(None, n=cell.n, streams=cell.streams, note=note) for name in names}


def _read(
    entered: np.ndarray, right: np.ndarray, asked: np.ndarray, targets: tuple[float, ...], coverages: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Metrics [r, m] and accuracies at the grid coverages [r, P] of curves given as counts [r, G] of asked [r]."""
    risk = 1 - np.divide(right, entered, out=np.ones(entered.shape), where=entered > 0)
    answers = entered[:, -1]
    joined = np.diff(entered, axis=1, prepend=0)
    with np.errstate(invalid="ignore"):
        aurc = (joined * risk).sum(axis=1) / answers
        found = [aurc]
        for target in targets:
            good = right >= target * entered - _SLACK
            last = good.shape[1] - 1 - np.argmax(good[:, ::-1], axis=1)
            reached = np.take_along_axis(entered, last[:, None], axis=1)[:, 0]
            found.append(np.where(good.any(axis=1), reached, 0) / asked)
    at = _risk_at(entered, risk, asked, np.array([*coverages, *GRID]))
    return np.column_stack([*found, at[:, : len(coverages)]]), 1 - at[:, len(coverages) :]


def _risk_at(entered: np.ndarray, risk: np.ndarray, asked: np.ndarray, coverages: np.ndarray) -> np.ndarray:
    """Risk [r, c] at the first point of each curve that covers at least c of the questions; NaN beyond the curve."""
    wanted = np.ceil(coverages * asked[:, None] - _SLACK).astype(np.int64)
    # One search for all curves: shifting curve i by i * step keeps the concatenated counts sorted.
    step = int(asked.max()) + 1
    shift = np.arange(len(entered))[:, None] * step
    found = np.searchsorted((entered + shift).ravel(), (wanted + shift).ravel()).reshape(wanted.shape)
    inside = wanted <= entered[:, -1:]
    return np.where(inside, risk.ravel()[np.minimum(found, risk.size - 1)], np.nan)


def _bands(draws: np.ndarray, value: np.ndarray, streams: int) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the accuracy at each grid coverage, under the rules of `estimate`."""
    ends = [estimate(v, draws[:, i], 0, streams) for i, v in enumerate(value)]
    to_float = [[np.nan if x is None else x for x in (e.low, e.high)] for e in ends]
    return tuple(np.array(to_float).T)
