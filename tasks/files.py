"""Files that are there whole or not at all, whatever is killed and whoever else writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"
"""How the names of unfinished files begin: what a kill left behind may be deleted."""


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A hidden path beside `path` that takes its place when the block ends well, and disappears when it does not.

    Args:
        path: the file to write; its folder must exist.
        durable: wait until the content is on disk, so that a power cut leaves the old file or the new one.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        yield partial
        if durable:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file; arguments as in `replacing`."""
    with replacing(path, durable) as partial:
        partial.write_bytes(data)
