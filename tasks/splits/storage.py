"""A split on disk, and the checks between a file and a number somebody will trust.

    DIR/
      questions.json            the index: recipe, seed, and where each cell is; written first
      low-L0064/                one folder per cell, renamed into place when complete
        streams.parquet         stream_id, symbols, rate, estimate, rules (JSON), belts
        queries.parquet         query_id, stream_id, query_set, candidate, candidate_belts, label, age, meta (JSON)
        manifest.json           counts, entropy, reference solvers' accuracies, SHA-256 of both tables
      croissant.json            Croissant 1.0 metadata
      checksums                 SHA-256 of every file above, as `sha256sum -c checksums` reads it; written last

A folder with an index and no `checksums` is an unfinished build. Every file carries the split's version
"format.data.0": the first number changes when files look different, the second when the same options give other data.
`load` reads every byte once and refuses what is missing, truncated, edited or of another version; the message names the
file and the command that makes it again. Nothing here unpickles, and no file holds a date or a path, so that one recipe
gives the same bytes wherever it is built (with one version of pyarrow).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.splits.records import Cell, QueryRecord, Split, StreamRecord

NAME = "ecclab-split"
FORMAT = 1
INDEX, CHECKSUMS, CROISSANT, MANIFEST = "questions.json", "checksums", "croissant.json", "manifest.json"
STREAMS, QUERIES = "streams.parquet", "queries.parquet"
CELL_FILES = (STREAMS, QUERIES, MANIFEST)

_SYMBOLS = pa.list_(pa.uint8())
SCHEMAS = {
    STREAMS: pa.schema(
        {
            "stream_id": pa.string(),
            "symbols": _SYMBOLS,
            "rate": pa.float64(),
            "estimate": pa.float64(),
            "rules": pa.string(),
            "belts": _SYMBOLS,
        }
    ),
    QUERIES: pa.schema(
        {
            "query_id": pa.string(),
            "stream_id": pa.string(),
            "query_set": pa.string(),
            "candidate": _SYMBOLS,
            "candidate_belts": _SYMBOLS,
            "label": pa.int8(),
            "age": pa.int32(),
            "meta": pa.string(),
        }
    ),
}


class SplitError(ValueError):
    """A split that cannot be trusted or built; the message names the file and says what to do."""


# -- writing -----------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """JSON in a fixed layout: the same value is always the same bytes."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def streams_table(streams: Sequence[StreamRecord]) -> pa.Table:
    """The table of a cell's streams."""
    return pa.table(
        {
            "stream_id": [s.stream_id for s in streams],
            "symbols": _lists([s.symbols for s in streams]),
            "rate": [float(s.rate) for s in streams],
            "estimate": [float(s.estimate) for s in streams],
            "rules": [None if s.rules is None else _compact(s.rules) for s in streams],
            "belts": _lists([s.belts for s in streams]),
        },
        schema=SCHEMAS[STREAMS],
    )


def queries_table(queries: Sequence[QueryRecord]) -> pa.Table:
    """The table of a cell's queries."""
    return pa.table(
        {
            "query_id": [q.query_id for q in queries],
            "stream_id": [q.stream_id for q in queries],
            "query_set": [q.query_set for q in queries],
            "candidate": _lists([q.candidate for q in queries]),
            "candidate_belts": _lists([q.candidate_belts for q in queries]),
            "label": [int(q.label) for q in queries],
            "age": [int(q.age) for q in queries],
            "meta": [_compact(q.meta) for q in queries],
        },
        schema=SCHEMAS[QUERIES],
    )


def table_bytes(table: pa.Table, version: str, key: str) -> bytes:
    """A table as a Parquet file that says which version and cell it belongs to."""
    tagged = table.replace_schema_metadata({"format": NAME, "version": version, "cell": key})
    sink = pa.BufferOutputStream()
    pq.write_table(tagged, sink, compression="zstd", row_group_size=1 << 16)
    return sink.getvalue().to_pybytes()


def checksums_bytes(version: str, digests: dict[str, str]) -> bytes:
    """The checksum file; `sha256sum` skips its first line as a comment."""
    lines = [f"# {NAME} {version}", *(f"{digest}  {name}" for name, digest in sorted(digests.items()))]
    return ("\n".join(lines) + "\n").encode()


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lists(arrays: Sequence[np.ndarray | None]) -> pa.Array:
    """Arrays of symbols as a list column, without a Python object per symbol."""
    sizes = [0 if a is None else len(a) for a in arrays]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    there = [np.asarray(a, np.uint8) for a in arrays if a is not None]
    values = pa.array(np.concatenate(there) if there else np.zeros(0, np.uint8))
    missing = pa.array([a is None for a in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=missing)


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Split:
    """Read a split's index and manifests after checking every file against `checksums`.

    Raises:
        SplitError: for anything missing, truncated, edited or of another version; names the file and the fix.
    """
    folder = Path(path)
    index = read_index(folder)
    again = f"run `{build_command(index, folder)}` to make what is missing or damaged again"
    if not (folder / CHECKSUMS).is_file():
        raise SplitError(f"{folder} has no file {CHECKSUMS}: its build has not finished; {again}")
    digests = _read_checksums(folder, index["version"], again)
    wanted = [INDEX, CROISSANT] + [f"{entry['key']}/{name}" for entry in index["cells"] for name in CELL_FILES]
    for name in wanted:
        if name not in digests:
            raise SplitError(f"{folder / CHECKSUMS} does not list {name}, which {INDEX} needs; {again}")
        check_digest(folder / name, digests[name], f"{CHECKSUMS} says", again)
    _check_tag(folder / CROISSANT, _json_object(folder / CROISSANT, again), index["version"], again)
    cells = [_open_cell(folder, entry, index["version"], digests, again) for entry in index["cells"]]
    return Split(index["split"], index["version"], int(index["seed"]), cells, index["recipe"])


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a split, finished or not, of a format that this code reads.

    Raises:
        SplitError: there is none, or it is damaged or of another format.
    """
    path = folder / INDEX
    if not path.is_file():
        raise SplitError(
            f"{folder} holds no split: there is no file {path}; build one with `python -m tasks build split=text "
            f"out={folder}`"
        )
    again = "build the split again in an empty folder (`python -m tasks build --help`)"
    index = _json_object(path, again)
    version = str(index.get("version"))
    if index.get("format") != NAME or version.split(".")[0] != str(FORMAT):
        raise SplitError(
            f"{path}: format {index.get('format')!r}, version {version!r}; this code reads {NAME!r} {FORMAT}.x: use "
            f"the code that wrote it, or {again}"
        )
    missing = {"split", "seed", "recipe", "cells"} - set(index)
    if missing:
        raise SplitError(f"{path}: no {', '.join(sorted(missing))} in it; {again}")
    return index


def read_digests(path: Path) -> dict[str, str]:
    """{file: SHA-256} of a checksum file, without lines that are none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition("  ") for line in lines if not line.startswith("#"))
    return {name: value for value, _, name in pairs if name and len(value) == 64}


def build_command(index: dict[str, Any], folder: Path) -> str:
    """The command that makes a split again, from its recipe."""
    options = " ".join(f"{key}={option(value)}" for key, value in index["recipe"].items())
    return f"python -m tasks build split={index['split']} out={folder} {options}"


def check_digest(path: Path, expected: str, source: str, again: str) -> None:
    """Raise SplitError unless the file's SHA-256 is the expected one."""
    if not path.is_file():
        raise SplitError(f"{path} is missing; {again}")
    found = digest(path.read_bytes())
    if found != expected:
        raise SplitError(
            f"{path}: SHA-256 {found[:12]}..., but {source} {expected[:12]}...: the file was truncated, edited or "
            f"replaced; {again}"
        )


def read_streams(path: Path) -> list[StreamRecord]:
    """All streams of a cell."""
    columns = _columns(path, SCHEMAS[STREAMS])
    rows = zip(*(columns[name] for name in SCHEMAS[STREAMS].names), strict=True)
    return [
        StreamRecord(stream_id, symbols, rate, None if rules is None else json.loads(rules), belts, estimate)
        for stream_id, symbols, rate, estimate, rules, belts in rows
    ]


def read_queries(path: Path) -> list[QueryRecord]:
    """All queries of a cell."""
    columns = _columns(path, SCHEMAS[QUERIES])
    rows = zip(*(columns[name] for name in SCHEMAS[QUERIES].names), strict=True)
    return [
        QueryRecord(stream_id, query_id, query_set, candidate, label, age, belts, dict(_meta(meta)))
        for query_id, stream_id, query_set, candidate, belts, label, age, meta in rows
    ]


def _open_cell(folder: Path, entry: dict[str, Any], version: str, digests: dict[str, str], again: str) -> Cell:
    key = entry["key"]
    path = folder / key / MANIFEST
    manifest = _json_object(path, again)
    _check_tag(path, manifest, version, again)
    for field in ("key", "band", "length", "medium", "variant", "query_sets"):
        if manifest.get(field) != entry.get(field):
            raise SplitError(f"{path}: {field}={manifest.get(field)!r}, but {INDEX} says {entry.get(field)!r}; {again}")
    for name in (STREAMS, QUERIES):
        stated = manifest["files"][name]
        if stated["sha256"] != digests[f"{key}/{name}"]:
            raise SplitError(f"{path}: another SHA-256 for {name} than {CHECKSUMS} has; {again}")
        metadata = pq.read_metadata(folder / key / name)
        tags = {k.decode(): v.decode() for k, v in (metadata.metadata or {}).items() if k != b"ARROW:schema"}
        _check_tag(folder / key / name, tags, version, again)
        if tags.get("cell") != key or metadata.num_rows != stated["rows"]:
            raise SplitError(
                f"{folder / key / name}: {metadata.num_rows} rows of cell {tags.get('cell')!r}, but the manifest says "
                f"{stated['rows']} of {key!r}; {again}"
            )
    return Cell(
        key,
        entry["band"],
        int(entry["length"]),
        tuple(entry["query_sets"]),
        entry["medium"],
        entry["variant"],
        manifest,
        partial(read_streams, folder / key / STREAMS),
        partial(read_queries, folder / key / QUERIES),
    )


def _check_tag(path: Path, tags: dict[str, Any], version: str, again: str) -> None:
    found = tags.get("version")
    if found != version:
        raise SplitError(f"{path}: version {found!r} in a split of version {version!r}; {again}")


def _read_checksums(folder: Path, version: str, again: str) -> dict[str, str]:
    path = folder / CHECKSUMS
    head = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if head != f"# {NAME} {version}":
        raise SplitError(f"{path}: begins with {head!r} instead of '# {NAME} {version}'; {again}")
    return read_digests(path)


def _json_object(path: Path, again: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SplitError(f"{path} cannot be read ({error.strerror}); {again}") from None
    except ValueError as error:
        raise SplitError(f"{path} is not JSON ({error}): truncated or edited; {again}") from None
    if not isinstance(value, dict):
        raise SplitError(f"{path} holds a {type(value).__name__} instead of an object; {again}")
    return value


def _columns(path: Path, schema: pa.Schema) -> dict[str, Iterable]:
    table = pq.read_table(path)
    if table.schema.remove_metadata() != schema:
        raise SplitError(f"{path}: columns {table.schema.names}, expected {schema.names} with the documented types")
    return {
        name: _arrays(column) if column.type == _SYMBOLS else column.to_pylist()
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }


def _arrays(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    """A list column as one view per row into a shared buffer."""
    whole = column.combine_chunks()
    values = whole.values.to_numpy(zero_copy_only=False)
    offsets = whole.offsets.to_numpy().tolist()
    valid = whole.is_valid().to_pylist()
    return [values[offsets[i] : offsets[i + 1]] if there else None for i, there in enumerate(valid)]


@lru_cache(maxsize=4096)
def _meta(text: str) -> dict[str, Any]:
    return json.loads(text)


def option(value: Any) -> str:
    """A recipe's value as the command line has it."""
    return ",".join(str(v) for v in value) if isinstance(value, list | tuple) else str(value)
