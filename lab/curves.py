"""Figures for systems whose answers differ in cost, and for systems that were told what an error costs.

    running accuracy   right answers so far over all questions, as answers are spent cheapest first (paper, Figures 3-5)
    payoff arms        coverage under both arms, and what minding the cost of errors earned (paper, Figures 6 and 7)

`lab/report.py` saves them beside the figures of `scoring.figures`. Colours of the running accuracy are the paper's, one
per band; whichever system it is stands in the panel's title.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from scoring.comparisons import CellScore
from scoring.looks import labels
from scoring.subjects import Subject, band_title, bands_of, subjects
from scoring.summary import Scores
from scoring.tables import estimates_of

BAND_LOOKS = (("#3366cc", "-"), ("#ee7733", "--"), ("#777777", ":"))
"""Colour and dash of the structured bands, and of the incompressible one last (paper: blue solid, orange dashed)."""


def running_accuracy_figure(scores: Scores, subject: Subject) -> Figure | None:
    """Accuracy against FLOPs spent per answer: a row per system, a column per length; None where none is priced.

    The number at the right end is the accuracy over all questions.
    """
    cells = [c for c in subject.cells(scores) if c.cost is not None and not c.is_reference]
    if not cells:
        return None
    systems, lengths = list(dict.fromkeys(c.system for c in cells)), sorted({c.length for c in cells})
    bands = bands_of(scores, cells)
    figure = Figure(figsize=(1.2 + 2.6 * len(lengths), 0.8 + 1.7 * len(systems)), layout="constrained")
    axes = figure.subplots(len(systems), len(lengths), squeeze=False, sharey=True)
    names = labels(cells)
    for row, system in enumerate(systems):
        for column, length in enumerate(lengths):
            axis = axes[row][column]
            here = [c for c in cells if (c.system, c.length) == (system, length)]
            _draw_running(axis, here, bands)
            axis.set_title(f"{names[system]}, L = {length}", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("FLOPs per answer", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy", fontsize=8)
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines() if line.get_label()[0] != "_"}
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(bands), fontsize=8, frameon=False)
    return figure


def _draw_running(axis, cells: Sequence[CellScore], bands: Sequence[str]) -> None:
    axis.axhline(cells[0].chance if cells else 0.5, color="0.8", lw=0.8, zorder=0)
    for cell in cells:
        colour, dash = BAND_LOOKS[min(bands.index(cell.band), len(BAND_LOOKS) - 1)]
        # A curve starts at nothing for the cheapest answer, and is level between answers.
        x, y = np.repeat(cell.cost.flops, 2)[: 2 * len(cell.cost.flops)], np.repeat(cell.cost.running, 2)
        y = np.concatenate(([0.0], y[:-1]))
        axis.plot(x, y, color=colour, ls=dash, lw=1.4, label=band_title(cell.band))
        share = f"{100 * cell.accuracy:.0f}"
        axis.annotate(share, (x[-1], y[-1]), (4, 0), textcoords="offset points", color=colour, fontsize=7, va="center")
    axis.set_xscale("log")
    axis.set_ylim(0, 1.03)
    axis.tick_params(which="both", labelsize=7)


def arms_figure(scores: Scores, subject: Subject) -> Figure | None:
    """Coverage under both arms, and arm B's payoff of either run; None where no system was told about the arms.

    Systems that were not told are there too, with the arms as thresholds on their confidence.
    """
    cells = [c for c in subject.cells(scores) if not c.is_reference]
    found = {id(c): estimates_of(scores, c) for c in cells}
    cells = [c for c in cells if (e := found[id(c)].get("coverage_arm_a")) is not None and e.value is not None]
    if not cells or not scores.at(**subject.where, arm="A"):
        return None
    names = labels(cells)
    rows = [f"{names[c.system]}, {c.band}, L = {c.length}" for c in cells]
    figure = Figure(figsize=(8, 1.2 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    panels = (
        (axes[0], ("coverage_arm_a", "coverage_arm_b"), ("arm A: +3 / -1", "arm B: +1 / -4"), "coverage"),
        (
            axes[1],
            ("payoff_a_under_b", "payoff_b"),
            ("arm A's answers", "arm B's answers"),
            "points per question, arm B",
        ),
    )
    heights = np.arange(len(rows))[::-1]
    for axis, metrics, titles, about in panels:
        for metric, title, colour, shift in zip(metrics, titles, ("#3366cc", "#ee7733"), (0.18, -0.18), strict=True):
            found_here = [found[id(c)][metric] for c in cells]
            values = np.array([np.nan if e.value is None else e.value for e in found_here])
            ends = np.array([[v if e.low is None else e.low, v if e.high is None else e.high]
                             for v, e in zip(values, found_here, strict=True)]).T  # fmt: skip
            reach = np.maximum(np.stack([values - ends[0], ends[1] - values]), 0)
            axis.barh(heights + shift, values, 0.34, color=colour, label=title, xerr=reach, error_kw={"lw": 0.8})
        axis.axvline(0, color="0.3", lw=0.8)
        axis.set_xlabel(about, fontsize=8)
        axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        axis.tick_params(which="both", labelsize=7)
    axes[0].set_yticks(heights, rows)
    axes[0].set_xlim(0, 1)
    return figure


def save_curves(scores: Scores, folder: Path, formats: Iterable[str]) -> list[Path]:
    """Save both figures of every subject that has them; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for subject in subjects(scores):
        drawn = {"running_accuracy": running_accuracy_figure, "payoff_arms": arms_figure}
        for name, draw in drawn.items():
            figure = draw(scores, subject)
            for ending in formats if figure is not None else ():
                path = folder / f"{name}-{subject.slug}.{ending}"
                figure.savefig(path, dpi=150)
                saved.append(path)
    return saved
