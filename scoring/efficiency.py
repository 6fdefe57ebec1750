"""Accuracy against computation: running accuracy, cost of a target, accuracy within a budget, FLOPs saved.

One rule serves systems whose every answer costs the same (a backbone) and those whose cost varies (a model that thinks
aloud): sort answers by cost; the running accuracy at x FLOPs is the number of right answers that cost at most x over
the number of questions asked. For constant cost that is one step, from nothing to the accuracy.

Letters: n questions, R redraws, T targets or budgets, G distinct costs, M systems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scoring.cells import Cell
from scoring.selective import Ranking
from scoring.statistics import Redraws

_SLACK = 1e-9


@dataclass(frozen=True)
class Cost:
    """What accuracy costs in one cell.

    Attributes:
        mean: mean FLOPs per answer, write / queries + read; mean_draws [R] on each redraw.
        write, read: mean FLOPs of writing a stream and of one read.
        flops, running: float [G], running accuracy at each distinct cost.
        reach: [T] FLOPs at which each target accuracy is first reached; infinite when it is not.
        within: [B] running accuracy within each budget; NaN when not even the cheapest answer fits.
        reach_draws, within_draws: [R, T] and [R, B], the same on each redraw.
    """

    mean: float
    write: float
    read: float
    flops: np.ndarray
    running: np.ndarray
    reach: np.ndarray
    within: np.ndarray
    mean_draws: np.ndarray
    reach_draws: np.ndarray
    within_draws: np.ndarray


def cell_cost(
    cell: Cell, redraws: Redraws, targets: tuple[float, ...], budgets: tuple[float, ...], queries: int
) -> Cost | None:
    """Costs of a cell when each stream serves `queries` questions; None when its FLOPs are not known.

    Args:
        targets: accuracies to reach, over all questions asked.
        budgets: FLOPs per answer, inclusive.
    """
    cost = cell.cost(queries)
    if cost is None:
        return None
    ranking = Ranking.by(cost, np.arange(cell.n))
    flops = cost[ranking.order[ranking.ends]]
    fits = np.searchsorted(flops, np.array(budgets), side="right") - 1

    def read(right: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        running = right / asked[:, None]
        reach = np.full((len(right), len(targets)), np.inf)
        for i, target in enumerate(targets):
            reached = running >= target - _SLACK
            reach[:, i] = np.where(reached.any(axis=1), flops[np.argmax(reached, axis=1)], np.inf)
        return reach, np.where(fits >= 0, running[:, np.maximum(fits, 0)], np.nan)

    right = np.cumsum(cell.correct[ranking.order])[ranking.ends]
    reach, within = read(right[None], np.array([cell.n]))
    drawn = [read(block_right, asked) for _, block_right, asked in ranking.redrawn(cell, redraws)]
    reach_draws, within_draws = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    spent = redraws.totals(cell.sums(cost, np.ones(cell.n)))
    mean_draws = spent[:, 0] / spent[:, 1]
    means = (float(x.mean()) for x in (cost, cell.flops_write, cell.flops_read))
    return Cost(*means, flops, right / cell.n, reach[0], within[0], mean_draws, reach_draws, within_draws)


def flops_saved(
    cost_low: np.ndarray, accuracy_low: np.ndarray, cost_max: np.ndarray, accuracy_max: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs that structure in the stream saves at equal accuracy, over a set of systems.

    The accuracy compared at is the highest that some system reaches in both bands. On each band, the cheapest system
    reaching it is taken; the difference of the two costs is what is saved.

    Args:
        cost_low, cost_max: [M], [M'] mean FLOPs of the systems on each band.
        accuracy_low, accuracy_max: [R, M], [R, M'] accuracies, one row per redraw (or one row for the data).

    Returns:
        FLOPs saved [R] and the accuracy compared at [R].
    """
    common = np.minimum(accuracy_low.max(axis=1), accuracy_max.max(axis=1))
    cheapest = [
        np.where(accuracy >= common[:, None], cost, np.inf).min(axis=1)
        for cost, accuracy in ((cost_low, accuracy_low), (cost_max, accuracy_max))
    ]
    return cheapest[1] - cheapest[0], common
