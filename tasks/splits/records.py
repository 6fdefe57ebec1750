"""A split in memory: what `tasks.load` returns, and what memories are scored on.

    split = tasks.load("outputs/text")
    for cell in split.cells:
        streams = {stream.stream_id: stream for stream in cell.streams()}
        for query in cell.queries("uniform"):
            streams[query.stream_id].symbols, query.candidate, query.label

A *split* is a set of cells; a *cell* holds streams of one length, band, medium and variant, and all queries about them.
Cells read their files when asked for streams or queries, and keep nothing.

Letters: L symbols per stream, n symbols per candidate (3 to 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.batch import check_name

MEDIA = ("text", "video")
VARIANTS = ("sequential", "spatial")


@dataclass(frozen=True, eq=False)
class StreamRecord:
    """One stream and where it came from."""

    stream_id: str
    """Unique within the split, except that the two variants of a video split ask about the same streams."""
    symbols: np.ndarray
    """uint8 [L], 0..15. A video shows symbol i as the i-th letter of `tasks.video.LETTERS`."""
    rate: float
    """Bits per symbol that name the band: 4 by definition for uniform streams, else the Lempel-Ziv estimate."""
    rules: dict[str, Any] | None = None
    """What the stream was made from, in JSON types (`python -m tasks show` explains it); None for uniform streams."""
    belts: np.ndarray | None = None
    """uint8 [L], 0..2: the belt of each letter, for video."""
    estimate: float = float("nan")
    """Lempel-Ziv estimate of this stream, whatever its band: 1.9 to 3.2 for uniform streams, by length."""


@dataclass(frozen=True, eq=False)
class QueryRecord:
    """One question about one stream: did this candidate occur in it as a contiguous window, belts included?"""

    stream_id: str
    query_id: str
    """Unique within the split."""
    query_set: str
    """How its negatives were made: "uniform", "near" or "order" (text), "symbol" or "order" (easyhuman), "uniform"
    (sequential video) or "spatial"."""
    candidate: np.ndarray
    """uint8 [n]."""
    label: int
    """1 where it occurred, else 0."""
    age: int
    """Symbols between the end of its latest occurrence and the end of the stream; -1 for negatives."""
    candidate_belts: np.ndarray | None = None
    """uint8 [n], for video."""
    meta: dict[str, Any] = field(default_factory=dict)
    """`kind` ("positive", or how the negative was made), `pair` (a positive and a negative of one length share it),
    and what else its generator tells."""


@dataclass(frozen=True)
class Cell:
    """Streams of one kind and the queries about them."""

    key: str
    """Its folder's name, such as "low-L0064"."""
    band: str
    """"max", "low" or "easyhuman"."""
    length: int
    """L."""
    query_sets: tuple[str, ...]
    medium: str
    """"text" or "video": what a memory is shown."""
    variant: str | None
    """"sequential" or "spatial" for video with letters of three belts, else None."""
    manifest: dict[str, Any] = field(repr=False)
    """The whole manifest: counts, entropy, reference solvers' accuracies, recipe."""
    read_streams: Callable[[], list[StreamRecord]] = field(repr=False, compare=False)
    read_queries: Callable[[], list[QueryRecord]] = field(repr=False, compare=False)

    def streams(self) -> list[StreamRecord]:
        """All streams, in order."""
        return self.read_streams()

    def queries(self, query_set: str | None = None) -> list[QueryRecord]:
        """All queries in the order of their streams, or those of one query set.

        Raises:
            ValueError: for a query set that the cell does not have; names those that it has.
        """
        found = self.read_queries()
        if query_set is None:
            return found
        check_name("query_set", query_set, self.query_sets)
        return [query for query in found if query.query_set == query_set]


@dataclass(frozen=True)
class Split:
    """A benchmark on disk, checked and ready to be read."""

    name: str
    """"text", "easyhuman" or "video"."""
    version: str
    """Of the files and the data: "format.data.0"."""
    seed: int
    cells: list[Cell]
    recipe: dict[str, Any]
    """Every option it was built with."""

    def cell(self, key: str) -> Cell:
        """The cell of that key.

        Raises:
            ValueError: for an unknown key; names the nearest.
        """
        keys = [cell.key for cell in self.cells]
        check_name("cell", key, keys)
        return self.cells[keys.index(key)]
