"""The file of answers: every answer is on disk before the next question is asked.

One line of JSON per answer. The lines are a response table (scoring reads .jsonl), with what the model wrote, its
tokens and its frames beside the table's columns. After `kill -9` the file holds every answer but perhaps the one that
was being written; the next evaluation drops a line cut short and asks that question again. A question that ended in an
error keeps its line, which scoring refuses, until the next evaluation asks it again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from backbones.run import replacing
from lab.config import UsageError

QUESTION_KEY = ("task", "split", "query_set", "band", "L", "stream", "query", "arm")


class Answers:
    """The file of answers: one JSON line each, in the order they came.

    Opening it drops a last line that a kill cut short, and the lines of errors: those questions are asked again.

    Args:
        path: ends in .jsonl.

    Raises:
        UsageError: another process is writing to it, or a line in its middle is not JSON.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._files = ExitStack()
        lock = self._files.enter_context(open(path.with_suffix(".lock"), "ab"))  # noqa: SIM115 - close() closes it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._files.close()
            raise UsageError(f"another evaluation is writing to {path}; let it finish or stop it") from None
        found = list(read_lines(path)) if path.exists() else []
        self.records = {key_of(record): record for record in found if record["error"] is None}
        with replacing(path) as temporary:
            temporary.write_bytes(b"".join(map(_line, self.records.values())))
        self._file = self._files.enter_context(open(path, "ab"))  # noqa: SIM115 - close() closes it

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self.records

    def add(self, *records: dict[str, Any]) -> None:
        """Append answers and flush them to disk."""
        self.records |= {key_of(record): record for record in records}
        self._file.write(b"".join(map(_line, records)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._files.close()


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of answers, without a last line that was cut short."""
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last line break is empty, or cut short
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}: line {number} is not JSON ({error}); delete that line: it is asked again"
            ) from None


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two records answers to the same question."""
    return tuple(record[name] for name in QUESTION_KEY)
