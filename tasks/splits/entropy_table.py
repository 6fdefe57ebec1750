"""The low band's Lempel-Ziv rates beside the paper's, as a table of docs/splits.md.

python -m tasks entropy-table outputs/text                            print it
python -m tasks entropy-table outputs/text docs=docs/splits.md        write it into the document
python -m tasks entropy-table outputs/text docs=docs/splits.md --check    exit status 1 if the document differs
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tasks.splits.records import Split

PAPER = ("paper, pooled (A.1)", "200", "0.67", "0.16", "0.33", "0.99", "")
_HEAD = ("L", "streams", "mean", "std", "min", "max", "tries per stream")
_BLOCK = re.compile(r"(<!-- python -m tasks entropy-table [^\n]*-->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def entropy_table(split: Split) -> str:
    """Markdown: one row per length of the low band, all pooled, and the paper's line.

    Raises:
        ValueError: for a split without a low band.
    """
    rows, rates, tries = [], [], []
    for cell in split.cells:
        if cell.band == "low" and cell.medium == "text":
            records = cell.streams()
            rates.append([record.rate for record in records])
            tries.append([record.rules["tries"] for record in records])
            rows.append(_row(str(cell.length), rates[-1], tries[-1]))
    if not rows:
        raise ValueError(f"the split {split.name} has no low band of text; build split=text")
    rows.append(_row("ours, pooled", np.concatenate(rates), np.concatenate(tries)))
    lines = [_HEAD, ("---",) * len(_HEAD), *rows, PAPER]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_document(text: str, table: str) -> str:
    """A document with its table written again.

    Raises:
        ValueError: the document has no place for it.
    """
    if not _BLOCK.search(text):
        raise ValueError("no block from <!-- python -m tasks entropy-table ... --> to <!-- end --> in the document")
    return _BLOCK.sub(lambda found: found[1] + table + found[2], text)


def _row(name: str, rates: Sequence[float], tries: Sequence[int]) -> tuple[str, ...]:
    numbers = (np.mean(rates), np.std(rates), np.min(rates), np.max(rates))
    return (name, str(len(rates)), *(f"{number:.2f}" for number in numbers), f"{np.mean(tries):.1f}")
