"""Scores in Weights & Biases: one run per system plus one for the comparison, made from saved tables alone.

    log_scores(scores, "eval", project="ecclab", group="cpu-study")

Several evaluations can be compared in one workspace, because names never depend on what was evaluated:

- `<query set>/<band>/L<length>/<metric>` (and `.../low`, `.../high`) in each run's summary;
- `<query set>/<band>/L<length>/curve` against the x-axis `coverage` in each run's history, so that the workspace's own
  line plots overlay the coverage-accuracy curves of all runs;
- tables `metrics`, `curves`, `frontiers`, `cost_accuracy` with the columns below; custom charts, figures, the report.

Nothing is asked and nothing waits for a network: without a login the runs are written to disk (`wandb sync` uploads
them), and a server that does not answer is noted and left for later. The folder on disk stays the truth.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import PIL.Image
from matplotlib.figure import Figure

from scoring.cells import CellKey
from scoring.comparisons import CellScore
from scoring.figures import all_figures
from scoring.selective import GRID
from scoring.statistics import Estimate
from scoring.subjects import Subject, distinct_budgets, subjects
from scoring.summary import ROW_COLUMNS, Scores, cost_frontier_of, frontier_of

if TYPE_CHECKING:
    import wandb

MODES = ("auto", "online", "offline", "disabled")
_CELL = ("system", "architecture", "width", "task", "split", "query_set", "band", "L")
CURVE_COLUMNS = (*_CELL, "threshold", "coverage", "accuracy")
FRONTIER_COLUMNS = ("task", "split", "query_set", "band", "L", "budget", "coverage", "accuracy", "threshold", "systems")
COST_COLUMNS = (*_CELL, "queries", "flops", "accuracy", "low", "high", "on_frontier", "support")
ROWS_PER_CURVE = 200
_QUERY_SET, _BAND, _L, _COVERAGE, _ACCURACY = map(
    CURVE_COLUMNS.index, ("query_set", "band", "L", "coverage", "accuracy")
)
_log = logging.getLogger(__name__)


def log_scores(
    scores: Scores,
    folder: str | Path,
    project: str = "ecclab",
    group: str = "evaluation",
    tags: Iterable[str] = (),
    mode: str = "auto",
    report: str | Path | None = None,
    figures: bool = True,
) -> list[str]:
    """Log scores and return the ids of the runs: one per system, then the comparison.

    An id is made from the group, the name and the scored files, so logging the same scores again adds no second run.

    Args:
        folder: where W&B keeps its files (in `folder/wandb`).
        group: of all these runs.
        tags: added to each run's own (architecture, width, task, query sets).
        mode: "auto" is online when logged in and WANDB_MODE does not say otherwise, else offline.
        report: an HTML report to attach to the comparison.
        figures: attach the static figures to the comparison.

    Raises:
        ImportError: wandb is not installed.
        ValueError: another mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: use one of {', '.join(MODES)}")
    wandb = _wandb()
    mode = _resolve(wandb, mode)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    start = {"project": project, "group": group, "dir": str(folder), "mode": mode}
    ids = []
    systems = sorted({c.system for c in scores.cells})
    for system in systems:
        cells = [c for c in scores.cells if c.system == system]
        run = _start(wandb, scores, system, "evaluation", [*tags, *_own_tags(cells)], start)
        _log_system(wandb, run, scores, cells)
        ids.append(run.id)
        run.finish()
    run = _start(wandb, scores, "comparison", "comparison", list(tags), start)
    _log_comparison(wandb, run, scores, report, figures)
    ids.append(run.id)
    run.finish()
    return ids


def _picture(figure: Figure) -> PIL.Image.Image:
    """A figure as pixels: given the figure itself, W&B would ask for pyplot, which nothing here imports."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    buffer.seek(0)
    return PIL.Image.open(buffer)


def curve_rows(cells: Sequence[CellScore]) -> list[list[Any]]:
    """Rows of the `curves` table: at most `ROWS_PER_CURVE` thresholds per cell, first and last included."""
    rows = []
    for cell in cells:
        if cell.curve is None:
            continue
        count = len(cell.curve.coverage)
        step = max(1, math.ceil((count - 1) / (ROWS_PER_CURVE - 1)))
        for i in [*range(0, count - 1, step), count - 1]:
            point = (float(x[i]) for x in (cell.curve.threshold, cell.curve.coverage, cell.curve.accuracy))
            rows.append([*_about(cell), *(None if math.isnan(x) else x for x in point)])
    return rows


def frontier_rows(scores: Scores, subject: Subject) -> list[list[Any]]:
    """Rows of the `frontiers` table: every frontier point of each band, length and budget; no budget is null."""
    rows = []
    for band, length, cells in _panels(scores, subject):
        cells = [c for c in cells if c.curve is not None]
        for budget in distinct_budgets([c.flops for c in cells], scores.settings.budgets):
            where = [subject.task, subject.split, subject.query_set, band, length, budget]
            for p in frontier_of(cells, budget).points:
                rows.append([*where, p.coverage, p.accuracy, p.threshold, ", ".join(p.systems)])
    return rows


def cost_rows(scores: Scores, subject: Subject) -> list[list[Any]]:
    """Rows of the `cost_accuracy` table: one per system of known cost, band and length."""
    rows = []
    for _, _, cells in _panels(scores, subject):
        frontier = cost_frontier_of(cells)
        for cell, flops, on, support in zip(frontier.cells, frontier.flops, frontier.on, frontier.support, strict=True):
            e = cell.estimates["accuracy", ""]
            values = [float(flops), e.value, e.low, e.high, bool(on), float(support)]
            rows.append([*_about(cell), scores.settings.queries, *values])
    return rows


def _panels(scores: Scores, subject: Subject) -> Iterable[tuple[str, int, list[CellScore]]]:
    cells = [c for c in subject.cells(scores) if not c.is_reference]
    for band, length in sorted({(c.band, c.length) for c in cells}):
        yield band, length, [c for c in cells if c.band == band and c.length == length]


def _about(cell: CellScore) -> list[Any]:
    return [cell.system, cell.architecture, cell.width, *cell.key[1:6]]


def _name(cell: CellScore) -> str:
    """Stable prefix of a cell's metrics; task, split and arm appear only where they are not the usual ones."""
    usual = {"task": "membership", "split": "test", "arm": None}
    unusual = [str(getattr(cell.key, k)) for k, v in usual.items() if getattr(cell.key, k) != v]
    return "/".join([*unusual, cell.key.query_set, cell.band, f"L{cell.length}"])


def _own_tags(cells: Sequence[CellScore]) -> list[str]:
    first = cells[0]
    tags = {first.architecture, *(c.key.task for c in cells), *(c.key.query_set for c in cells)}
    tags |= {f"D{first.width}"} if first.width else set()
    tags |= {"reference"} if first.is_reference else set()
    return sorted(t[:64] for t in tags)  # W&B's limit


def _log_system(wandb: Any, run: wandb.Run, scores: Scores, cells: Sequence[CellScore]) -> None:
    system = cells[0].system
    rows = [r for r in scores.rows() if r["system"] == system]
    run.log({"metrics": _table(wandb, ROW_COLUMNS, [list(r.values()) for r in rows])})
    curves = curve_rows(cells)
    if curves:
        run.log({"curves": _table(wandb, CURVE_COLUMNS, curves)})
        for query_set in sorted({c.key.query_set for c in cells}):
            chart = _chart(
                wandb,
                [r for r in curves if r[_QUERY_SET] == query_set],
                f"coverage-accuracy, {query_set}",
                by_system=False,
            )
            run.log({f"coverage_accuracy/{query_set}": chart})
    run.define_metric("coverage")
    drawn = [c for c in cells if c.curve is not None]
    for cell in drawn:
        run.define_metric(f"{_name(cell)}/curve", step_metric="coverage")
    for i, coverage in enumerate(GRID if drawn else ()):
        point = {"coverage": float(coverage)}
        for cell in drawn:
            at = int((cell.curve.coverage >= coverage - 1e-9).argmax())
            if cell.curve.coverage[-1] >= coverage - 1e-9:
                point[f"{_name(cell)}/curve"] = float(cell.curve.accuracy[at])
        if i == 0 or len(point) > 1:
            run.log(point)
    by_key = {c.key: _name(c) for c in cells}
    for key, metric, e in _whole_estimates(scores, system):
        prefix = by_key.get(key) or by_key.get(key._replace(arm=None)) or by_key.get(key._replace(arm="A"))
        if prefix and e.value is not None:
            ends = {"": e.value, "/low": e.low, "/high": e.high}
            run.summary.update({f"{prefix}/{metric}{k}": v for k, v in ends.items() if v is not None})


def _whole_estimates(scores: Scores, system: str) -> Iterable[tuple[CellKey, str, Estimate]]:
    """Every estimate of a system that is not a slice: its cells' own, then those that need several cells."""
    for cell in scores.cells:
        if cell.system == system:
            yield from ((cell.key, metric, e) for (metric, part), e in cell.estimates.items() if not part)
    for joint in scores.joint:
        if joint.key.system == system:
            yield from ((joint.key, metric, e) for metric, e in joint.estimates.items())


def _log_comparison(wandb: Any, run: wandb.Run, scores: Scores, report: str | Path | None, figures: bool) -> None:
    run.log({"metrics": _table(wandb, ROW_COLUMNS, [list(r.values()) for r in scores.rows()])})
    about = subjects(scores)
    frontiers = [row for s in about for row in frontier_rows(scores, s)]
    costs = [row for s in about for row in cost_rows(scores, s)]
    if frontiers:
        run.log({"frontiers": _table(wandb, FRONTIER_COLUMNS, frontiers)})
    if costs:
        run.log({"cost_accuracy": _table(wandb, COST_COLUMNS, costs)})
    for subject in about:
        for band, length, cells in _panels(scores, subject):
            rows = curve_rows(cells)
            if rows:
                title = f"{subject.title}, {band}, L = {length}"
                run.log({f"coverage_accuracy/{_name(cells[0])}": _chart(wandb, rows, title, by_system=True)})
    if figures:
        for name, figure in all_figures(scores):
            run.log({f"figures/{name}": wandb.Image(_picture(figure))})
    if report is not None:
        run.log({"report": wandb.Html(Path(report).read_text(encoding="utf-8"), inject=False)})


def _chart(wandb: Any, rows: list[list[Any]], title: str, by_system: bool) -> Any:
    """A custom chart of curves: W&B's line series preset over a table of coverage, accuracy and line name."""
    lines = [[r[_COVERAGE], r[_ACCURACY], r[0] if by_system else f"{r[_BAND]} L={r[_L]}"] for r in rows]
    table = wandb.Table(columns=["coverage", "accuracy", "line"], data=lines)
    fields = {"step": "coverage", "lineVal": "accuracy", "lineKey": "line"}
    return wandb.plot_table("wandb/lineseries/v0", table, fields, {"title": title, "xname": "coverage"})


def _table(wandb: Any, columns: Sequence[str], rows: list[list[Any]]) -> Any:
    # Columns may hold both numbers and nulls, and widths of some systems only.
    return wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)


def _start(
    wandb: Any, scores: Scores, name: str, job_type: str, tags: Sequence[str], start: dict[str, Any]
) -> wandb.Run:
    settings = wandb.Settings(
        console="off", silent=True, init_timeout=30, x_disable_stats=True, disable_git=True, disable_code=True
    )
    files = sorted(s["sha256"] for s in scores.provenance.get("sources", []))
    identity = json.dumps([start["project"], start["group"], name, job_type, files])
    options: dict[str, Any] = {
        "id": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "name": name,
        "job_type": job_type,
        "tags": list(dict.fromkeys(tags)),
        "config": {"settings": asdict(scores.settings), "provenance": scores.provenance},
        "settings": settings,
        "reinit": "create_new",
        **start,
    }
    if start["mode"] == "online":
        try:
            return wandb.init(**options, resume="allow")
        except wandb.errors.CommError as error:
            _log.warning("W&B does not answer (%s); %s is kept offline, upload it with `wandb sync`", error, name)
            options["mode"] = start["mode"] = "offline"
    return wandb.init(**options)


def _resolve(wandb: Any, mode: str) -> str:
    """The mode to run in. Looks for a login, never asks for one."""
    environment = os.environ.get("WANDB_MODE", "")
    if environment in ("offline", "disabled"):
        return environment
    if mode == "auto":
        return "online" if wandb.login(prompt=False, verify=False) else "offline"
    return mode


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("logging to W&B needs wandb: pip install 'ecclab[wandb]'") from error
    return wandb
