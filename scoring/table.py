"""The response table: one row per question that a memory was asked.

Everything this package computes is computed from such a table, so any system that can fill one in (a backbone trained
here, a vision-language model, a retriever, a person) is scored in the same way. `COLUMNS` is the schema;
`python -m scoring schema` prints it. Only the columns marked *required* must be there, the others have defaults:

    system  band  L    stream  query  label  answer
    mine    max   128  0       0      1      1         answered yes, rightly
    mine    max   128  0       1      0      <null>    abstained: counts as wrong in accuracy, lowers coverage

`validate` turns such a table into the canonical one (all columns, fixed order and types) or raises `TableError` with
the first offending row and column. It never repairs silently: a NaN confidence or a repeated question is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

ABSTAIN_KINDS = ("explicit", "format", "overflow", "error")

TableLike = pa.Table | pl.DataFrame | Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]


class TableError(ValueError):
    """A response table that cannot be scored; the message names the row and the column."""


@dataclass(frozen=True)
class Column:
    """One column of the schema.

    Attributes:
        dtype: canonical polars type.
        meaning: one line for `python -m scoring schema`.
        required: the table must have it, without nulls unless `nullable`.
        nullable: single values may be missing.
        default: fills a column that is absent (or, where it is not nullable, single missing values).
        low, high: inclusive range of a number.
        choices: allowed strings.
    """

    name: str
    dtype: type[pl.DataType]
    meaning: str
    required: bool = False
    nullable: bool = False
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None


COLUMNS: tuple[Column, ...] = (
    Column("system", pl.String, "name of the memory; rows of one name are one curve", required=True),
    Column("architecture", pl.String, "family, fixes colour and dash; the system's name where absent", nullable=True),
    Column("width", pl.Int32, "model width D, where there is one", nullable=True, low=1),
    Column("task", pl.String, "what was asked", default="membership"),
    Column("split", pl.String, "part of the data", default="test"),
    Column("query_set", pl.String, "how negatives were drawn: uniform, near, order", default="uniform"),
    Column("band", pl.String, "entropy band of the stream; max is the incompressible one", required=True),
    Column("L", pl.Int32, "stream length in tokens or frames", required=True, low=1),
    Column("stream", pl.String, "stream identity (text or integer): the unit that is resampled", required=True),
    Column("query", pl.String, "question identity within its stream", required=True),
    Column("options", pl.Int32, "number of possible answers; chance is 1/options", default=2, low=2),
    Column("candidate_length", pl.Int32, "symbols in the candidate", nullable=True, low=1),
    Column("age", pl.Int64, "steps since the end of the latest match; -1 for negatives", nullable=True, low=-1),
    Column("label", pl.Int32, "right answer: 1 occurred, 0 did not (or an option's index)", required=True, low=0),
    Column("answer", pl.Int32, "answer given; null = abstained", required=True, nullable=True, low=0),
    Column("p_yes", pl.Float64, "probability given to yes", nullable=True, low=0, high=1),
    Column(
        "confidence",
        pl.Float64,
        "confidence in the answer given; p(answer) where only p_yes is",
        nullable=True,
        low=0,
        high=1,
    ),
    Column("flops_write", pl.Float64, "FLOPs spent on the stream, whole", nullable=True, low=0),
    Column("flops_read", pl.Float64, "FLOPs spent on this question", nullable=True, low=0),
    Column("seed", pl.Int64, "seed of the system's training or sampling", nullable=True),
    Column("code_version", pl.String, "commit or version that produced the row", nullable=True),
    Column("arm", pl.String, "payoff arm the system was told about", nullable=True, choices=("A", "B")),
    Column("abstain_kind", pl.String, "why there is no answer", nullable=True, choices=ABSTAIN_KINDS),
)
CELL_KEY = ("system", "task", "split", "query_set", "band", "L", "arm")
ROW_KEY = (*CELL_KEY, "seed", "stream", "query")

_ARROW = {pl.String: pa.string(), pl.Int32: pa.int32(), pl.Int64: pa.int64(), pl.Float64: pa.float64()}
_PROBABILITY_OF_ANSWER = (
    pl.when(pl.col("answer") == 1).then("p_yes").when(pl.col("answer") == 0).then(1 - pl.col("p_yes"))
)
SCHEMA = pa.schema([pa.field(c.name, _ARROW[c.dtype]) for c in COLUMNS])


@dataclass(frozen=True)
class _Place:
    """Names a row in the way its reader would look it up: a line of a text file, else a row number."""

    source: str
    line_offset: int | None = None

    def __call__(self, row: int, column: str) -> str:
        where = f"row {row} (the first is 0)" if self.line_offset is None else f"line {row + self.line_offset}"
        return f"{self.source}: {where}, column {column!r}"


def _to_polars(table: TableLike) -> pl.DataFrame:
    """Any of the accepted forms (Arrow, polars, dict of columns, list of rows) as a polars frame."""
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pa.Table):
        return pl.DataFrame(pl.from_arrow(table))
    if isinstance(table, Mapping):
        return pl.DataFrame(dict(table), strict=False, nan_to_null=False)
    return pl.DataFrame(list(table), infer_schema_length=None, strict=False)


def validate(table: TableLike, source: str = "table", line_offset: int | None = None) -> pa.Table:
    """Return the canonical response table, or raise with the first offending row and column.

    Args:
        table: Arrow or polars table, a dict of columns, or a list of row dicts. Other columns than the schema's are
            dropped, except for a near miss of an absent one (`candidate_len`), which is an error.
        source: name of the table in messages, usually its file.
        line_offset: line of the file that holds row 0, for messages about text files.

    Raises:
        TableError: the table is empty, lacks a required column, or a value has the wrong type or range; a question
            occurs twice; answer, abstention and confidence contradict each other.
    """
    place = _Place(source, line_offset)
    frame = _to_polars(table)
    _check_names(frame, source)
    if frame.height == 0:
        raise TableError(f"{source}: no rows; a response table has one row per question asked")
    frame = pl.DataFrame([_canonical(frame, column, place) for column in COLUMNS])
    frame = frame.with_columns(
        architecture=pl.coalesce("architecture", "system"),
        confidence=pl.coalesce("confidence", _PROBABILITY_OF_ANSWER),
    )
    _check_rows(frame, place)
    _check_unique(frame, place)
    return frame.to_arrow().cast(SCHEMA)


def _check_names(frame: pl.DataFrame, source: str) -> None:
    known = {c.name for c in COLUMNS}
    missing = [c.name for c in COLUMNS if c.required and c.name not in frame.columns]
    stray = [name for name in frame.columns if name not in known]
    hints = {}
    for column in COLUMNS:
        if column.name not in frame.columns:
            near = difflib.get_close_matches(column.name.lower(), [s.lower() for s in stray], n=1, cutoff=0.8)
            hints |= {column.name: next(s for s in stray if s.lower() == near[0])} if near else {}
    if missing:
        hint = "".join(f"; rename {hints[m]!r} to {m!r}" for m in missing if m in hints)
        raise TableError(f"{source}: required column {missing[0]!r} is missing (has {frame.columns}){hint}")
    for name, found in hints.items():
        raise TableError(f"{source}: unknown column {found!r}; did you mean {name!r}? Rename or drop it")


def _canonical(frame: pl.DataFrame, column: Column, place: _Place) -> pl.Series:
    """The column in its canonical type, defaults filled in, with values in range."""
    if column.name not in frame.columns:
        return pl.Series(column.name, [column.default], dtype=column.dtype).new_from_index(0, frame.height)
    series = _cast(frame[column.name], column, place)
    if column.required and not column.nullable and series.null_count():
        raise TableError(f"{place(_first(series.is_null()), column.name)}: missing value")
    if column.default is not None:
        series = series.fill_null(column.default)
    if column.dtype == pl.Float64 and (bad := ~series.is_finite().fill_null(True)).any():
        row = _first(bad)
        raise TableError(f"{place(row, column.name)}: {series[row]} is not a finite number; leave unknown values empty")
    if column.low is not None and (bad := (series < column.low).fill_null(False)).any():
        row = _first(bad)
        raise TableError(f"{place(row, column.name)}: {series[row]} is below {column.low}")
    if column.high is not None and (bad := (series > column.high).fill_null(False)).any():
        row = _first(bad)
        raise TableError(f"{place(row, column.name)}: {series[row]} is above {column.high}")
    if column.choices is not None and (bad := ~series.is_in(column.choices).fill_null(True)).any():
        row = _first(bad)
        raise TableError(f"{place(row, column.name)}: {series[row]!r} is none of {', '.join(column.choices)}")
    return series


def _cast(given: pl.Series, column: Column, place: _Place) -> pl.Series:
    if given.dtype == pl.String and column.dtype != pl.String:
        given = given.str.strip_chars().replace("", None)
    if column.dtype in (pl.Int32, pl.Int64) and given.dtype in (pl.String, pl.Float32, pl.Float64):
        # Through float so that "1.0" from a spreadsheet is the integer 1 and 1.5 is refused rather than truncated.
        number = given.cast(pl.Float64, strict=False)
        series = number.cast(column.dtype, strict=False)
        bad = (series.is_null() | (series.cast(pl.Float64) != number)) & given.is_not_null()
    else:
        series = given.cast(column.dtype, strict=False)
        bad = series.is_null() & given.is_not_null()
    if bad.any():
        row = _first(bad)
        kind = {pl.String: "text", pl.Float64: "a number"}.get(column.dtype, "an integer")
        raise TableError(f"{place(row, column.name)}: {given[row]!r} is not {kind}")
    return series.alias(column.name)


def _check_rows(frame: pl.DataFrame, place: _Place) -> None:
    """Values that contradict each other within a row or within a cell."""
    c = pl.col
    rules = (
        ("label", c("label") >= c("options"), "label is outside the question's options"),
        ("answer", c("answer") >= c("options"), "answer is outside the question's options"),
        ("p_yes", c("p_yes").is_not_null() & (c("options") != 2), "p_yes needs a yes/no question (options = 2)"),
        ("abstain_kind", ~c("abstain_kind").is_null() & ~c("answer").is_null(), "set although there is an answer"),
        ("candidate_length", c("candidate_length") > c("L"), "candidate is longer than its stream"),
        ("age", (c("age") >= 0) & (c("label") == 0) & (c("options") == 2), "a negative has no match; its age is -1"),
        ("age", (c("age") < 0) & (c("label") == 1) & (c("options") == 2), "a positive has a match; its age is >= 0"),
    )
    for column, rule, message in rules:
        bad = frame.select(rule.fill_null(False)).to_series()
        if bad.any():
            row = _first(bad)
            raise TableError(f"{place(row, column)}: {message} (value {frame[column][row]!r})")
    answered = frame.with_row_index("row").filter(c("answer").is_not_null())
    known = c("confidence").is_not_null().any().over(CELL_KEY)
    holes = answered.filter(c("confidence").is_null() & known)["row"]
    if holes.len():
        raise TableError(
            f"{place(holes[0], 'confidence')}: missing here but given for other answers of the same system, band and "
            "length; give it for all of them or for none"
        )
    uneven = frame.select(c("options").n_unique().over(CELL_KEY) > 1).to_series()
    if uneven.any():
        raise TableError(f"{place(_first(uneven), 'options')}: one system, band and length mixes numbers of options")


def _check_unique(frame: pl.DataFrame, place: _Place) -> None:
    repeated = frame.select(pl.struct(ROW_KEY).is_duplicated()).to_series()
    if not repeated.any():
        return
    rows = repeated.arg_true()
    first = frame[ROW_KEY][int(rows[0])].row(0)
    again = next(int(r) for r in rows[1:] if frame[ROW_KEY][int(r)].row(0) == first)
    name = ", ".join(f"{k}={v}" for k, v in zip(ROW_KEY, first, strict=True) if v is not None)
    raise TableError(f"{place(again, 'query')}: the same question as row {rows[0]} ({name}); keep one answer to each")


def _first(mask: pl.Series) -> int:
    return int(mask.fill_null(False).arg_true()[0])
