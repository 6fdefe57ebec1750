"""Why a stream is as it is, in words: its rules applied place by place, and the questions about it.

python -m tasks show outputs/text low-L0064 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tasks.splits.recipes import rule_set
from tasks.splits.records import Cell, QueryRecord, Split, StreamRecord

_PER_LINE = 32  # symbols
_MOST_LINES = 16  # of a long stream


def find_stream(cell: Cell, name: str) -> StreamRecord:
    """A stream by its identity or by its number within the cell.

    Raises:
        ValueError: there is none; says which there are.
    """
    records = cell.streams()
    for number, record in enumerate(records):
        if name in (record.stream_id, str(number)):
            return record
    raise ValueError(
        f"no stream {name!r} in cell {cell.key}: name one by number, 0 to {len(records) - 1}, or by identity, such as "
        f"{records[0].stream_id}"
    )


def explain_split(split: Split) -> Iterator[str]:
    """Lines about every cell."""
    yield f"{split.name} {split.version}, seed {split.seed}: {len(split.cells)} cells"
    for cell in split.cells:
        counts = ", ".join(f"{name} {about['queries']}" for name, about in cell.manifest["queries"].items())
        rate = cell.manifest["rate"]
        yield f"  {cell.key:24s} {cell.manifest['streams']} streams at {rate['mean']:.2f} bits; queries: {counts}"


def explain_cell(cell: Cell) -> Iterator[str]:
    """Lines about a cell: its entropy and what memories without learning score on it."""
    manifest = cell.manifest
    rate = manifest["rate"]
    yield (
        f"{cell.key}: {manifest['streams']} streams of {cell.length}, {manifest['distinct_streams']} distinct, "
        f"{rate['mean']:.3f} bits per symbol (std {rate['std']:.3f}, {rate['min']:.3f} to {rate['max']:.3f})"
    )
    for query_set, about in manifest["queries"].items():
        solvers = "  ".join(f"{name} {100 * right:.0f}%" for name, right in about["solvers"].items())
        left = f", {about['left_out']} left out ({about['why_left_out']})" if about["left_out"] else ""
        yield f"  {query_set}: {about['yes']} yes, {about['no']} no{left}"
        yield f"    {solvers}"


def explain_stream(cell: Cell, stream: StreamRecord, queries: Sequence[QueryRecord]) -> Iterator[str]:
    """Lines about a stream: where it came from, what it holds, and what is asked."""
    yield f"{stream.stream_id}: {cell.length} symbols, band {cell.band}, {stream.rate:.3f} bits per symbol"
    if stream.rate != stream.estimate:
        yield f"  (by definition; the Lempel-Ziv estimate is {stream.estimate:.3f})"
    yield from _source(stream)
    yield ""
    yield from _symbols(stream)
    yield ""
    for query in queries:
        yield "  " + _question(query)


def _source(stream: StreamRecord) -> Iterator[str]:
    rules = stream.rules
    if rules is None:
        yield "  every symbol uniform over 0..15, independent of the others"
    elif "motif" in rules:
        yield f"  {rules['structure']}: {_list(rules['motif'])} again and again, except"
        for deviation in rules["deviations"]:
            yield f"    at {deviation['start']}: {_list(deviation['symbols'])}"
    else:
        yield (
            f"  {rules['source']}, sampler {rules['sampler']}, rule set {rules['tries']} of those drawn"
            + (f", aimed at {rules['target']:.3f} bits" if rules["target"] is not None else "")
        )
        source = rule_set(rules)
        used = Counter(source.contexts(stream.symbols.tolist()))
        for context, times in sorted(used.items(), key=lambda item: (-item[1], item[0])):
            named = source.rules.get(context, {})
            after = f"after {_list(context)}" if context else "where no rule applies"
            what = ", ".join(f"{symbol} {p:.3f}" for symbol, p in sorted(named.items(), key=lambda item: -item[1]))
            rest = max(0.0, 1 - sum(named.values()))
            even = f"the others {rest:.3f} together" if named and rest > 5e-4 else ""
            yield f"    {times:5d} x {after}: {', '.join(part for part in (what, even) if part) or 'any symbol'}"
        unused = len(source.rules) - len(set(used) - {()})
        if unused:
            yield f"    {unused} further rules never came up"


def _symbols(stream: StreamRecord) -> Iterator[str]:
    lines = range(0, len(stream.symbols), _PER_LINE)
    for start in lines[:_MOST_LINES]:
        yield f"  {start:5d}  {_list(stream.symbols[start : start + _PER_LINE])}"
        if stream.belts is not None:
            yield f"  belts  {_list(stream.belts[start : start + _PER_LINE])}"
    if len(lines) > _MOST_LINES:
        yield f"         ... {len(stream.symbols) - _PER_LINE * _MOST_LINES} more"


def _question(query: QueryRecord) -> str:
    belts = "" if query.candidate_belts is None else f" on belts {_list(query.candidate_belts)}"
    answer = f"yes, last seen {query.age} before the end" if query.label else f"no ({query.meta.get('kind', '?')})"
    return f"{query.query_id}: {_list(query.candidate)}{belts}? {answer}"


def _list(values: Sequence[int] | np.ndarray) -> str:
    return " ".join(str(int(value)) for value in values)
