"""What the registry holds, as a table for a terminal and as the page docs/models.md.

Everything is read off the code: the first line and the paper of a module's docstring, the fields of a Config with the
docstring below each, parameters from the built model, prices from its terms.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from backbones import MembershipModel, lookup
from backbones.registry import price_of
from flops.tables import Column, Table

WIDTHS = (64, 128)
LENGTH = 2048
"""Where prices are quoted: twice the paper's longest training length."""

HEAD = """# Models

Made by `python -m backbones models --write`; a test keeps it so. `python -m backbones list` prints the table, \
`python -m flops` the whole price list, and `docs/add_a_backbone.md` says how to add a row.

"""


@cache
def parameters(name: str, width: int) -> int:
    """Of the whole membership model, embeddings and head included."""
    with torch.device("meta"):
        return sum(p.numel() for p in MembershipModel(name, width).parameters())


@cache
def price(name: str, width: int) -> int | None:
    """FLOPs of one answer after `LENGTH` symbols; None where the layer declares no terms."""
    try:
        return price_of(name, width=width).total(LENGTH + 1)
    except NotImplementedError:
        return None


def table(names: Sequence[str]) -> Table:
    """One row for each name: what it is, how large, what an answer costs."""
    rows = [
        {"name": name, "what": lookup(name).summary}
        | {f"parameters{width}": parameters(name, width) for width in WIDTHS}
        | {f"price{width}": price(name, width) for width in WIDTHS}
        for name in names
    ]
    columns = [Column("name", "backbone", number=False), Column("what", "what it is", number=False)]
    columns += [Column(f"parameters{width}", f"parameters, D={width}", "{:,}".format) for width in WIDTHS]
    columns += [Column(f"price{width}", f"MFLOPs, D={width}", lambda cost: f"{cost / 1e6:,.0f}") for width in WIDTHS]
    notes = (
        f"MFLOPs of one answer after a stream of {LENGTH} symbols, embeddings and head not counted (docs/flops.md); a "
        "dash where a layer declares no terms. Parameters include embeddings and head.",
    )
    return Table("backbones", f"Backbones, each of three layers ({len(rows)})", columns, rows, notes)


def paper(name: str) -> str:
    """The paragraph of the module's docstring that cites an arXiv number; empty where there is none."""
    doc = inspect.cleandoc(sys.modules[lookup(name).layer.__module__].__doc__ or "")
    return next((" ".join(part.split()) for part in doc.split("\n\n") if "arXiv" in part), "")


def settings(name: str) -> list[list[str]]:
    """Rows of field, default and meaning; the meaning is the docstring below the field."""
    entry = lookup(name)
    meanings = {}
    for cls in reversed(entry.layer.Config.__mro__[:-1]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0].body
        for field, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                meanings[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    defaults = dataclasses.asdict(entry.layer.Config(**entry.defaults))
    return [[f"`{field}`", f"`{value}`", meanings.get(field, "")] for field, value in defaults.items()]


def settings_table(name: str) -> str:
    rows = settings(name)
    if not rows:
        return "No settings."
    lines = [["`backbone.layer.`", "default", "meaning"], ["---"] * 3, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def section(name: str) -> str:
    """A heading, the first line of the module, its paper, and its settings."""
    entry = lookup(name)
    file = entry.layer.__module__.replace(".", "/") + ".py"
    return "\n\n".join(filter(None, [f"## {name}", f"{entry.summary} (`{file}`)", paper(name), settings_table(name)]))


def page(names: Sequence[str]) -> str:
    """The text of docs/models.md."""
    return HEAD + "\n\n".join([table(names).markdown(), *(section(name) for name in names)]) + "\n"


PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
