"""Splits: the benchmark as files that can be built again, read anywhere, checked and explained.

    python -m tasks build split=text out=outputs/text      every cell, from one seed
    python -m tasks verify outputs/text                    checksums, then every leak test
    split = tasks.load("outputs/text")                     -> Split; tasks/splits/records.py says what is in it

Start at `records.py` (what a split is), then `recipes.py` (what the three splits hold), `storage.py` (the files) and
`leaks.py` (why an answer cannot be guessed). docs/splits.md has the formats and the measured sizes.
"""

from tasks.splits.records import Cell, QueryRecord, Split, StreamRecord
from tasks.splits.storage import SplitError, load

__all__ = ["Cell", "QueryRecord", "Split", "SplitError", "StreamRecord", "load"]
