"""The price list: `python -m flops` prints what every backbone costs, which budget admits it, and why.

    python -m flops --L 2048,4096                 costs and budgets of all backbones at D = 64 and 128
    python -m flops --backbone gla --terms        the matrix products behind one price
    python -m flops --state                       size of the state, and what it saves
    python -m flops --formulas --markdown         closed forms, read off the terms
    python -m flops --backbone gla --check        count the step and compare; exit status 1 when something differs
    python -m flops --docs docs/flops.md          write the tables of a document again

Each but the last two also as `--json`, `--csv` or `--tsv`: raw values, in FLOPs and bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from rich.console import Console

from backbones import MemoryBackbone, available, build
from backbones.registry import lookup

from . import Price, price
from .count import EDGES, tie
from .report import (
    TIER_LENGTH,
    Row,
    configuration,
    cost_table,
    formula_table,
    state_table,
    term_table,
    tier_table,
)
from .tables import Table, by_name, separated

WIDTHS, LENGTHS, QUERIES = (64, 128), (2048, 4096), (1, 16, 32)
PLAIN_WIDTH = 160
"""Columns of text where there is no terminal to ask."""


def whole_numbers(text: str) -> tuple[int, ...]:
    """`64,128` -> (64, 128)."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers from 1, separated by commas")
    return values


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def arguments(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m flops", description="FLOPs, parameters and state of the memory backbones."
    )
    parser.add_argument("--backbone", type=names, default=[], help="names, separated by commas; all when left out")
    parser.add_argument("--d", type=whole_numbers, default=WIDTHS, help="widths (%(default)s)")
    parser.add_argument("--L", type=whole_numbers, default=LENGTHS, help="stream lengths (%(default)s)")
    parser.add_argument("--queries", type=whole_numbers, default=QUERIES, help="queries per stream (%(default)s)")
    parser.add_argument("--plugins", type=names, default=[], help="modules that register more backbones")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--terms", action="store_true", help="the matrix products behind each price, at the longest L")
    what.add_argument("--state", action="store_true", help="what the state holds and saves")
    what.add_argument("--formulas", action="store_true", help="closed forms in D and T")
    what.add_argument("--check", action="store_true", help="compare what is declared with what the step executes")
    what.add_argument("--docs", type=Path, help="a document whose generated tables to write again")
    form = parser.add_mutually_exclusive_group()
    for name, meaning in (
        ("json", "raw values as JSON"),
        ("csv", "raw values, separated by commas"),
        ("tsv", "raw values, separated by tabs"),
        ("markdown", "tables for a document"),
    ):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=meaning)
    return parser, parser.parse_args(argv)


def state_bytes(memory: MemoryBackbone, times: Sequence[int]) -> list[int]:
    """Bytes of state that one stream leaves behind after each of `times` tokens; each layer written on its own."""
    total, width = [0] * len(times), memory.width
    with torch.no_grad():
        for layer in memory.layers:
            x = next(layer.parameters()).new_zeros(1, times[-1], width)
            states = layer.write_at(x, layer.initial_state(1), times, outputs=False)[1]
            total = [sum_ + state.nbytes for sum_, state in zip(total, states, strict=True)]
            width = layer.output_width
    return total


def measure(name: str, width: int, priced: Price, lengths: Sequence[int], queries: Sequence[int]) -> list[Row]:
    """One row per length: its price, parameters and state."""
    memory = build(name, width=width)
    times = sorted({t for L in lengths for t in (L, (L + 1) // 2)})
    held = dict(zip(times, state_bytes(memory, times), strict=True))
    parameters = sum(p.numel() for p in memory.parameters())
    rows = []
    for L in lengths:
        half = (L + 1) // 2
        growth = (held[L] - held[half]) / (L - half) if half < L else 0.0
        row = configuration(name, width, L, priced, queries)
        rows.append(row | {"parameters": parameters, "state_bytes": held[L], "state_bytes_per_token": growth})
    return rows


def show(tables: Sequence[Table], form: str | None) -> None:
    if form == "markdown":
        print("\n\n".join(table.markdown() for table in tables))
    elif form == "json":
        print(json.dumps(by_name(tables), indent=1))
    elif form in ("csv", "tsv"):
        print(separated(next(iter(by_name(tables).values())), "," if form == "csv" else "\t"), end="")
    else:
        console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
        for table in tables:
            table.print(console)


def check(chosen: Sequence[str], widths: Sequence[int]) -> int:
    """Hold every configuration to its terms; the number of those that fail."""
    failed = 0
    for name in chosen:
        for width in widths:
            problems = tie(build(name, width=width)).problems
            failed += bool(problems)
            print(f"{name} D={width}: " + ("differs" if problems else f"declared = counted at {len(EDGES)} tokens"))
            for problem in problems:
                print(f"  {problem}")
    return failed


def tables(chosen: Sequence[str], options: argparse.Namespace) -> list[Table]:
    """What the options ask for."""
    widths, queries = options.d, options.queries

    @cache
    def price_at(name: str, width: int) -> Price:
        return price(name, width=width)

    if options.formulas:
        return [formula_table(chosen, widths, price_at)]
    if options.terms:
        return [term_table(n, d, max(options.L), price_at(n, d)) for n in chosen for d in widths]
    rows = [row for n in chosen for d in widths for row in measure(n, d, price_at(n, d), options.L, queries)]
    if options.state:
        return [state_table(rows, max(queries))]
    at_tier = [configuration(n, d, TIER_LENGTH, price_at(n, d), ()) for n in chosen for d in widths]
    return [cost_table(rows, queries), tier_table(at_tier)]


def generated(text: str) -> str:
    """A document with what stands between `<!-- python -m flops ... -->` and `<!-- end -->` written again."""

    def block(found: re.Match[str]) -> str:
        options = arguments(found[1].split())[1]
        new = "\n\n".join(table.markdown() for table in tables(options.backbone or available(), options))
        return f"<!-- python -m flops {found[1]} -->\n\n{new}\n\n<!-- end -->"

    return re.sub(r"<!-- python -m flops (.*?) -->.*?<!-- end -->", block, text, flags=re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 when a check fails, 2 when the command is wrong."""
    parser, options = arguments(argv)
    try:
        for module in options.plugins:
            importlib.import_module(module)
        chosen = [lookup(name).name for name in options.backbone] or available()
        if options.check:
            return 1 if check(chosen, options.d) else 0
        if options.docs:
            options.docs.write_text(generated(options.docs.read_text()))
            return 0
        show(tables(chosen, options), options.form)
    except (ValueError, NotImplementedError, ImportError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)  # one stream at a time: threads would only wait for each other
    sys.exit(main())
