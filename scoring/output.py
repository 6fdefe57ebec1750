"""Metrics on disk: `metrics.json` for people and programs, `metrics.parquet` for further analysis."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import polars as pl

from scoring.storage import atomic
from scoring.summary import ROW_COLUMNS, Scores

_TEXT = ("system", "architecture", "task", "split", "query_set", "band", "arm", "metric", "slice", "note")
_WHOLE = ("width", "L", "n", "streams")


def metrics_frame(scores: Scores) -> pl.DataFrame:
    """The long table of `Scores.rows` with fixed column types."""
    types = {c: pl.String if c in _TEXT else pl.Int64 if c in _WHOLE else pl.Float64 for c in ROW_COLUMNS}
    return pl.DataFrame(scores.rows(), schema=types)


def metrics_json(scores: Scores) -> str:
    """Every row with settings and provenance; undefined numbers are null, with the reason in the row's note."""
    found = {"settings": asdict(scores.settings), "provenance": scores.provenance, "metrics": scores.rows()}
    return json.dumps(found, indent=1, allow_nan=False)


def save_metrics(scores: Scores, folder: str | Path) -> tuple[Path, Path]:
    """Write metrics.json and metrics.parquet into a folder; returns their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text, table = folder / "metrics.json", folder / "metrics.parquet"
    atomic(text, lambda file: file.write_text(metrics_json(scores) + "\n", encoding="utf-8"))
    atomic(table, metrics_frame(scores).write_parquet)
    return text, table
