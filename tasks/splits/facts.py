"""Is every answer of a cell right? A slow, independent check of every stream and query, by substring search.

Written from the definition of the task and from none of the code that draws questions: streams and candidates become
byte strings, one byte per frame (letter and belt together where there are belts), and Python searches them. A cell is
handed over as records, so that anybody's cell can be checked.

What a negative claims about itself is checked too (`meta["kind"]`): a `near` negative is a window with one symbol
changed, all of whose pairs occur; an `order` negative has its positive's symbols; a `symbol` negative differs from its
positive in one place, and a `spatial` one in one belt.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tasks.batch import MAX_CANDIDATE, VOCABULARY
from tasks.lempel_ziv import rate
from tasks.splits.recipes import rule_set
from tasks.splits.records import Cell, QueryRecord, StreamRecord
from tasks.splits.reference import joint

_BELTS = 3


def wrong_facts(cell: Cell, streams: Sequence[StreamRecord], queries: Sequence[QueryRecord]) -> Iterator[str]:
    """A line for everything that is not as it says."""
    seen = Counter(stream.stream_id for stream in streams) + Counter(query.query_id for query in queries)
    yield from (f"{name} is there {count} times" for name, count in seen.items() if count > 1)
    by_id = {stream.stream_id: stream for stream in streams}
    text = {name: joint(stream.symbols, stream.belts) for name, stream in by_id.items()}
    for stream in streams:
        yield from (f"stream {stream.stream_id}: {what}" for what in _wrong_stream(cell, stream))
    pairs: dict[tuple, list[QueryRecord]] = defaultdict(list)
    for query in queries:
        if query.stream_id not in by_id:
            yield f"query {query.query_id}: there is no stream {query.stream_id}"
            continue
        yield from (f"query {query.query_id}: {what}" for what in _wrong_query(cell, query, text[query.stream_id]))
        if "pair" in query.meta:
            pairs[query.stream_id, query.query_set, query.meta["pair"]].append(query)
    for (stream_id, query_set, number), both in pairs.items():
        place = f"stream {stream_id}, pair {number} of {query_set}"
        if sorted(query.label for query in both) != [0, 1]:
            yield f"{place}: labels {[query.label for query in both]} instead of one yes and one no"
        elif len(both[0].candidate) != len(both[1].candidate):
            yield f"{place}: candidates of {len(both[0].candidate)} and {len(both[1].candidate)} symbols"
        else:
            positive, negative = sorted(both, key=lambda query: -query.label)
            yield from (f"{place}: {what}" for what in _wrong_pair(negative, positive))


def _wrong_stream(cell: Cell, stream: StreamRecord) -> Iterator[str]:
    if len(stream.symbols) != cell.length or max(stream.symbols) >= VOCABULARY:
        yield f"{len(stream.symbols)} symbols up to {max(stream.symbols)} in a cell of {cell.length} below {VOCABULARY}"
    if (stream.belts is not None) != (cell.medium == "video"):
        yield f"belts are {'there' if stream.belts is not None else 'missing'} in a cell of {cell.medium}"
    elif stream.belts is not None and (len(stream.belts) != cell.length or max(stream.belts) >= _BELTS):
        yield f"{len(stream.belts)} belts up to {max(stream.belts)} for {cell.length} symbols"
    if stream.estimate != rate(stream.symbols):
        yield f"estimate {stream.estimate}, but its Lempel-Ziv rate is {rate(stream.symbols)}"
    if stream.rules is not None and "rules" in stream.rules:
        rules = rule_set(stream.rules)
        symbols = stream.symbols.tolist()
        for i, context in enumerate(rules.contexts(symbols)):
            if rules.distribution(context)[symbols[i]] <= 0:
                yield f"its rules cannot have drawn symbol {symbols[i]} at place {i}, after context {list(context)}"
                break


def _wrong_query(cell: Cell, query: QueryRecord, stream: bytes) -> Iterator[str]:
    n = len(query.candidate)
    if not 2 <= n <= MAX_CANDIDATE or max(query.candidate) >= VOCABULARY:
        yield f"candidate {query.candidate.tolist()}: expected 2 to {MAX_CANDIDATE} symbols below {VOCABULARY}"
        return
    if query.query_set not in cell.query_sets:
        yield f"query set {query.query_set} in a cell of {', '.join(cell.query_sets)}"
    if (query.candidate_belts is not None) != (cell.medium == "video"):
        yield f"belts of the candidate are wrong for a cell of {cell.medium}"
        return
    candidate = joint(query.candidate, query.candidate_belts)
    found = stream.rfind(candidate)
    if query.label != (found >= 0):
        yield f"label {query.label}, but {query.candidate.tolist()} occurs {_count(stream, candidate)} times"
    elif query.age != (len(stream) - found - n if found >= 0 else -1):
        yield f"age {query.age}, but its latest occurrence begins at {found} of {len(stream)}"
    elif query.meta.get("kind") == "near":
        changed = (
            re.search(re.escape(candidate[:i]) + b"." + re.escape(candidate[i + 1 :]), stream, re.DOTALL)
            for i in range(n)
        )
        if not any(changed):
            yield f"no window of the stream differs from {query.candidate.tolist()} in one symbol"
        if not all(candidate[i : i + 2] in stream for i in range(n - 1)):
            yield f"a pair of {query.candidate.tolist()} occurs nowhere in the stream"


def _wrong_pair(negative: QueryRecord, positive: QueryRecord) -> Iterator[str]:
    kind = negative.meta.get("kind")
    no, yes = negative.candidate.tolist(), positive.candidate.tolist()
    if kind == "order" and sorted(no) != sorted(yes):
        yield f"{no} does not have the symbols of {yes}"
    if kind == "symbol" and sum(a != b for a, b in zip(no, yes, strict=True)) != 1:
        yield f"{no} does not differ from {yes} in one symbol"
    if kind == "spatial":
        moved = sum(negative.candidate_belts != positive.candidate_belts)
        if no != yes or moved != 1:
            yield f"letters {no} and {yes}, {moved} belts differ; expected the same letters and one other belt"


def _count(stream: bytes, window: bytes) -> int:
    return sum(stream.startswith(window, i) for i in range(len(stream)))
