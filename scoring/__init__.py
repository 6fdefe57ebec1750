"""Scores any memory from its response table: efficiency, compression, calibration, frontiers, reports.

Start at `table.py` for what a table holds, `docs/scoring.md` for what each number means, `python -m scoring --help`
for the command line. Nothing here needs torch or another folder of this repository.
"""

from scoring.storage import ResponseWriter, read_tables, sources, write_table
from scoring.summary import Scores, Settings, score
from scoring.table import COLUMNS, SCHEMA, TableError, validate

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "ResponseWriter",
    "Scores",
    "Settings",
    "TableError",
    "read_tables",
    "score",
    "sources",
    "validate",
    "write_table",
]
