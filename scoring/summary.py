"""`score(table)`: every metric, curve and cost of a response table, and the rows they are saved as.

Use:
    scores = score(read_tables("eval/responses.parquet"))
    scores.rows()                                            # long table: one row per metric, slice and cell
    scores.value("capacity", system="mine", L=128)           # one estimate with its interval
    scores.frontier(band="low", L=4096, budget=10_000e6)     # who holds the coverage-accuracy frontier
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from scoring.arms import ArmPair, arm_metrics
from scoring.cells import Cell, CellKey, split_cells
from scoring.comparisons import (
    CellScore,
    budget_metric,
    compression,
    group_efficiency,
    group_saving,
    groups,
    learned,
)
from scoring.efficiency import cell_cost
from scoring.frontier import PAPER_BUDGETS, Contender, Frontier, cost_frontier, cost_support, coverage_frontier
from scoring.metrics import count_metrics
from scoring.selective import selective_metrics
from scoring.statistics import Estimate, Redraws, estimate
from scoring.storage import sources
from scoring.table import TableLike, validate

ROW_COLUMNS = (
    "system",
    "architecture",
    "width",
    "task",
    "split",
    "query_set",
    "band",
    "L",
    "arm",
    "metric",
    "slice",
    "value",
    "low",
    "high",
    "n",
    "streams",
    "note",
)


@dataclass(frozen=True)
class Settings:
    """What is computed. The defaults are the paper's where it states a value.

    Attributes:
        redraws: bootstrap redraws of streams.
        selectivity_redraws: the same for the payoff arms (paper, B.8: 4,000).
        selective_targets: accuracies for the coverage at a target accuracy.
        risk_coverages: coverages for the risk at a coverage.
        accuracy_targets: accuracies over all questions for the smallest FLOPs reaching them.
        budgets: FLOPs per answer, inclusive (paper, C.3: 1,750, 10,000 and 30,000 MFLOPs).
        base_band: the incompressible band: capacity is measured on it, the other bands are compared with it.
        queries: questions that a stream serves; the write is shared among them (paper: 1).
        reference: architecture of the solver that a system has to beat to count as having learned.
        margin: by how much accuracy.
        errors: "raise" or "abstain", for questions that ended in an error.
    """

    redraws: int = 1000
    selectivity_redraws: int = 4000
    selective_targets: tuple[float, ...] = (0.9, 0.95, 0.99)
    risk_coverages: tuple[float, ...] = (0.5, 0.8)
    accuracy_targets: tuple[float, ...] = (0.75, 0.9)
    budgets: tuple[float, ...] = PAPER_BUDGETS
    base_band: str = "max"
    queries: int = 1
    reference: str = "hist"
    margin: float = 0.05
    errors: str = "raise"

    def __post_init__(self) -> None:
        shares = (*self.selective_targets, *self.risk_coverages, *self.accuracy_targets)
        if bad := [s for s in shares if not 0 < s <= 1]:
            raise ValueError(f"target {bad[0]}: accuracies and coverages are shares above 0 and up to 1")
        if bad := [b for b in self.budgets if not b > 0]:
            raise ValueError(f"budget {bad[0]}: FLOPs budgets are positive")
        if self.queries < 1:
            raise ValueError(f"queries={self.queries}: a stream serves at least one question")
        if self.redraws < 1 or self.selectivity_redraws < 1:
            raise ValueError("at least one bootstrap redraw is needed")


@dataclass(frozen=True)
class CostFrontier:
    """The M systems of known cost, for one set of questions.

    Attributes:
        flops: [M] mean FLOPs per answer.
        on: bool [M], whether no other system beats this one on both cost and accuracy.
        support: [M] share of redraws in which it is on the frontier.
    """

    cells: tuple[CellScore, ...]
    flops: np.ndarray
    on: np.ndarray
    support: np.ndarray


class Joint(NamedTuple):
    """Estimates that need more than one cell.

    The key's `system` is empty for a group of systems (then `architecture` None means all), its `L` is None where
    lengths are pooled, and its `arm` is "A,B" for a system told about both payoff arms.
    """

    key: CellKey
    architecture: str | None
    width: int | None
    estimates: dict[str, Estimate]


@dataclass(frozen=True)
class Scores:
    """The result of `score`.

    Attributes:
        cells: one entry per system and kind of question.
        joint: estimates that need several cells.
        provenance: files, seeds and code versions behind the table.
    """

    cells: tuple[CellScore, ...]
    joint: tuple[Joint, ...]
    settings: Settings
    provenance: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """The long table (`ROW_COLUMNS`): one row per cell, metric and slice."""
        entries = [(c.key, c.architecture, c.width, c.estimates) for c in self.cells]
        entries += [(j.key, j.architecture, j.width, {(m, ""): e for m, e in j.estimates.items()}) for j in self.joint]
        rows = []
        for key, architecture, width, found in entries:
            about = key._asdict() | {"system": key.system or None, "architecture": architecture, "width": width}
            for (metric, part), e in found.items():
                row = {**about, "metric": metric, "slice": part, **asdict(e)}
                rows.append({name: row[name] for name in ROW_COLUMNS})
        return rows

    def value(self, metric: str, part: str = "", **where: Any) -> Estimate:
        """The one estimate of `metric` whose row matches `where`; `part` is its slice, e.g. "candidate_length=4".

        Raises:
            KeyError: no row or several rows match.
        """
        wanted = {"metric": metric, "slice": part, **where}
        found = [r for r in self.rows() if all(r[k] == v for k, v in wanted.items())]
        if len(found) != 1:
            raise KeyError(f"{len(found)} rows match {wanted}; name system, band, L, query_set, ... until one is left")
        return Estimate(*(found[0][k] for k in ("value", "low", "high", "n", "streams", "note")))

    def questions(self) -> list[CellKey]:
        """The kinds of question in the table, sorted; `system` is empty in these keys."""
        keys = {c.key._replace(system="") for c in self.cells}
        return sorted(keys, key=lambda k: (k.task, k.split, k.query_set, k.band, k.L, k.arm or ""))

    def at(self, references: bool = True, **where: Any) -> list[CellScore]:
        """Cells whose key matches `where`, with or without reference solvers."""
        cells = [c for c in self.cells if all(getattr(c.key, k) == v for k, v in where.items())]
        return [c for c in cells if references or not c.is_reference]

    def frontier(self, budget: float | None = None, **where: Any) -> Frontier:
        """`frontier_of` the cells matching `where`, reference solvers left out.

        Raises:
            ValueError: `where` leaves several kinds of question.
        """
        return frontier_of(self._one_kind(where), budget)

    def cost_frontier(self, **where: Any) -> CostFrontier:
        """`cost_frontier_of` the cells matching `where`, reference solvers left out; same error as `frontier`."""
        return cost_frontier_of(self._one_kind(where))

    def _one_kind(self, where: dict[str, Any]) -> list[CellScore]:
        cells = self.at(references=False, **where)
        kinds = {c.key._replace(system="") for c in cells}
        if len(kinds) > 1:
            differing = [f for f in CellKey._fields if len({getattr(k, f) for k in kinds}) > 1]
            raise ValueError(f"a frontier needs one kind of question; choose one {' and one '.join(differing)}")
        return cells


def frontier_of(cells: Sequence[CellScore], budget: float | None = None) -> Frontier:
    """The coverage-accuracy frontier of the systems whose mean FLOPs per answer are within the budget."""
    return coverage_frontier([Contender(c.system, c.flops, c.curve) for c in cells if c.curve is not None], budget)


def cost_frontier_of(cells: Sequence[CellScore]) -> CostFrontier:
    """The accuracy-against-FLOPs frontier of the systems whose cost is known."""
    priced = tuple(c for c in cells if c.cost is not None)
    flops = np.array([c.flops for c in priced])
    on = np.zeros(len(priced), bool)
    if not priced:
        return CostFrontier((), flops, on, flops)
    on[cost_frontier(flops, np.array([c.accuracy for c in priced]))] = True
    return CostFrontier(priced, flops, on, cost_support(flops, np.stack([c.accuracy_draws for c in priced], axis=1)))


def score(table: TableLike, settings: Settings | None = None) -> Scores:
    """Score a response table.

    Args:
        table: from `read_tables`, or anything that `validate` accepts.

    Raises:
        TableError: the table is malformed, or holds errors instead of answers (see `Settings.errors`).
        ValueError: the two payoff arms of a system were asked different questions.
    """
    settings = settings or Settings()
    table = validate(table) if not isinstance(table, pa.Table) or not sources(table) else table
    cells, pairs = [], {}
    told: dict[CellKey, dict[str, Cell]] = {}
    for cell in split_cells(table, settings.errors):
        cells.append(_score_cell(cell, settings))
        if cell.key.arm:
            told.setdefault(cell.key._replace(arm="A,B"), {})[cell.key.arm] = cell
        else:
            pairs[cell.key] = ArmPair.by_threshold(cell)
    pairs |= {key: ArmPair.told(arms["A"], arms["B"]) for key, arms in told.items() if len(arms) == 2}
    about = {c.system: (c.architecture, c.width) for c in cells}
    found = [*_arm_estimates(pairs, settings), *compression(cells, settings.reference, settings.base_band)]
    found += learned(cells, settings.reference, settings.margin)
    joint = [Joint(key, *about[key.system], estimates) for key, estimates in found]
    return Scores(tuple(cells), (*joint, *_group_estimates(cells, settings)), settings, _provenance(table))


def _score_cell(cell: Cell, settings: Settings) -> CellScore:
    redraws = Redraws(cell.streams, settings.redraws, cell.key.questions)
    estimates, accuracy_draws = count_metrics(cell, redraws)
    selective, curve = selective_metrics(cell, redraws, settings.selective_targets, settings.risk_coverages)
    estimates |= {(name, ""): e for name, e in selective.items()}
    if cell.key.band == settings.base_band:
        estimates["capacity", ""] = estimates["accuracy", ""]
    cost = cell_cost(cell, redraws, settings.accuracy_targets, settings.budgets, settings.queries)
    size = (cell.n, cell.streams)
    names = [f"flops_to_accuracy_{t:.2f}" for t in settings.accuracy_targets]
    names += [budget_metric(b) for b in settings.budgets]
    if cost is None:
        estimates |= {(n, ""): Estimate(None, None, None, *size, note="FLOPs not known") for n in ("flops", *names)}
    else:
        estimates["flops", ""] = estimate(cost.mean, cost.mean_draws, *size)
        values = np.concatenate([cost.reach, cost.within])
        draws = np.concatenate([cost.reach_draws, cost.within_draws], axis=1)
        notes = ["accuracy not reached"] * len(cost.reach) + ["costs more than the budget"] * len(cost.within)
        for i, name in enumerate(names):
            estimates[name, ""] = estimate(values[i], draws[:, i], *size, notes[i])
    key = cell.key
    return CellScore(key, cell.architecture, cell.width, cell.options, *size, estimates, accuracy_draws, curve, cost)


def _arm_estimates(
    pairs: dict[CellKey, ArmPair | None], settings: Settings
) -> Iterator[tuple[CellKey, dict[str, Estimate]]]:
    """Arm metrics of each cell, and with its lengths pooled as in the paper's Table 10 (`L` None)."""
    lengths: dict[CellKey, list[ArmPair]] = {}
    for key, pair in pairs.items():
        yield key, arm_metrics(pair, key.questions, settings.selectivity_redraws)
        if pair is not None:
            lengths.setdefault(key._replace(L=None), []).append(pair)
    for key, several in lengths.items():
        if len(several) > 1:
            yield key, arm_metrics(ArmPair.pooled(several), key.questions, settings.selectivity_redraws)


def _group_estimates(cells: Sequence[CellScore], settings: Settings) -> Iterator[Joint]:
    """Efficiency of each architecture (all its widths) and of all systems; FLOPs saved on the structured bands."""
    by_group = groups(cells)
    for (key, architecture), members in by_group.items():
        found = group_efficiency(members, settings.accuracy_targets, settings.budgets)
        base = by_group.get((key._replace(band=settings.base_band), architecture))
        if key.band != settings.base_band and base:
            found |= group_saving(members, base)
        yield Joint(key, architecture, None, found)


def _provenance(table: pa.Table) -> dict[str, Any]:
    def distinct(name: str) -> list[Any]:
        return sorted(x for x in table[name].unique().to_pylist() if x is not None)

    return {
        "sources": sources(table),
        "rows": table.num_rows,
        "systems": distinct("system"),
        "seeds": distinct("seed"),
        "code_versions": distinct("code_version"),
    }
