"""Response tables on disk: reading Parquet, CSV and JSON lines, and writing that survives a kill.

An evaluation appends its rows in named parts. A part is written to a hidden file, flushed, and renamed, so it is there
whole or not at all; the same command run again asks the writer which parts exist and continues with the others:

    with ResponseWriter("eval/responses.parquet", identity={"checkpoint": digest}) as writer:
        for name, batch in work:                      # name: deterministic, e.g. "max-L128-0003"
            if name not in writer:
                writer.append(name, answer(batch))
        writer.finish()                               # one Parquet file; the parts are removed

Until `finish`, the parts lie in `eval/responses.parts/`; `read_tables` reads that folder as well as the final file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from scoring.table import ROW_KEY, SCHEMA, TableError, TableLike, validate

READABLE = (".parquet", ".csv", ".jsonl", ".ndjson")
_META = b"scoring"


def read_tables(paths: Iterable[str | Path] | str | Path) -> pa.Table:
    """Read, validate and join response tables.

    Args:
        paths: files (.parquet, .csv, .jsonl) or folders of such files, e.g. the parts of an unfinished evaluation.

    Returns:
        The canonical table. `sources(table)` lists the files it came from.

    Raises:
        TableError: a file is missing, unreadable or malformed, or two files answer the same question of one system.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise TableError("no response table given")
    files = list(dict.fromkeys(file for path in paths for file in _files(Path(path))))
    raw = [_read_file(file) for file in files]
    joined = _joined(files, raw)
    origins = [{"path": str(f), "sha256": _sha256(f), "rows": len(r)} for f, r in zip(files, raw, strict=True)]
    return joined.replace_schema_metadata({_META: json.dumps({"sources": origins}).encode()})


def _joined(files: list[Path], raw: list[TableLike]) -> pa.Table:
    """All files as one canonical table."""
    if len(raw) > 1 and all(isinstance(r, pa.Table) and r.schema.equals(SCHEMA) for r in raw):
        # Hundreds of parts of one evaluation: one check for all is quicker, and a failure is named below.
        with contextlib.suppress(TableError):
            return validate(pa.concat_tables(r.replace_schema_metadata() for r in raw))
    line_of_first_row = {".csv": 2, ".jsonl": 1, ".ndjson": 1}
    tables = [
        validate(r, source=str(file), line_offset=line_of_first_row.get(file.suffix))
        for file, r in zip(files, raw, strict=True)
    ]
    _refuse_shared_questions(files, tables)
    return validate(pa.concat_tables(tables), source=" + ".join(map(str, files))) if len(tables) > 1 else tables[0]


def sources(table: pa.Table) -> list[dict[str, Any]]:
    """Files behind a table from `read_tables`: path, sha256, rows. Empty for a table made in memory."""
    return _metadata(table.schema).get("sources", [])


class ResponseWriter:
    """Collects a response table part by part; at most the part being written is lost when the process is killed.

    Args:
        path: the final Parquet file.
        identity: what makes this evaluation itself (checkpoint digest, query set, seed, ...; JSON values). Parts
            written under another identity are not continued but refused, naming the differing key.

    Raises:
        ValueError: `path` does not end in .parquet, or holds another evaluation's rows.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix != ".parquet":
            raise ValueError(f"{self.path}: the table is written as Parquet; end the name in .parquet")
        self.parts = self.path.with_suffix(".parts")
        self.identity = json.loads(json.dumps(dict(identity or {})))
        self.finished = self.path.exists()
        if self.finished:
            self._same_identity(_metadata(_open_schema(self.path)).get("identity", {}), self.path)
            shutil.rmtree(self.parts, ignore_errors=True)  # left over from a kill between rename and clean-up
            return
        self.parts.mkdir(parents=True, exist_ok=True)
        for stale in self.parts.glob(".*.tmp"):
            stale.unlink(missing_ok=True)
        record = self.parts / "identity.json"
        if record.exists():
            self._same_identity(json.loads(record.read_text()), self.parts)
        else:
            atomic(record, lambda file: file.write_text(json.dumps(self.identity)))

    def __contains__(self, name: str) -> bool:
        """Whether this part is already on disk (always, once finished)."""
        return self.finished or self._part(name).exists()

    def append(self, name: str, rows: TableLike) -> None:
        """Validate rows and write them as the part `name`, atomically.

        Raises:
            TableError: the rows are malformed.
            ValueError: the part exists already, the name is not a plain file name, or the table is finished.
        """
        if name in self:
            raise ValueError(f"part {name!r} of {self.path} is already written; test `name in writer` first")
        table = validate(rows, source=f"part {name!r}")
        atomic(self._part(name), lambda file: pq.write_table(table, file, compression="zstd"))

    def table(self) -> pa.Table:
        """All rows so far."""
        return read_tables(self.path if self.finished else self.parts)

    def finish(self) -> Path:
        """Join the parts into the final file and remove them; does nothing when that has been done."""
        if not self.finished:
            table = self.table().replace_schema_metadata({_META: json.dumps({"identity": self.identity}).encode()})
            atomic(self.path, lambda file: pq.write_table(table, file, compression="zstd"))
            self.finished = True
            shutil.rmtree(self.parts, ignore_errors=True)
        return self.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        """Nothing to close: every part is complete on disk when `append` returns."""

    def _part(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(f"part name {name!r}: use letters, digits, '.', '_' and '-' only")
        return self.parts / f"{name}.parquet"

    def _same_identity(self, found: Mapping[str, Any], where: Path) -> None:
        for key in sorted(set(found) | set(self.identity)):
            if found.get(key) != self.identity.get(key):
                raise ValueError(
                    f"{where} holds another evaluation: {key} is {found.get(key)!r} there and "
                    f"{self.identity.get(key)!r} now; move it away or write to another path"
                )


def write_table(table: TableLike, path: str | Path) -> Path:
    """Validate a whole table and write it to .parquet, .csv or .jsonl, atomically."""
    path, valid = Path(path), validate(table)
    frame = pl.DataFrame(pl.from_arrow(valid))
    writers = {
        ".parquet": lambda file: pq.write_table(valid, file, compression="zstd"),
        ".csv": frame.write_csv,
        ".jsonl": frame.write_ndjson,
        ".ndjson": frame.write_ndjson,
    }
    if path.suffix not in writers:
        raise ValueError(f"{path}: unknown ending {path.suffix!r}; use one of {', '.join(writers)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic(path, writers[path.suffix])
    return path


def atomic(path: Path, write: Any) -> None:
    """Call `write(hidden file)`, flush it to disk and rename it to `path`; on failure leave nothing behind."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(hidden)
        with open(hidden, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(p for p in path.iterdir() if p.suffix in READABLE and not p.name.startswith("."))
    if not inside:
        raise TableError(f"{path}: no response table in this folder (looked for {', '.join(READABLE)})")
    return inside


def _read_file(path: Path) -> TableLike:
    """The file's rows as they are; text stays text, so that `validate` can name the line of a bad value."""
    if path.suffix not in READABLE:
        raise TableError(f"{path}: unknown ending {path.suffix!r}; use one of {', '.join(READABLE)}")
    if not path.exists():
        raise TableError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        return pl.read_csv(path, infer_schema=False) if path.suffix == ".csv" else _read_lines(path)
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TableError(f"{path}: unreadable as {path.suffix[1:]} ({reason})") from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TableError(f"{path}: line {number} is not JSON ({error.msg}); each line holds one row") from error
        if not isinstance(row, dict):
            raise TableError(f"{path}: line {number} is not an object with named columns")
        rows.append(row)
    return rows


def _refuse_shared_questions(files: list[Path], tables: list[pa.Table]) -> None:
    """Refuse two files that answer the same question of one system, naming both files."""
    key = list(ROW_KEY)
    tagged = [pl.DataFrame(pl.from_arrow(t.select(key))).with_columns(file=pl.lit(i)) for i, t in enumerate(tables)]
    shared = pl.concat(tagged).group_by(key).agg(pl.col("file").sort()).filter(pl.col("file").list.len() > 1)
    if shared.height:
        row = shared.sort(key).row(0, named=True)
        raise TableError(
            f"{files[row['file'][0]]} and {files[row['file'][1]]} both answer stream {row['stream']}, query "
            f"{row['query']} (band {row['band']}, L {row['L']}) as system {row['system']!r}; give each system its own "
            "name, or pass one of the files"
        )


def _open_schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{path}: unreadable as parquet; delete it to evaluate again") from error


def _metadata(schema: pa.Schema) -> dict[str, Any]:
    return json.loads((schema.metadata or {}).get(_META, b"{}"))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
