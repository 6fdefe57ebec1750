"""Two rules of the memory protocol, as checks for any system that answers the same question in the same way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lab.harness import Selection, arriving, observations, query_for
from tasks.splits import Split
from vlms.protocol import MemorySystem, Modality, Observation, Query, Reply


def check_read_order(system: MemorySystem, split: Split) -> None:
    """Rule 2: the same replies in either order, one by one or many at once."""
    seen, queries = _asked(system, split)
    state = system.write(system.open("s", 0), seen)
    forward = _said(system.read(state, q) for q in queries)
    backward = _said(system.read(state, q) for q in reversed(queries))
    assert forward == backward[::-1] == _many(system, state, queries)


def check_pieces(system: MemorySystem, split: Split) -> None:
    """Rule 3: write(a + b) = write(write(a), b), for every cut."""
    seen, queries = _asked(system, split)
    whole = _many(system, system.write(system.open("s", 0), seen), queries)
    for cut in range(len(seen) + 1):
        state = system.write(system.write(system.open("s", 0), seen[:cut]), seen[cut:])
        assert _many(system, state, queries) == whole


def _asked(system: MemorySystem, split: Split) -> tuple[list[Observation], list[Query]]:
    """One stream of a text split and its questions, as the system is shown them."""
    modality: Modality = "text" if "text" in system.modalities else "tokens"
    cell = split.cells[-1]
    stream = cell.streams()[0]
    asked = Selection().queries_of(cell)[stream.stream_id]
    return list(observations(stream, modality)), [query_for(q, modality, None) for q in asked]


def _many(system: MemorySystem, state: Any, queries: list[Query]) -> list[Reply]:
    """As an evaluation asks: in a batch or several at once, where the system can."""
    numbered = dict(itertools.chain.from_iterable(arriving(system, state, queries)))
    return _said(numbered[number] for number in range(len(queries)))


def _said(replies: Iterable[Reply]) -> list[Reply]:
    """Replies without the time they took."""
    return [replace(reply, seconds=0.0) for reply in replies]
