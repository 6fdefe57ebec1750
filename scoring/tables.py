"""The ECC table: one row per system, one column per metric and band, each value with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scoring.comparisons import CellScore
from scoring.definitions import definition, title
from scoring.looks import labels
from scoring.statistics import Estimate
from scoring.subjects import Subject, bands_of, mflops
from scoring.summary import Scores


@dataclass(frozen=True)
class EccColumn:
    """A metric on one band; `main` columns are also in the static figure."""

    metric: str
    band: str
    main: bool

    @property
    def unit(self) -> str:
        return definition(self.metric).unit

    @property
    def better(self) -> str:
        return definition(self.metric).better

    @property
    def head(self) -> str:
        """Column head: the metric's readable name and its band."""
        return title(self.metric) if self.metric in ("capacity", "flops") else f"{title(self.metric)}, {self.band}"

    @property
    def short(self) -> str:
        """The head broken into short lines."""
        lines = [""]
        for word in self.head.split():
            if len(lines[-1]) + len(word) > 13:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".strip()
        return "\n".join(lines)


@dataclass(frozen=True)
class EccRow:
    """A system's values, in the order of the columns; None where the metric was not computed."""

    cell: CellScore
    label: str
    values: tuple[Estimate | None, ...]


def ecc_rows(scores: Scores, subject: Subject, length: int) -> tuple[list[EccColumn], list[EccRow]]:
    """Columns and rows at one length; systems by architecture and width, reference solvers last."""
    cells = [c for c in subject.cells(scores) if c.length == length]
    bands = bands_of(scores, cells)
    by_system: dict[str, dict[str, CellScore]] = {}
    for cell in sorted(cells, key=lambda c: c.is_reference):
        by_system.setdefault(cell.system, {})[cell.band] = cell
    found = {(c.system, c.band): estimates_of(scores, c) for c in cells}
    columns = [c for c in _columns(scores, bands) if _has_values(c, found)]
    names = labels(cells)
    rows = [
        EccRow(
            next(iter(of.values())),
            names[system],
            tuple(found.get((system, c.band), {}).get(c.metric) for c in columns),
        )
        for system, of in by_system.items()
    ]
    return columns, rows


def _has_values(column: EccColumn, found: dict[tuple[str, str], dict[str, Estimate]]) -> bool:
    """Whether any system has a number in this column; a column of dashes says nothing."""
    estimates = (of.get(column.metric) for (_, band), of in found.items() if band == column.band)
    return any(e is not None and e.value is not None for e in estimates)


def estimates_of(scores: Scores, cell: CellScore) -> dict[str, Estimate]:
    """Every estimate of a cell as a whole, those from comparisons and payoff arms included."""
    found = {metric: e for (metric, part), e in cell.estimates.items() if not part}
    for joint in scores.joint:
        if joint.key in (cell.key, cell.key._replace(arm="A,B")):
            found |= joint.estimates
    return found


ARM_COLUMNS = (
    "coverage_arm_a", "coverage_arm_b", "responsiveness", "selectivity", "selectivity_fisher_p", "selectivity_p_le_0",
    "payoff_a_under_b", "payoff_b", "payoff_gain",
)  # fmt: skip


def _columns(scores: Scores, bands: Sequence[str]) -> list[EccColumn]:
    """Main columns first; within these and the others, from capacity over efficiency and compression to calibration."""
    structured = [b for b in bands if b != scores.settings.base_band]
    base = [b for b in bands if b not in structured] or structured
    target = min(scores.settings.selective_targets, key=lambda t: abs(t - 0.95), default=None)
    columns = [EccColumn("capacity", b, True) for b in bands if b not in structured]
    columns += [EccColumn("accuracy", b, True) for b in structured]
    columns += [EccColumn("recall", b, False) for b in bands] + [EccColumn("specificity", b, False) for b in bands]
    columns += [EccColumn("order_probe", b, False) for b in bands]
    columns += [EccColumn("accuracy_over_reference", b, False) for b in base]
    columns += [EccColumn("flops", base[0], True)] if base else []
    columns += [EccColumn("compression", b, True) for b in structured]
    columns += [EccColumn("compression_over_reference", b, True) for b in structured]
    columns += [EccColumn("aurc", b, b in base) for b in reversed(bands)]
    if target is not None:
        columns += [EccColumn(f"coverage_at_accuracy_{target:.2f}", b, b in base) for b in reversed(bands)]
    columns += [EccColumn("ece", b, b in base) for b in base] + [EccColumn("brier", b, False) for b in base]
    for metric in ARM_COLUMNS:
        columns += [EccColumn(metric, b, metric in ("responsiveness", "selectivity", "payoff_b")) for b in base]
    return sorted(columns, key=lambda c: not c.main)


def show(value: float, unit: str) -> str:
    """A value as people read it: shares in percent, differences in percentage points."""
    if unit == "share":
        return f"{100 * value:.1f}%"
    if unit == "difference":
        return f"{100 * value:+.1f} pp"
    if unit == "FLOPs":
        return mflops(value)
    if unit == "points":
        return f"{value:+.2f}"
    if unit == "yes/no":
        return "yes" if value else "no"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def show_interval(e: Estimate, unit: str) -> str:
    """The interval in the unit of `show`, without repeating the unit; empty where there is none or it has no width."""
    if e.value is None or (e.low is None and e.high is None) or e.low == e.high:
        return ""
    if unit == "yes/no":
        return ""
    ends = ["unbounded" if x is None else show(x, unit) for x in (e.low, e.high)]
    for suffix in ("%", " pp", " MFLOPs", " TFLOPs"):
        if all(x.endswith(suffix) for x in ends):
            ends = [x.removesuffix(suffix) for x in ends]
    return f"[{ends[0]}, {ends[1]}]"
