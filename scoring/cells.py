"""A cell: all answers of one system to one kind of question, as arrays.

Letters: n questions, S streams. Rows are sorted by stream and question, so that nothing computed from a cell depends on
the order of the table's rows, not even in the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from scoring.table import CELL_KEY, TableError


class CellKey(NamedTuple):
    """What makes two rows belong to the same cell. `L` is None where lengths are pooled."""

    system: str
    task: str
    split: str
    query_set: str
    band: str
    L: int | None
    arm: str | None

    @property
    def questions(self) -> str:
        """Names the questions without who answered them: systems asked the same ones are resampled together."""
        return repr((self.task, self.split, self.query_set, self.band, self.L))


@dataclass(frozen=True)
class Cell:
    """Arrays over the n questions of a cell. Unknown columns are None, never filled with zeros.

    Attributes:
        stream: int [n], index of the question's stream in 0..S-1.
        answered, correct: bool [n]; an abstention is neither.
        label, answer: int [n]; answer is -1 for an abstention.
        confidence: float [n], NaN for abstentions; None when the system gives none.
        age: int [n], -1 for negatives.
    """

    key: CellKey
    architecture: str
    width: int | None
    options: int
    streams: int
    stream: np.ndarray
    question: np.ndarray
    answered: np.ndarray
    correct: np.ndarray
    label: np.ndarray
    answer: np.ndarray
    confidence: np.ndarray | None
    p_yes: np.ndarray | None
    candidate_length: np.ndarray | None
    age: np.ndarray | None
    abstain_kind: np.ndarray
    flops_write: np.ndarray | None
    flops_read: np.ndarray | None

    @property
    def n(self) -> int:
        return len(self.label)

    @property
    def chance(self) -> float:
        return 1 / self.options

    def cost(self, queries: int = 1) -> np.ndarray | None:
        """FLOPs per answer [n] when each stream serves `queries` questions: write / queries + read."""
        if self.flops_write is None or self.flops_read is None:
            return None
        return self.flops_write / queries + self.flops_read

    def sums(self, *columns: np.ndarray) -> np.ndarray:
        """Sum each column [n] over the questions of a stream: [S, k]."""
        return np.stack([np.bincount(self.stream, weights=c, minlength=self.streams) for c in columns], axis=1)


def split_cells(table: pa.Table, errors: str = "raise") -> Iterator[Cell]:
    """Cells of a canonical table, in sorted order.

    Args:
        errors: what to do with rows whose abstain_kind is "error" (no answer arrived: a lost connection, say):
            "raise", or "abstain" to count them as abstentions.

    Raises:
        TableError: error rows under "raise"; one system name with two architectures or widths.
        ValueError: another `errors`.
    """
    if errors not in ("raise", "abstain"):
        raise ValueError(f"errors={errors!r}: use 'raise' or 'abstain'")
    frame = pl.DataFrame(pl.from_arrow(table))
    failed = frame.filter(pl.col("abstain_kind") == "error")
    if failed.height and errors == "raise":
        raise TableError(
            f"{failed.height} questions of system {failed['system'][0]!r} ended in an error, not in an answer; run the "
            "evaluation again to ask them, or pass errors='abstain' to count them as abstentions"
        )
    mixed = frame.group_by("system").agg(pl.col("architecture", "width").n_unique()).sort("system")
    for system, architectures, widths in mixed.iter_rows():
        if architectures > 1 or widths > 1:
            raise TableError(f"system {system!r} has several architectures or widths; give each its own system name")
    frame = frame.sort([*CELL_KEY, "stream", "query", "seed"])
    for part in frame.partition_by(CELL_KEY, maintain_order=True):
        yield _cell(part)


def _cell(part: pl.DataFrame) -> Cell:
    first = part.row(0, named=True)
    stream = part["stream"].rle_id().to_numpy().astype(np.int64)
    answer = part["answer"].fill_null(-1).to_numpy()
    label = part["label"].to_numpy()

    def known(name: str) -> np.ndarray | None:
        return None if part[name].null_count() else part[name].to_numpy()

    confidence = None
    if part.filter(pl.col("answer").is_not_null())["confidence"].null_count() == 0:
        confidence = part["confidence"].fill_null(np.nan).to_numpy()
    return Cell(
        key=CellKey(*(first[k] for k in CELL_KEY)),
        architecture=first["architecture"],
        width=first["width"],
        options=first["options"],
        streams=int(stream[-1]) + 1,
        stream=stream,
        question=part.select(
            pl.concat_str("stream", "query", pl.col("seed").cast(pl.String), separator="\0", ignore_nulls=True)
        )
        .to_series()
        .to_numpy(),
        answered=answer >= 0,
        correct=answer == label,
        label=label,
        answer=answer,
        confidence=confidence,
        p_yes=known("p_yes"),
        candidate_length=known("candidate_length"),
        age=known("age"),
        abstain_kind=part["abstain_kind"].fill_null("").to_numpy(),
        flops_write=known("flops_write"),
        flops_read=known("flops_read"),
    )
