"""Pareto frontiers: which points no admitted system beats on both axes.

Two kinds. *Coverage-accuracy* (paper, Figures 8 and 10): every threshold of every system within a FLOPs budget is a
point; the frontier is what remains when each point with another at least as good on both axes, and better on one, is
struck out. *Cost-accuracy*: each system is one point, its FLOPs per answer and its accuracy over all questions.

Letters: M systems, R redraws, P grid coverages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scoring.selective import GRID, Curve
from scoring.statistics import ENDS

PAPER_BUDGETS = (1_750e6, 10_000e6, 30_000e6)


@dataclass(frozen=True)
class Contender:
    """A system that may be on a frontier. `flops` is None when its cost is not known."""

    name: str
    flops: float | None
    curve: Curve


@dataclass(frozen=True)
class FrontierPoint:
    """A point that no admitted system dominates; equal points of several systems are one point with all their names.

    `threshold` is None for a system without confidences.
    """

    coverage: float
    accuracy: float
    threshold: float | None
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Frontier:
    """A coverage-accuracy frontier under a budget.

    Attributes:
        points: by falling coverage.
        admitted: names of the systems within the budget.
        support: share of the bootstrap redraws in which a system holds part of the frontier.
        low, high: 95% interval of the frontier's accuracy at the coverages `GRID` [P]; NaN beyond its reach. The best
            of several noisy curves is biased upwards, so this shows spread, not what a rerun would reach.
    """

    budget: float | None
    points: tuple[FrontierPoint, ...]
    admitted: tuple[str, ...]
    support: dict[str, float]
    low: np.ndarray
    high: np.ndarray


def undominated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points that no other point dominates (larger is better on both axes), by falling x.

    Equal points do not dominate each other and are all returned, next to each other.
    """
    order = np.lexsort((-y, -x))
    y = y[order]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], y]))[:-1]
    fresh = y > before
    # An equal point follows the one that made it to the frontier.
    x = x[order]
    leader = np.maximum.accumulate(np.where(fresh, np.arange(len(y)), -1))
    same = (leader >= 0) & (x == x[leader]) & (y == y[leader])
    return order[fresh | same]


def admitted(contenders: Sequence[Contender], budget: float | None) -> list[Contender]:
    """Systems within a budget, inclusive. Unknown costs fit only where there is no budget."""
    return [c for c in contenders if budget is None or (c.flops is not None and c.flops <= budget)]


def coverage_frontier(contenders: Sequence[Contender], budget: float | None = None) -> Frontier:
    """The coverage-accuracy frontier of the systems whose mean FLOPs per answer are within `budget`."""
    members = sorted(admitted(contenders, budget), key=lambda c: c.name)
    nothing = np.full(len(GRID), np.nan)
    if not members:
        return Frontier(budget, (), (), {}, nothing, nothing)
    owner = np.repeat(np.arange(len(members)), [len(m.curve.coverage) for m in members])
    coverage, accuracy, threshold = (
        np.concatenate([getattr(m.curve, name) for m in members]) for name in ("coverage", "accuracy", "threshold")
    )
    points: list[FrontierPoint] = []
    for i in undominated(coverage, accuracy):
        name = members[owner[i]].name
        if points and (points[-1].coverage, points[-1].accuracy) == (coverage[i], accuracy[i]):
            same = points.pop()
            names = tuple(sorted({*same.systems, name}))
            points.append(FrontierPoint(same.coverage, same.accuracy, same.threshold, names))
        else:
            at = None if np.isnan(threshold[i]) else float(threshold[i])
            points.append(FrontierPoint(float(coverage[i]), float(accuracy[i]), at, (name,)))
    support, low, high = _redrawn(members)
    return Frontier(budget, tuple(points), tuple(m.name for m in members), support, low, high)


def cost_frontier(flops: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Indices of the systems [M] that no other beats in both cost (lower) and accuracy (higher), by rising cost."""
    return undominated(-flops, accuracy)


def cost_support(flops: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Share [M] of the redraws in which each system is on the cost-accuracy frontier; accuracy is [R, M]."""
    on = np.zeros(accuracy.shape, bool)
    for row, drawn in zip(on, accuracy, strict=True):
        row[cost_frontier(flops, drawn)] = True
    return on.mean(axis=0)


def _redrawn(members: Sequence[Contender]) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Support of each member and the band of the frontier, from the redraws of the curves at the coverages `GRID`."""
    accuracy = np.stack([m.curve.draws for m in members])  # [M, R, P]
    accuracy = np.where(np.isnan(accuracy), -np.inf, accuracy)
    # The best accuracy at each coverage or beyond, over all members: [R, P].
    best = np.maximum.accumulate(accuracy.max(axis=0)[:, ::-1], axis=1)[:, ::-1]
    beyond = np.pad(best[:, 1:], ((0, 0), (0, 1)), constant_values=-np.inf)
    holds = ((accuracy == best) & (best > beyond)).any(axis=2).mean(axis=1)
    low, high = np.full(best.shape[1], np.nan), np.full(best.shape[1], np.nan)
    reached = np.isfinite(best).all(axis=0)
    if reached.any():
        low[reached], high[reached] = np.percentile(best[:, reached].astype(float), ENDS, axis=0)
    return {m.name: float(h) for m, h in zip(members, holds, strict=True)}, low, high
