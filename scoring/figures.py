"""Static figures, one function per figure, from `Scores` to a matplotlib `Figure`.

    save_figures(scores, "eval/figures")        # every figure for every query set, as PNG and SVG

All show 95% intervals over streams and the chance line; colours, dashes and markers come from `looks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

from scoring.comparisons import CellScore
from scoring.looks import labels, look, marker, spread
from scoring.selective import GRID
from scoring.statistics import Estimate
from scoring.subjects import Subject, band_title, bands_of, distinct_budgets, mflops, subjects
from scoring.summary import Scores, cost_frontier_of, frontier_of
from scoring.tables import ecc_rows, show, show_interval

STEADY = 0.05
"""Coverage from which a curve sets its axis: below, it is about a handful of answers."""

FEWEST_IN_GROUP = 10
_LABEL_GAP = 0.035  # of the axis height, between labels of one column
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "scoring",
}


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the style above, whatever the caller's matplotlib settings."""

    @wraps(draw)
    def styled(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def coverage_accuracy_figure(scores: Scores, subject: Subject) -> Figure:
    """Accuracy among answers against coverage, one panel per length (rows) and band (columns)."""
    cells = [c for c in subject.cells(scores) if c.curve is not None and not c.is_reference]
    bands, lengths = bands_of(scores, cells), sorted({c.length for c in cells})
    figure, axes = _panels(len(lengths), len(bands), subject)
    for row, length in zip(axes, lengths, strict=True):
        for axis, band in zip(row, bands, strict=True):
            shown = [c for c in cells if c.band == band and c.length == length]
            for cell in shown:
                curve = cell.curve
                coverage, accuracy = _with_start(curve.coverage, curve.accuracy)
                spots = [*np.searchsorted(coverage, np.arange(0.2, coverage[-1], 0.2)), len(coverage) - 1]
                axis.plot(coverage, accuracy, **_line(cell), markevery=spots)
                axis.fill_between(GRID, curve.low, curve.high, **_band(cell))
            _accuracy_axis(axis, shown)
            _coverage_axis(axis, 1.02)
            axis.set_title(f"{band_title(band)}, L = {length}")
        row[0].set_ylabel("accuracy among answers")
    return _with_legend(figure, cells)


@_styled
def length_figure(scores: Scores, subject: Subject) -> Figure:
    """Accuracy over all questions against stream length, one panel per band, reference solvers in grey."""
    cells = subject.cells(scores)
    bands = bands_of(scores, cells)
    figure, axes = _panels(1, len(bands), subject)
    for axis, band in zip(axes[0], bands, strict=True):
        shown = [c for c in cells if c.band == band]
        for system in sorted({c.system for c in shown}):
            line = sorted((c for c in shown if c.system == system), key=lambda c: c.length)
            lengths = [c.length for c in line]
            axis.plot(lengths, [c.accuracy for c in line], **_line(line[0]))
            if not line[0].is_reference:
                low, high = np.array([_ends(c.estimates["accuracy", ""]) for c in line]).T
                axis.fill_between(lengths, low, high, **_band(line[0]))
        _accuracy_axis(axis, shown)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(sorted({c.length for c in shown})))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("stream length L")
        axis.set_title(band_title(band))
    axes[0][0].set_ylabel("accuracy (abstentions are wrong)")
    return _with_legend(figure, cells)


@_styled
def frontier_figure(scores: Scores, subject: Subject, length: int) -> Figure:
    """Coverage-accuracy frontiers under the FLOPs budgets at one length, one panel per band (paper, Figures 8 and 10).

    A budget that admits the same systems as a smaller one is not drawn again. The band is that of the widest frontier.
    """
    cells = [c for c in subject.cells(scores) if c.length == length and not c.is_reference and c.curve is not None]
    bands = bands_of(scores, cells)
    figure, axes = _panels(1, len(bands), subject, height=4.2)
    for axis, band in zip(axes[0], bands, strict=True):
        shown = [c for c in cells if c.band == band]
        for cell in shown:
            faint = {"color": look(cell.architecture).colour, "lw": 0.6, "alpha": 0.35}
            alone = {"marker": marker(cell.width)} if len(cell.curve.coverage) == 1 else {}
            axis.plot(cell.curve.coverage, cell.curve.accuracy, **faint, **alone)
        by_system = {c.system: c for c in shown}
        budgets = distinct_budgets([c.flops for c in shown], scores.settings.budgets)
        ends = []
        for i, budget in enumerate(budgets):
            frontier = frontier_of(shown, budget)
            if not frontier.points:
                continue
            coverage = np.array([p.coverage for p in frontier.points])
            accuracy = np.array([p.accuracy for p in frontier.points])
            grey = str(0.15 + 0.25 * (len(budgets) - 1 - i))
            axis.plot(coverage, accuracy, color=grey, lw=1, drawstyle="steps-post", zorder=3)
            if i == len(budgets) - 1:
                axis.fill_between(GRID, frontier.low, frontier.high, color="0.5", alpha=0.15, lw=0)
            spots = np.unique(np.searchsorted(-coverage, -np.arange(1, 0, -0.05)))
            for point in (frontier.points[j] for j in spots if j < len(coverage)):
                axis.plot(point.coverage, point.accuracy, **_line(by_system[point.systems[0]], zorder=4))
            ends.append((coverage[0], accuracy[0], "no budget" if budget is None else f"≤ {mflops(budget)}"))
        _accuracy_axis(axis, shown)
        _coverage_axis(axis, 1.28)
        heights = spread([y for _, y, _ in ends], _LABEL_GAP * np.diff(axis.get_ylim())[0])
        for (x, _, text), y in zip(ends, heights, strict=True):
            _annotate(axis, text, x, y)
        axis.set_title(f"{band_title(band)}, L = {length}")
    axes[0][0].set_ylabel("accuracy among answers")
    return _with_legend(figure, cells)


@_styled
def cost_figure(scores: Scores, subject: Subject, length: int) -> Figure:
    """Accuracy over all questions against FLOPs per answer at one length, with the frontier, one panel per band.

    Systems on the frontier are filled.
    """
    cells = [c for c in subject.cells(scores) if c.length == length and c.cost is not None and not c.is_reference]
    bands = bands_of(scores, cells)
    figure, axes = _panels(1, len(bands), subject, height=4)
    names = labels(cells)
    for axis, band in zip(axes[0], bands, strict=True):
        frontier = cost_frontier_of([c for c in cells if c.band == band])
        for cell, flops, on in zip(frontier.cells, frontier.flops, frontier.on, strict=True):
            line = _line(cell, ms=6, linestyle="none")
            axis.plot([flops] * 2, _ends(cell.estimates["accuracy", ""]), color=line["color"], lw=1)
            axis.plot(flops, cell.accuracy, **line, mfc=line["color"] if on else "white")
        on = np.flatnonzero(frontier.on)
        on = on[np.argsort(frontier.flops[on])]
        heights = [frontier.cells[i].accuracy for i in on]
        reach = np.append(frontier.flops[on], frontier.flops.max())
        axis.plot(reach, [*heights, heights[-1]], color="0.3", lw=1, drawstyle="steps-post", zorder=1)
        _accuracy_axis(axis, frontier.cells)
        _flops_axis(axis, frontier.flops)
        axis.set_xlabel(f"MFLOPs per answer, {_queries(scores.settings.queries)}")
        axis.set_title(f"{band_title(band)}, L = {length}")
        # Systems of similar cost share a column of labels; within it the labels are moved apart.
        columns: dict[int, list[int]] = {}
        for i, flops in enumerate(frontier.flops):
            columns.setdefault(round(np.log2(max(flops, 1))), []).append(i)
        for column in columns.values():
            gap = _LABEL_GAP * np.diff(axis.get_ylim())[0]
            for i, y in zip(column, spread([frontier.cells[i].accuracy for i in column], gap), strict=True):
                _annotate(axis, names[frontier.cells[i].system], frontier.flops[i], y)
    axes[0][0].set_ylabel("accuracy (abstentions are wrong)")
    return figure


@_styled
def age_figure(scores: Scores, subject: Subject, length: int) -> Figure:
    """Recall by age of the latest match and accuracy by candidate length, one row per band.

    Groups of fewer than `FEWEST_IN_GROUP` questions are not drawn: their intervals would hide the others.
    """
    cells = [c for c in subject.cells(scores) if c.length == length and not c.is_reference]
    bands = bands_of(scores, cells)
    figure, axes = _panels(len(bands), 2, subject)
    kinds = (("recall", "age", "age of the latest match, steps"), ("accuracy", "candidate_length", "candidate length"))
    for row, band in zip(axes, bands, strict=True):
        shown = [c for c in cells if c.band == band]
        for axis, (metric, part, text) in zip(row, kinds, strict=True):
            groups = [_by_group(c, metric, part) for c in shown]
            order = sorted({s for found in groups for s in found}, key=lambda s: int(s.split("-")[0]))
            for cell, found in zip(shown, groups, strict=True):
                if found:
                    x = [order.index(s) for s in found]
                    axis.plot(x, [e.value for e in found.values()], **_line(cell))
                    axis.fill_between(x, *np.array([_ends(e) for e in found.values()]).T, **_band(cell))
            axis.set_xticks(range(len(order)), order, fontsize=7)
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.set_ylim(0, 1.03)
            axis.set_xlabel(text)
            axis.set_ylabel(metric)
            axis.set_title(f"{band_title(band)}, L = {length}")
    return _with_legend(figure, cells)


@_styled
def ecc_figure(scores: Scores, subject: Subject, length: int) -> Figure:
    """The main columns of the ECC table at one length, each value with its interval below."""
    columns, rows = ecc_rows(scores, subject, length)
    keep = [i for i, column in enumerate(columns) if column.main]
    figure = Figure(figsize=(0.95 * len(keep) + 1.8, 0.36 * len(rows) + 1.0), layout="constrained")
    axis = figure.subplots()
    axis.axis("off")
    text = [[row.label, *(_cell_text(row.values[i], columns[i].unit) for i in keep)] for row in rows]
    heads = ["system", *(columns[i].short for i in keep)]
    table = axis.table(text, colLabels=heads, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7.5)
    table.scale(1, 1.9)
    for (i, j), cell in table.get_celld().items():
        cell.set_linewidth(0.3)
        cell.set_edgecolor("#bbbbbb")
        cell.set_text_props(weight="bold" if i == 0 else "normal", ha="left" if j == 0 else "center")
    table.auto_set_column_width(list(range(len(heads))))
    figure.suptitle(f"{subject.title}, L = {length}", color="#555555")
    return figure


def save_figures(scores: Scores, folder: str | Path, formats: Iterable[str] = ("png", "svg")) -> list[Path]:
    """Draw every figure for every subject (query set, split, ...) and save it.

    Returns:
        The files, named `<figure>-<subject>[-L<length>].<format>`.
    """
    folder, formats = Path(folder), tuple(formats)
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for name, figure in all_figures(scores):
        for ending in formats:
            path = folder / f"{name}.{ending}"
            # Without dates and versions, equal figures are equal files.
            metadata = {"Date": None} if ending == "svg" else {"Software": None}
            with matplotlib.rc_context(_STYLE):
                figure.savefig(path, dpi=150, metadata=metadata)
            saved.append(path)
    return saved


def all_figures(scores: Scores) -> Iterable[tuple[str, Figure]]:
    """(name, figure) for everything that the table has data for."""
    for subject in subjects(scores):
        systems = [c for c in subject.cells(scores) if not c.is_reference]
        if any(c.curve for c in systems):
            yield f"coverage_accuracy-{subject.slug}", coverage_accuracy_figure(scores, subject)
        yield f"accuracy_length-{subject.slug}", length_figure(scores, subject)
        for length in sorted({c.length for c in systems}):
            here = [c for c in systems if c.length == length]
            suffix = f"{subject.slug}-L{length}"
            if any(c.curve for c in here):
                yield f"frontier-{suffix}", frontier_figure(scores, subject, length)
            if any(c.cost for c in here):
                yield f"cost_accuracy-{suffix}", cost_figure(scores, subject, length)
            if any(part for c in here for _, part in c.estimates):
                yield f"age-{suffix}", age_figure(scores, subject, length)
            yield f"ecc-{suffix}", ecc_figure(scores, subject, length)


def _panels(rows: int, columns: int, subject: Subject, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(4.2 * columns, height * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.suptitle(subject.title, color="#555555")
    return figure, axes


def _line(cell: CellScore, **changes: Any) -> dict[str, Any]:
    style = look(cell.architecture)
    line = {"color": style.colour, "dashes": style.dash or (None, None), "lw": 1.4, "ms": 4.5}
    line |= {"lw": 1, "zorder": 1} if cell.is_reference else {"marker": marker(cell.width)}
    return line | changes


def _band(cell: CellScore) -> dict[str, Any]:
    return {"color": look(cell.architecture).colour, "alpha": 0.13, "lw": 0}


def _by_group(cell: CellScore, metric: str, part: str) -> dict[str, Estimate]:
    """Estimates of a metric by age or candidate length that are worth drawing, by the group's value."""
    found = {
        s.removeprefix(f"{part}="): e for (m, s), e in cell.estimates.items() if m == metric and s.startswith(part)
    }
    return {s: e for s, e in found.items() if e.n >= FEWEST_IN_GROUP}


def _with_legend(figure: Figure, cells: Sequence[CellScore]) -> Figure:
    """Add one legend for all panels, below them: systems by name, then reference solvers."""
    seen = {c.system: c for c in sorted(cells, key=lambda c: (c.is_reference, c.architecture, c.width or 0))}
    names = labels(list(seen.values()))
    handles = [Line2D([], [], **_line(cell)) for cell in seen.values()]
    texts = [names[s] for s in seen]
    columns = _columns_that_fit(texts, figure.get_figwidth())
    figure.set_figheight(figure.get_figheight() + 0.17 * (-(-len(texts) // columns) - 1))
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize=8, handlelength=3)
    return figure


def _columns_that_fit(texts: Sequence[str], width: float) -> int:
    """The most columns of a legend that a figure of so many inches can hold; the legend fills column after column."""
    for columns in range(len(texts), 1, -1):
        rows = -(-len(texts) // columns)
        parts = [texts[i : i + rows] for i in range(0, len(texts), rows)]
        if sum(0.75 + 0.062 * max(map(len, part)) for part in parts) <= width:  # the line, characters of 8 points
            return columns
    return 1


def _annotate(axis: Axes, text: str, x: float, y: float) -> None:
    axis.annotate(text, (x, y), (6, 2), textcoords="offset points", fontsize=7)


def _accuracy_axis(axis: Axes, cells: Sequence[CellScore]) -> None:
    """Percent, from below chance or the lowest curve to 100%, with the chance line."""
    if not cells:  # nobody was asked about this band at this length
        axis.annotate("not asked", (0.5, 0.5), xycoords="axes fraction", ha="center", color="#555555")
        return
    chance = cells[0].chance
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    lines = [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axis.lines]
    lowest = min((y[x >= STEADY].min() for x, y in lines if (x >= STEADY).any()), default=chance)
    axis.set_ylim(max(0, min(lowest, chance) - 0.05), 1.02)
    axis.axhline(chance, color="#555555", lw=0.8, dashes=(2, 2), zorder=0)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axis.annotate("chance", (0.01, chance), (0, 2), **place, fontsize=7, color="#555555")


def _coverage_axis(axis: Axes, right: float) -> None:
    axis.set_xlim(0, right)
    axis.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_xlabel("coverage: share of questions answered")


def _flops_axis(axis: Axes, flops: np.ndarray) -> None:
    """Logarithmic where every cost is positive, with room for labels on the right."""
    if (flops > 0).all():
        axis.set_xscale("log")
        reach = max(flops.max() / flops.min(), 10)
        axis.set_xlim(flops.min() / 1.3, flops.max() * reach**0.45)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:,.12g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _queries(queries: int) -> str:
    return "one question per stream" if queries == 1 else f"{queries} questions per stream"


def _with_start(coverage: np.ndarray, accuracy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeat a single point so that a system with one confidence is a visible line from coverage 0."""
    return (coverage, accuracy) if len(coverage) > 1 else (np.array([0, coverage[0]]), np.repeat(accuracy, 2))


def _ends(e: Estimate) -> tuple[float, float]:
    """Interval ends for drawing; the value itself where there is none."""
    return (e.value if e.low is None else e.low, e.value if e.high is None else e.high)


def _cell_text(e: Estimate | None, unit: str) -> str:
    if e is None or e.value is None:
        return "–"
    return f"{show(e.value, unit)}\n{show_interval(e, unit)}".strip()
