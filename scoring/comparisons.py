"""Numbers that need more than one cell: compression, the margin over a reference solver, groups of systems.

Redraws of cells with the same questions are paired (see `statistics.Redraws`), redraws of different bands are
independent; so every difference here is a difference of draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from scoring.cells import CellKey
from scoring.efficiency import Cost, flops_saved
from scoring.selective import Curve
from scoring.statistics import Estimate, estimate

REFERENCES = ("coin", "hist", "hist2", "set1", "set2", "set3", "exact")
CEILING = 0.95


@dataclass(frozen=True)
class CellScore:
    """Everything computed from one cell.

    Attributes:
        estimates: by (metric, slice).
        accuracy_draws: [R] redraws of the accuracy.
        curve: coverage-accuracy curve, None without confidences.
        cost: None when FLOPs are not known.
    """

    key: CellKey
    architecture: str
    width: int | None
    options: int
    n: int
    streams: int
    estimates: dict[tuple[str, str], Estimate]
    accuracy_draws: np.ndarray = field(repr=False)
    curve: Curve | None = field(repr=False)
    cost: Cost | None = field(repr=False)

    @property
    def system(self) -> str:
        return self.key.system

    @property
    def band(self) -> str:
        return self.key.band

    @property
    def length(self) -> int:
        return self.key.L

    @property
    def accuracy(self) -> float:
        return self.estimates["accuracy", ""].value

    @property
    def chance(self) -> float:
        return 1 / self.options

    @property
    def flops(self) -> float | None:
        """Mean FLOPs per answer."""
        return None if self.cost is None else self.cost.mean

    @property
    def is_reference(self) -> bool:
        """A solver that learns nothing, shown beside the systems and never on a frontier."""
        return self.architecture in REFERENCES


def compression(
    cells: Sequence[CellScore], reference: str, base_band: str
) -> Iterator[tuple[CellKey, dict[str, Estimate]]]:
    """Accuracy on each other band minus accuracy on the incompressible one, at the same length.

    Uniform negatives are easy on regular streams, so part of such a gap needs no memory of order; the same gap for the
    reference solver says how much (`compression_over_reference` subtracts it).
    """
    by_key, solvers = {c.key: c for c in cells}, _solvers(cells, reference)
    for cell in cells:
        if cell.band == base_band:
            continue
        base = by_key.get(cell.key._replace(band=base_band))
        if base is None:
            missing = Estimate(
                None, n=cell.n, streams=cell.streams, note=f"no cell of band {base_band!r} at this length"
            )
            yield cell.key, {"compression": missing, "compression_over_reference": missing}
            continue
        size = (cell.n + base.n, min(cell.streams, base.streams))
        gap = estimate(cell.accuracy - base.accuracy, cell.accuracy_draws - base.accuracy_draws, *size)
        found = {"compression": gap}
        if min(cell.accuracy, base.accuracy) >= CEILING:
            found["compression"] = gap.noted(f"ceiling: both accuracies are at least {CEILING}")
        low, high = (solvers.get(c.key.questions) for c in (cell, base))
        if not cell.is_reference and low is not None and high is not None:
            value = cell.accuracy - base.accuracy - (low.accuracy - high.accuracy)
            draws = cell.accuracy_draws - base.accuracy_draws - (low.accuracy_draws - high.accuracy_draws)
            found["compression_over_reference"] = estimate(value, draws, *size)
        yield cell.key, found


def learned(cells: Sequence[CellScore], reference: str, margin: float) -> Iterator[tuple[CellKey, dict[str, Estimate]]]:
    """Whether a system beats the reference solver: by at least `margin` in accuracy, with an interval above 0."""
    solvers = _solvers(cells, reference)
    for cell in cells:
        solver = solvers.get(cell.key.questions)
        if solver is None or cell.is_reference:
            continue
        size = (cell.n, cell.streams)
        over = estimate(cell.accuracy - solver.accuracy, cell.accuracy_draws - solver.accuracy_draws, *size)
        verdict = Estimate(None, None, None, *size, note=over.note)
        if over.low is not None:
            # 0.05 as a difference of shares is a little less than 0.05.
            verdict = Estimate(float(over.value >= margin - 1e-12 and over.low > 0), None, None, *size)
        yield cell.key, {"accuracy_over_reference": over, "learned": verdict}


def groups(cells: Iterable[CellScore]) -> dict[tuple[CellKey, str | None], list[CellScore]]:
    """Cells asked the same questions, by architecture (its widths together) and, under None, all together.

    Reference solvers and systems of unknown cost are left out. The key's `system` is empty.
    """
    found: dict[tuple[CellKey, str | None], list[CellScore]] = {}
    for cell in cells:
        if cell.cost is not None and not cell.is_reference:
            for architecture in (cell.architecture, None):
                found.setdefault((cell.key._replace(system=""), architecture), []).append(cell)
    return found


def group_efficiency(
    members: Sequence[CellScore], targets: tuple[float, ...], budgets: tuple[float, ...]
) -> dict[str, Estimate]:
    """The cheapest member that reaches each target accuracy, the best accuracy within each budget."""
    costs = [m.cost for m in members]
    size = (sum(m.n for m in members), min(m.streams for m in members))
    found = {}
    for i, target in enumerate(targets):
        values, draws = _stack(costs, lambda c, i=i: c.reach[i], lambda c, i=i: c.reach_draws[:, i])
        note = f"no system reaches {target:.2f}"
        found[f"flops_to_accuracy_{target:.2f}"] = estimate(values.min(), draws.min(axis=0), *size, note)
    for i, budget in enumerate(budgets):
        values, draws = _stack(costs, lambda c, i=i: c.within[i], lambda c, i=i: c.within_draws[:, i])
        fits = ~np.isnan(values)
        best = (values[fits].max(), draws[fits].max(axis=0)) if fits.any() else (np.nan, draws[0])
        found[budget_metric(budget)] = estimate(*best, *size, "no system within the budget")
    return found


def group_saving(low: Sequence[CellScore], base: Sequence[CellScore]) -> dict[str, Estimate]:
    """FLOPs that structure saves a group of systems at equal accuracy; see `efficiency.flops_saved`."""
    size = (sum(m.n for m in (*low, *base)), min(m.streams for m in (*low, *base)))
    if len(low) < 2 or len(base) < 2:
        note = "one system of one cost has nothing to save; compare several widths"
        return {"flops_saved": Estimate(None, None, None, *size, note=note)}
    sides = [(np.array([m.flops for m in side]), side) for side in (low, base)]
    point, common = flops_saved(*(x for f, side in sides for x in (f, np.array([[m.accuracy for m in side]]))))
    draws, _ = flops_saved(*(x for f, side in sides for x in (f, np.stack([m.accuracy_draws for m in side], axis=1))))
    return {"flops_saved": estimate(point[0], draws, *size).noted(f"at accuracy {common[0]:.3f}")}


def budget_metric(budget: float) -> str:
    """Name of the accuracy within a budget in FLOPs, e.g. accuracy_within_1750_mflops."""
    return f"accuracy_within_{budget / 1e6:g}_mflops"


def _solvers(cells: Sequence[CellScore], reference: str) -> dict[str, CellScore]:
    """The reference solver's cell for each kind of question."""
    return {c.key.questions: c for c in cells if c.architecture == reference}


def _stack(
    costs: Sequence[Cost], value: Callable[[Cost], float], draws: Callable[[Cost], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    return np.array([value(c) for c in costs]), np.stack([draws(c) for c in costs])
