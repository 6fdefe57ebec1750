"""The HTML report: one self-contained file that needs no network, for a screen of any size and for paper.

    write_report(scores, "eval/report.html")

The file holds the data as JSON, plotly.js (from the `plotly` package, compressed: 2 MB instead of 5), and the page's
own script. Tables and definitions are plain HTML, so they can be read where scripts cannot run.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from scoring.comparisons import CellScore
from scoring.definitions import DEFINITIONS
from scoring.figures import FEWEST_IN_GROUP
from scoring.frontier import undominated
from scoring.looks import DASHED, DOTTED, MIXED, labels, look, marker
from scoring.selective import GRID, Curve
from scoring.statistics import Estimate
from scoring.storage import atomic
from scoring.subjects import Subject, band_title, bands_of, mflops, subjects
from scoring.summary import Scores
from scoring.tables import EccColumn, EccRow, ecc_rows, show, show_interval

POINTS_PER_CURVE = 150  # embedded evenly; and as many again of the points that can be on a frontier
_PLOTLY_DASH = {(): "solid", DASHED: "dash", DOTTED: "dot", MIXED: "dashdot"}
_PLOTLY_SYMBOL = {"o": "circle", "^": "triangle-up", "s": "square"}
_QUERIES = (1, 4, 16, 32, 128, 1024)
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "polars", "pyarrow", "matplotlib", "plotly")


def write_report(scores: Scores, path: str | Path, title: str = "How good is this memory?") -> Path:
    """Write the report and return its path."""
    path, here = Path(path), Path(__file__).parent
    about = subjects(scores)
    data = {
        "subjects": [_subject_data(scores, s) for s in about],
        "budgets": list(scores.settings.budgets),
        "queries": sorted({*_QUERIES, scores.settings.queries}, key=lambda q: (q != scores.settings.queries, q)),
        "grid": [round(float(g), 4) for g in GRID],
    }
    parts = {
        "TITLE": escape(title),
        "LEAD": _lead(scores),
        "GLANCE": _glance(scores, about[0]),
        "TABLES": "\n".join(
            _table(scores, s, i, length) for i, s in enumerate(about) for length in _lengths(scores, s)
        ),
        "DEFINITIONS": _definitions(),
        "PROVENANCE": _provenance(scores),
        "CSS": (here / "report.css").read_text(encoding="utf-8"),
        "JS": (here / "report.js").read_text(encoding="utf-8"),
        # "</script>" inside a string would end the element.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        # mtime=0: equal inputs give equal files.
        "PLOTLY": base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),
    }
    page = (here / "report.html").read_text(encoding="utf-8")
    pieces = page.split("[[")
    filled = pieces[0] + "".join(parts[name] + rest for name, rest in (p.split("]]", 1) for p in pieces[1:]))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic(path, lambda file: file.write_text(filled, encoding="utf-8"))
    return path


def _lengths(scores: Scores, subject: Subject) -> list[int]:
    return sorted({c.length for c in subject.cells(scores)})


def _subject_data(scores: Scores, subject: Subject) -> dict[str, Any]:
    cells = sorted(subject.cells(scores), key=lambda c: (c.is_reference, c.architecture, c.width or 0, c.system))
    names = labels(cells)
    systems = list(names)
    first = {c.system: c for c in reversed(cells)}
    return {
        "title": subject.title,
        "bands": bands_of(scores, cells),
        "bandTitles": {band: band_title(band) for band in bands_of(scores, cells)},
        "lengths": _lengths(scores, subject)[::-1],
        "chance": cells[0].chance,
        "systems": [_system_data(first[s], names[s]) for s in systems],
        "cells": [_cell_data(c, systems.index(c.system)) for c in cells],
    }


def _system_data(cell: CellScore, label: str) -> dict[str, Any]:
    style = look(cell.architecture)
    return {
        "id": cell.system,
        "label": label,
        "colour": style.colour,
        "dash": _PLOTLY_DASH[style.dash],
        "symbol": _PLOTLY_SYMBOL[marker(cell.width)],
        "reference": cell.is_reference,
    }


def _cell_data(cell: CellScore, system: int) -> dict[str, Any]:
    return {
        "s": system,
        "band": cell.band,
        "L": cell.length,
        "acc": _triple(cell.estimates["accuracy", ""]),
        "write": None if cell.cost is None else cell.cost.write,
        "read": None if cell.cost is None else cell.cost.read,
        "curve": None if cell.curve is None else _curve_data(cell.curve),
        "ages": _group_data(cell, "recall", "age="),
        "sizes": _group_data(cell, "accuracy", "candidate_length="),
    }


def _curve_data(curve: Curve) -> dict[str, list[float | None]]:
    """A thinned curve: points spread evenly over the answers, and the curve's own undominated points."""
    own = np.sort(undominated(curve.coverage, curve.accuracy))
    keep = np.union1d(_evenly(np.arange(len(curve.count)), POINTS_PER_CURVE), _evenly(own, POINTS_PER_CURVE))
    return {
        "c": _rounded(curve.coverage[keep]),
        "a": _rounded(curve.accuracy[keep]),
        "t": _rounded(curve.threshold[keep]),
        "lo": _rounded(curve.low),
        "hi": _rounded(curve.high),
    }


def _evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the indices, first and last included."""
    return indices[np.unique(np.linspace(0, len(indices) - 1, min(most, len(indices))).round().astype(int))]


def _group_data(cell: CellScore, metric: str, prefix: str) -> list[list[Any]]:
    found = {s: e for (m, s), e in cell.estimates.items() if m == metric and s.startswith(prefix)}
    return [[s.removeprefix(prefix), *_triple(e)] for s, e in found.items() if e.n >= FEWEST_IN_GROUP]


def _triple(e: Estimate) -> list[float | None]:
    return _rounded([np.nan if x is None else x for x in (e.value, e.low, e.high)])


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [None if np.isnan(v) else round(float(v), 5) for v in values]


def _lead(scores: Scores) -> str:
    systems = {c.system for c in scores.cells if not c.is_reference}
    references = {c.system for c in scores.cells if c.is_reference}
    streams = sorted({c.streams for c in scores.cells})
    span = f"{streams[0]}" if len(streams) == 1 else f"{streams[0]} to {streams[-1]}"
    text = f"{len(systems)} system{'s' * (len(systems) != 1)}"
    text += f" and {len(references)} reference solver{'s' * (len(references) != 1)}" if references else ""
    rows = scores.provenance.get("rows", sum(c.n for c in scores.cells))
    return escape(f"{text}, {rows:,} answers, {span} streams per cell. Intervals are 95%, by resampling streams.")


def _glance(scores: Scores, subject: Subject) -> str:
    """Four leaders at the longest length, each with what stops it from being a verdict."""
    length = _lengths(scores, subject)[-1]
    columns, rows = ecc_rows(scores, subject, length)
    rows = [row for row in rows if not row.cell.is_reference]
    base = scores.settings.base_band
    base = base if any(c.band == base for c in columns) else columns[0].band
    wanted = (
        ("Capacity", "capacity", base, "accuracy on incompressible streams"),
        ("Efficiency", "flops", base, "fewest FLOPs per answer among the systems above chance"),
        ("Compression", "compression_over_reference", None, "accuracy gained by structure, over the reference solver"),
        ("Calibration", "aurc", base, "lowest area under the risk-coverage curve"),
    )
    cards = []
    for head, metric, band, text in wanted:
        spots = [i for i, c in enumerate(columns) if c.metric == metric and band in (None, c.band)]
        if not spots:
            continue
        column, entries = columns[spots[0]], [(row, row.values[spots[0]]) for row in rows]
        if metric == "flops":
            entries = [(r, e) for r, e in entries if r.cell.estimates["above_chance", ""].value]
        entries = [(r, e) for r, e in entries if e is not None and e.value is not None]
        if entries:
            cards.append(_card(head, text, column, entries))
    return f'<div class="glance" aria-label="Leaders at L = {length}">{"".join(cards)}</div>' if cards else ""


def _card(head: str, text: str, column: EccColumn, entries: Sequence[tuple[EccRow, Estimate]]) -> str:
    sign = -1 if column.better == "lower" else 1
    (row, best), *others = sorted(entries, key=lambda x: -sign * x[1].value)
    near = [r.label for r, e in others if _overlap(best, e)]
    close = (
        "" if not near else f"; {len(near)} other interval{'s' * (len(near) != 1)} overlap{'s' * (len(near) == 1)} it"
    )
    value = f"{show(best.value, column.unit)} {show_interval(best, column.unit)}"
    where = f"L = {row.cell.length}"
    return f"<div>{head}<b>{escape(row.label)}</b>{escape(value)}<span>{escape(text)}, {where}{close}</span></div>"


def _overlap(a: Estimate, b: Estimate) -> bool:
    if None in (a.low, a.high, b.low, b.high):
        return False
    return a.low <= b.high and b.low <= a.high


def _table(scores: Scores, subject: Subject, index: int, length: int) -> str:
    columns, rows = ecc_rows(scores, subject, length)
    heads = "".join(
        f'<th scope="col" class="{_importance(c)}" data-better="{c.better}"><button>{escape(c.head)}</button></th>'
        for c in columns
    )
    best = [_best(c, [row.values[i] for row in rows if not row.cell.is_reference]) for i, c in enumerate(columns)]
    body = "".join(_table_row(row, columns, best) for row in rows)
    head = f'<thead><tr><th scope="col"><button>system</button></th>{heads}</tr></thead>'
    caption = f"{escape(subject.title)}, L = {length}"
    return (
        f'<div data-at="{index}-{length}"><p><b>{caption}</b></p>'
        f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div></div>'
    )


def _table_row(row: EccRow, columns: Sequence[EccColumn], best: Sequence[float | None]) -> str:
    cells = [f'<th scope="row" data-v="{escape(row.label)}">{escape(row.label)}</th>']
    for column, e, top in zip(columns, row.values, best, strict=True):
        if e is None or e.value is None:
            note = escape(e.note if e is not None and e.note else "not computed")
            cells.append(f'<td class="{_importance(column)}" data-v=""><span class="note" title="{note}">–</span></td>')
            continue
        text = escape(show(e.value, column.unit))
        text = f'<span class="note" title="{escape(e.note)}">{text}</span>' if e.note else text
        kinds = _importance(column) + (" best" if not row.cell.is_reference and e.value == top else "")
        interval = escape(show_interval(e, column.unit))
        cells.append(f'<td class="{kinds}" data-v="{e.value!r}">{text}<small>{interval}</small></td>')
    kind = ' class="reference"' if row.cell.is_reference else ""
    return f'<tr{kind} data-system="{escape(row.cell.system)}">{"".join(cells)}</tr>'


def _importance(column: EccColumn) -> str:
    """Class of a column: the minor ones are left out on paper, where the table cannot scroll."""
    return "main" if column.main else "minor"


def _best(column: EccColumn, found: Sequence[Estimate | None]) -> float | None:
    values = [e.value for e in found if e is not None and e.value is not None]
    if not values or not column.better or len(values) < 2:
        return None
    return min(values) if column.better == "lower" else max(values)


def _definitions() -> str:
    parts = []
    for group in dict.fromkeys(d.group for d in DEFINITIONS):
        entries = "".join(
            f"<div><dt>{escape(d.title)} <code>{escape(d.name)}</code></dt><dd>{_prose(d.text)}</dd></div>"
            for d in DEFINITIONS
            if d.group == group
        )
        parts.append(f"<h3>{escape(group)}</h3><dl>{entries}</dl>")
    return "".join(parts)


def _prose(text: str) -> str:
    """Text whose `names` are set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _provenance(scores: Scores) -> str:
    found, settings = scores.provenance, asdict(scores.settings)
    files = "".join(
        f"<tr><td>{escape(s['path'])}</td><td>{s['rows']:,}</td><td><code>{s['sha256']}</code></td></tr>"
        for s in found.get("sources", [])
    )
    listing = f'<table class="files"><tr><th>file</th><th>rows</th><th>sha256</th></tr>{files}</table>' if files else ""
    lines = {
        "systems": ", ".join(found.get("systems", [])),
        "seeds": ", ".join(map(str, found.get("seeds", []))) or "not recorded",
        "code versions": ", ".join(found.get("code_versions", [])) or "not recorded",
        "FLOPs convention": f"write / q + read with q = {settings['queries']} question(s) per stream; multiply-adds of "
        "matrix products count 2, elementwise operations 0, unless the table's maker says otherwise",
        "budgets": ", ".join(mflops(b) for b in settings["budgets"]),
        "bootstrap": f"{settings['redraws']} redraws of streams, {settings['selectivity_redraws']} for the payoff arms",
        "reference": f"{settings['reference']}; learned = at least {100 * settings['margin']:g} points above it",
        "libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
        "curves shown": f"thinned to at most {2 * POINTS_PER_CURVE} thresholds each; tables use all of them",
    }
    return (
        listing + "<dl>" + "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in lines.items()) + "</dl>"
    )
