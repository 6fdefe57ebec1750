"""Tables of raw values with one description, shown on a terminal, as Markdown, or as separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Column:
    """A column: the key of its value in a row, its heading, how a value is shown, and whether it is a number."""

    key: str
    heading: str
    show: Callable[[Any], str] = str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows are dictionaries of raw values, some of which have a column; a missing or None value is shown as a dash.

    Args:
        name: of its rows, for programs.
        title: for readers.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    notes: Sequence[str] = ()

    def _cells(self, row: dict[str, Any]) -> list[str]:
        return ["-" if row.get(c.key) is None else c.show(row[c.key]) for c in self.columns]

    def print(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
        for column in self.columns:
            table.add_column(column.heading, justify="right" if column.number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*self._cells(row))
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", highlight=False, markup=False)
        console.print()

    def markdown(self) -> str:
        lines = [[c.heading for c in self.columns], ["---:" if c.number else "---" for c in self.columns]]
        lines += [self._cells(row) for row in self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return "\n\n".join([f"**{self.title}**", table, *self.notes])


def by_name(tables: Sequence[Table]) -> dict[str, list[dict[str, Any]]]:
    """The raw rows of all tables of one name in one list."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        rows.setdefault(table.name, []).extend(table.rows)
    return rows


def separated(rows: Sequence[dict[str, Any]], delimiter: str) -> str:
    """Raw values under their keys, one row a line."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, keys, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
