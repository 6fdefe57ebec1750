"""Figures of a study, drawn from its tables alone, so that they can be made again from what is committed.

    overview        accuracy on noise and on regular streams, cost and calibration of every system in one view
    state_bits      accuracy against bits of state per stream symbol, with the limit that no memory passes

Colours and markers are scoring's. Each function takes tables and returns a `Figure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, PercentFormatter

from scoring.looks import look, marker, spread
from scoring.subjects import band_title
from tasks.limit import best_accuracy
from tasks.memories import MEMORIES
from tasks.solvers import SOLVERS

STYLE = {
    "font.size": 8.5, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip
SHOWN = ("hist", "hist2", "set2", "recent64", "bloom256", "counts256")
"""Memories with nothing to learn in the overview; all are in the tables."""
UNLEARNED = "#8a8a8a"
KINDS = {"recent": "last symbols", "bloom": "Bloom filter", "counts": "hashed counts", "set": "gram sets"}


def read(folder: Path, name: str) -> pl.DataFrame:
    """One table of a study.

    Raises:
        FileNotFoundError: it is not there; names the file.
    """
    return pl.read_csv(folder / f"{name}.tsv", separator="\t", infer_schema_length=None)


def is_unlearned(system: str) -> bool:
    """Whether a system of the tables is a memory with nothing to learn."""
    return system in (*SOLVERS, *MEMORIES)


def labels(metrics: pl.DataFrame) -> dict[str, str]:
    """Readable label of every system; with its own name where architecture and width do not tell it apart."""
    found = {}
    for system, architecture, width in metrics.select("system", "architecture", "width").unique().iter_rows():
        kind = next((k for k in ("recent", "bloom", "counts") if system.startswith(k)), None)
        text = f"{KINDS[kind]}, {system.removeprefix(kind)} B" if kind else look(architecture).label
        found[system] = f"{text} D={width}" if width and width != 64 else text
    taken = list(found.values())
    return {s: text if taken.count(text) == 1 else f"{text} ({s})" for s, text in found.items()}


def value_of(metrics: pl.DataFrame, metric: str, query_set: str, band: str, length: int) -> dict[str, tuple]:
    """(value, low, high) of a metric by system; ends that are missing are the value."""
    rows = metrics.filter(
        (pl.col("metric") == metric) & (pl.col("query_set") == query_set) & (pl.col("band") == band)
        & (pl.col("L") == length) & pl.col("value").is_not_null()
    )  # fmt: skip
    columns = rows.select(
        "system", "value", pl.col("low").fill_null(pl.col("value")), pl.col("high").fill_null(pl.col("value"))
    )
    return {system: values for system, *values in columns.iter_rows()}


def ordered(metrics: pl.DataFrame, length: int) -> list[str]:
    """Learned systems from the highest capacity to the lowest, then the memories with nothing to learn."""
    capacity = value_of(metrics, "accuracy", "uniform", "max", length)
    learned = sorted((s for s in capacity if not is_unlearned(s)), key=lambda s: -capacity[s][0])
    return [*learned, *(s for s in SHOWN if s in capacity)]


def overview_figure(metrics: pl.DataFrame, length: int) -> Figure:
    """A row per system, by capacity: accuracy with two kinds of negatives, FLOPs, calibration."""
    systems = ordered(metrics, length)
    names = labels(metrics)
    learned = [s for s in systems if not is_unlearned(s)]
    height = {s: -i - (0.6 if is_unlearned(s) else 0) for i, s in enumerate(systems)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 0.27 * len(systems) + 1.5), layout="constrained")
        axes = figure.subplots(1, 4, sharey=True, width_ratios=(3, 3, 2, 2))
        for axis, query_set in zip(axes, ("uniform", "order"), strict=False):
            _accuracies(axis, metrics, systems, height, query_set, length)
        axes[0].set_title("accuracy, the paper's negatives")
        axes[1].set_title("accuracy, permuted windows")
        cost = value_of(metrics, "flops", "uniform", "max", length)
        for system in (s for s in learned if s in cost):
            axes[2].plot(cost[system][0] / 1e6, height[system], **_dot(metrics, system))
        axes[2].set_xlim(left=0)
        axes[2].set_title("MFLOPs per answer")
        axes[2].set_xlabel("one query per stream")
        for metric, filled in (("aurc", True), ("ece", False)):
            for system, (value, low, high) in value_of(metrics, metric, "uniform", "max", length).items():
                if system in height:
                    _interval(axes[3], value, low, high, height[system], _dot(metrics, system), filled)
        axes[3].set_xlim(left=0)
        axes[3].set_title("errors of confidence, noise")
        axes[3].set_xlabel("● AURC   ○ ECE")
        axes[0].set_yticks([height[s] for s in systems], [names[s] for s in systems])
        for tick, system in zip(axes[0].get_yticklabels(), systems, strict=True):
            tick.set_color("#666666" if is_unlearned(system) else "black")
        for axis in axes:
            axis.tick_params(left=False)
            axis.set_ylim(min(height.values()) - 0.7, 0.7)
        figure.suptitle(f"L = {length}; 95 % intervals over streams, one training run per system", color="#555555")
    return figure


def _accuracies(
    axis: Axes, metrics: pl.DataFrame, systems: Sequence[str], height: dict[str, float], query_set: str, length: int
) -> None:
    """Accuracy on noise (filled) and on regular streams (open), joined by a line: its length is the compression."""
    noise, regular = (value_of(metrics, "accuracy", query_set, band, length) for band in ("max", "low"))
    for system in systems:
        y, style = height[system], _dot(metrics, system)
        if system in noise and system in regular:
            axis.plot([noise[system][0], regular[system][0]], [y, y], color=style["color"], lw=0.8, alpha=0.5)
        for found, filled in ((noise, True), (regular, False)):
            if system in found:
                _interval(axis, *found[system], y, style, filled)
    axis.axvline(0.5, color="0.5", lw=0.8, ls=":")
    axis.set_xlim(0.45, 1.02)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_xlabel("● noise   ○ regular streams   ⋯ chance")


def _dot(metrics: pl.DataFrame, system: str) -> dict[str, object]:
    architecture, width = metrics.filter(pl.col("system") == system).select("architecture", "width").row(0)
    colour = UNLEARNED if is_unlearned(system) else look(architecture).colour
    return {"color": colour, "marker": marker(width) if width else "s", "ms": 5, "linestyle": "none"}


def _interval(axis: Axes, value: float, low: float, high: float, y: float, style: dict, filled: bool) -> None:
    axis.plot([low, high], [y, y], color=style["color"], lw=1.6, alpha=0.6)
    axis.plot(value, y, **style, mfc=style["color"] if filled else "white")


def state_figure(metrics: pl.DataFrame, state: pl.DataFrame, length: int) -> Figure:
    """Accuracy against bits of state per symbol of the stream, a panel per band; the limit holds on noise."""
    bits = {s: b / length for s, b in state.filter(pl.col("L") == length).select("system", "state_bits").iter_rows()}
    names = labels(metrics)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 5.4), layout="constrained")
        for axis, band in zip(figure.subplots(1, 2, sharey=True), ("max", "low"), strict=True):
            found = {s: v for s, v in value_of(metrics, "accuracy", "uniform", band, length).items() if s in bits}
            ends = 0.7 * min(bits[s] for s in found), 3 * max(bits[s] for s in found)
            axis.set_xscale("log", base=2)
            if band == "max":
                grid = np.geomspace(ends[0], 60 * ends[1], 80)
                limit = [best_accuracy(b * length, length) for b in grid]
                axis.plot(grid, limit, color="black", lw=1)
                axis.fill_between(grid, limit, 1.03, color="0.85", lw=0)
            for kind in (*KINDS, ""):
                _unlearned(axis, {s: (bits[s], v) for s, v in found.items() if _kind(s) == kind}, kind)
            learned = sorted((s for s in found if not is_unlearned(s)), key=lambda s: found[s][0])
            for system in learned:
                value, low, high = found[system]
                style = _dot(metrics, system)
                axis.plot([bits[system]] * 2, [low, high], color=style["color"], lw=1.2)
                axis.plot(bits[system], value, **style)
            right = [s for s in learned if bits[s] > 64]
            heights = spread([found[s][0] for s in right], 0.024)
            above = max(0, max(heights, default=0) - 1.01)
            for system, y in zip(right, heights, strict=True):
                _label(axis, names[system], (bits[system], found[system][0]), (0.7 * ends[1], y - above))
            for system in (s for s in learned if bits[s] <= 64):
                _label(axis, names[system], (bits[system], found[system][0]), (1.6 * bits[system], found[system][0]))
            axis.axvline(4, color="0.6", lw=0.8, ls="--")
            axis.axhline(0.5, color="0.5", lw=0.8, ls=":")
            axis.set_xlim(ends[0], ends[1] * 60)
            axis.set_ylim(0.47, 1.03)
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _, end=ends[1]: f"{x:g}" if x < end else ""))
            axis.set_xlabel("bits of state per symbol of the stream (dashed: 4, the whole stream)")
            axis.set_title(f"{band_title(band)}, uniform negatives, L = {length}")
        figure.axes[0].set_ylabel("accuracy")
        handles = [Line2D([], [], color="black", lw=1, label="no memory is above (noise)")]
        handles += [
            Line2D([], [], color=UNLEARNED, marker=m, ls=ls, ms=4, lw=1, label=KINDS[k]) for k, (m, ls) in LINES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


LINES = {"recent": ("v", ":"), "bloom": ("D", "-"), "counts": ("s", "--"), "set": ("P", "-.")}


def _kind(system: str) -> str | None:
    """Family of a memory with nothing to learn, "" for a single one, None for a learned system."""
    if not is_unlearned(system) or system == "coin":
        return None
    return next((kind for kind in KINDS if system.startswith(kind)), "")


def _unlearned(axis: Axes, points: dict[str, tuple], kind: str) -> None:
    """A family of memories as a line over its sizes; single ones by name."""
    if kind:
        ordered_points = sorted(points.values())
        shape, dash = LINES[kind]
        x, y = [b for b, _ in ordered_points], [v[0] for _, v in ordered_points]
        axis.plot(x, y, color=UNLEARNED, marker=shape, ls=dash, lw=1, ms=4)
        return
    for system, (bits, value) in points.items():
        axis.plot(bits, value[0], color=UNLEARNED, marker="x", ms=5)
        axis.annotate(system, (bits, value[0]), (3, -9), textcoords="offset points", color="#666666", fontsize=7)


def _label(axis: Axes, text: str, point: tuple[float, float], at: tuple[float, float]) -> None:
    """A label that stands at `at`, free of others, with a line to its point."""
    axis.annotate(
        text, point, at, fontsize=7, va="center",
        arrowprops={"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 3},
    )  # fmt: skip


def save_overview(tables: Path, folder: Path) -> list[Path]:
    """Draw the figures of a study at each length beyond the shortest; returns the PNG files."""
    metrics, state = read(tables, "metrics"), read(tables, "state")
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for length in sorted(metrics["L"].unique())[1:] or metrics["L"].unique().to_list():
        for name, figure in (
            ("overview", overview_figure(metrics, length)),
            ("state_bits", state_figure(metrics, state, length)),
        ):
            path = folder / f"{name}-L{length}.png"
            figure.savefig(path, dpi=130, metadata={"Software": None})
            saved.append(path)
    return saved
