"""What memories with nothing to learn score on a cell, so that nobody reads an easy query set as compression.

The reference solvers of `tasks/solvers.py`, and one that sees no stream at all:

    repeats    says yes when a symbol of the candidate repeats: what a candidate alone gives away. On the low band with
               uniform negatives it is well above one half, since regular streams repeat and uniform strings seldom do

Cells with belts are asked about (letter, belt) pairs. There the solvers that count symbols see the letters only, which
is what a memory blind to belts knows; `set1` to `set3` and `exact` see the pairs, and `exact_letters` is `exact` on
letters alone.

Letters: L symbols per stream, n symbols per candidate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tasks.batch import MAX_CANDIDATE, PAD
from tasks.solvers import SOLVERS, solver
from tasks.splits.records import QueryRecord, StreamRecord

_CHUNK = 1 << 18  # symbols of stream times queries, roughly: bounds memory, changes nothing
_BELTS = 3


def accuracies(streams: Sequence[StreamRecord], queries: Sequence[QueryRecord]) -> dict[str, dict[str, float]]:
    """Share of right answers: {query set: {solver: accuracy}}."""
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    by_stream: dict[str, list[QueryRecord]] = defaultdict(list)
    for query in queries:
        by_stream[query.stream_id].append(query)
    belted = any(stream.belts is not None for stream in streams)
    learned = tuple(name for name in SOLVERS if not (belted and name.startswith("set")))
    rows = max(1, _CHUNK // max(len(streams[0].symbols), 256))
    for start in range(0, len(streams), rows):
        some = [stream for stream in streams[start : start + rows] if by_stream[stream.stream_id]]
        if some:
            asked = [by_stream[stream.stream_id] for stream in some]
            for name, answers in _solver_answers(learned, some, asked).items():
                name = "exact_letters" if belted and name == "exact" else name
                for group, yes in zip(asked, answers, strict=True):
                    _note(right, name, group, yes)
    if belted:
        for stream in streams:
            for name, yes in _pair_answers(stream, by_stream[stream.stream_id]).items():
                _note(right, name, by_stream[stream.stream_id], yes)
    _note(right, "repeats", queries, [len(set(q.candidate.tolist())) < len(q.candidate) for q in queries])
    return {
        query_set: {name: float(np.mean(hits)) for name, hits in sorted(table.items())}
        for query_set, table in right.items()
    }


def joint(symbols: np.ndarray, belts: np.ndarray | None) -> bytes:
    """A stream or candidate as one byte per frame: the symbol, or the (symbol, belt) pair."""
    symbols = np.asarray(symbols, np.uint8)
    return bytes(symbols if belts is None else symbols * np.uint8(_BELTS) + np.asarray(belts, np.uint8))


def _note(right: dict, name: str, queries: Sequence[QueryRecord], yes: Sequence[bool]) -> None:
    for query, answer in zip(queries, yes, strict=True):
        right[query.query_set][name].append(bool(answer) == bool(query.label))


def _solver_answers(
    names: Sequence[str], streams: Sequence[StreamRecord], asked: Sequence[Sequence[QueryRecord]]
) -> dict[str, list[list[bool]]]:
    """{solver: answers to each stream's queries}; streams may have different numbers of queries."""
    most = max(map(len, asked))
    candidates = torch.full((len(streams), most, MAX_CANDIDATE), PAD)
    candidates[..., 0] = 0  # places without a query hold a one-symbol candidate, whose answer is dropped
    lengths = torch.ones((len(streams), most), dtype=torch.int64)
    for row, group in enumerate(asked):
        for place, query in enumerate(group):
            candidates[row, place, : len(query.candidate)] = torch.from_numpy(query.candidate.astype(np.int64))
            lengths[row, place] = len(query.candidate)
    x = torch.from_numpy(np.stack([stream.symbols for stream in streams]).astype(np.int64))
    answers = {}
    for name in names:
        memory = solver(name)
        yes = memory.read(candidates, lengths, memory.write(x)) > 0.5
        answers[name] = [row[: len(group)] for row, group in zip(yes.tolist(), asked, strict=True)]
    return answers


def _pair_answers(stream: StreamRecord, queries: Sequence[QueryRecord]) -> dict[str, list[bool]]:
    """The set solvers and `exact` over (letter, belt) pairs."""
    seen = joint(stream.symbols, stream.belts)
    asked = [joint(query.candidate, query.candidate_belts) for query in queries]

    def holds(k: int) -> Callable[[bytes], bool]:
        known = _grams(seen, k)
        return lambda candidate: _grams(candidate, k) <= known

    answers = {f"set{k}": list(map(holds(k), asked)) for k in (1, 2, 3)}
    return answers | {"exact": [candidate in seen for candidate in asked]}


def _grams(text: bytes, k: int) -> set[bytes]:
    return {text[i : i + k] for i in range(len(text) - k + 1)}
