"""From prices to tables: what every configuration costs, which budget admits it, and what its state holds.

A configuration is a dictionary of raw values, in FLOPs and bytes; `__main__` collects them from the backbones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .formulas import closed_form
from .tables import Column, Table
from .terms import Price, write_product

TIERS = (1_750e6, 10_000e6, 30_000e6)
"""Budgets in FLOPs per answer (ECCBench, Figure 10), for one query after a stream of TIER_LENGTH."""
TIER_LENGTH = 4096
BITS_PER_SYMBOL = 4
"""A symbol of the stream is one of 16."""

Row = dict[str, Any]


def configuration(name: str, width: int, length: int, price: Price, queries: Sequence[int]) -> Row:
    """What a price says about one backbone, width and length."""
    assumed = ", ".join(price.assumed)
    return {
        "backbone": name,
        "d": width,
        "L": length,
        "mark": "counted" if price.source == "counted" else "assumed" if assumed else "",
        "flops_write": price.write(length),
        "flops_read": price.read(length),
        "flops_total": price.total(length + 1),
        **{f"flops_per_answer_q{q}": price.amortised(length, q) for q in queries},
        "matrix_parameters": price.weights,
        "source": price.source,
        "assumed": assumed,
        "note": price.note,
    }


# ---- how values are shown --------------------------------------------------------------------------------------------
def mflops(flops: float) -> str:
    return f"{flops / 1e6:,.3f}" if flops < 100e6 else f"{flops / 1e6:,.1f}"


def kib(size: float) -> str:
    return f"{size / 1024:,.1f}"


def whole(value: float) -> str:
    return f"{value:,}"


WHO = [Column("backbone", "backbone", number=False), Column("d", "D"), Column("L", "L")]


# ---- tables ----------------------------------------------------------------------------------------------------------
def cost_table(rows: Sequence[Row], queries: Sequence[int]) -> Table:
    """F_w, F_r and what an answer costs."""
    columns = [
        *WHO,
        Column("mark", "", number=False),
        Column("flops_write", "write F_w", mflops),
        Column("flops_read", "read F_r", mflops),
        *(Column(f"flops_per_answer_q{q}", f"answer, q={q}", mflops) for q in queries),
        Column("parameters", "parameters", whole),
        Column("matrix_parameters", "in matrices", whole),
        Column("state_bytes", "state KiB", kib),
    ]
    notes = [
        "MFLOPs. The stream's L tokens are written once, every query is one token more: an answer costs F_w / q + F_r."
    ]
    for mark, meaning in (
        ("assumed", "the paper is silent on some terms, so the total is not the paper's"),
        ("counted", "no closed form is declared"),
    ):
        said = {r["backbone"]: r["assumed"] if mark == "assumed" else r["note"] for r in rows if r["mark"] == mark}
        if said:
            notes.append(f"{mark}: {meaning}. " + "; ".join(f"{name}: {text}" for name, text in said.items()) + ".")
    return Table("costs", "FLOPs of the backbones, three layers, without embeddings and head", columns, rows, notes)


def tier_table(rows: Sequence[Row]) -> Table:
    """The configurations that each budget is the first to admit, cheapest first."""
    ordered = sorted(rows, key=lambda r: r["flops_total"])
    tiers, floor = [], 0.0
    for budget in (*TIERS, float("inf")):
        new = [r for r in ordered if floor < r["flops_total"] <= budget]
        if new or budget in TIERS:
            which = [{key: r[key] for key in ("backbone", "d", "flops_total")} for r in new]
            tiers.append({"budget": budget, "admitted": len(new), "configurations": which or None})
        floor = budget

    def write(which: list[Row]) -> str:
        return "; ".join(f"{r['backbone']} D={r['d']} ({r['flops_total'] / 1e6:,.0f})" for r in which)

    columns = [
        Column("budget", "MFLOPs", lambda b: f"<= {b / 1e6:,.0f}" if b < float("inf") else f"> {TIERS[-1] / 1e6:,.0f}"),
        Column("admitted", "new"),
        Column("configurations", "configurations first admitted", write, number=False),
    ]
    return Table("tiers", f"Budgets per answer at L={TIER_LENGTH}, one query per stream", columns, tiers)


def state_rows(rows: Sequence[Row], queries: int) -> list[Row]:
    """What the state holds, and what it saves over reading the stream again for each of `queries` questions."""
    cheapest = {L: min(r["flops_total"] for r in rows if r["L"] == L) for L in {r["L"] for r in rows}}
    found = []
    for r in rows:
        margin = cheapest[r["L"]] - r["flops_read"]
        found.append(
            r
            | {
                "state_bits_per_stream_bit": 8 * r["state_bytes"] / (BITS_PER_SYMBOL * r["L"]),
                "write_over_read": r["flops_write"] / r["flops_read"],
                "saving": queries * r["flops_total"] / (r["flops_write"] + queries * r["flops_read"]),
                "break_even_q": r["flops_write"] / margin if margin > 0 else None,
            }
        )
    return found


def state_table(rows: Sequence[Row], queries: int) -> Table:
    """See `state_rows`."""
    columns = [
        *WHO,
        Column("state_bytes", "state KiB", kib),
        Column("state_bytes_per_token", "bytes per token", lambda b: f"{b:,.0f}"),
        Column("state_bits_per_stream_bit", "state bits per stream bit", lambda x: f"{x:,.2f}"),
        Column("write_over_read", "F_w / F_r", lambda x: f"{x:,.0f}"),
        Column("saving", f"saving at q={queries}", lambda x: f"{x:,.1f} x"),
        Column("break_even_q", "break-even q", lambda x: f"{x:,.1f}"),
    ]
    notes = [
        "bytes per token: growth of the state over the second half of the stream. Stream bits: "
        f"{BITS_PER_SYMBOL} per symbol of a maximum-entropy stream.",
        f"saving: against the same backbone reading the stream again for each of {queries} questions.",
        "break-even q: questions per stream from which on an answer is cheaper than from the cheapest configuration of "
        "this length in the table, if that one had to read the stream again for every question; a dash where one read "
        "alone costs more.",
    ]
    return Table("state", "What the state holds and saves", columns, state_rows(rows, queries), notes)


def term_table(name: str, width: int, length: int, price: Price) -> Table:
    """The terms behind one price."""
    rows = [
        {"backbone": name, "d": width, "L": length}
        | row
        | {
            "layers": ", ".join("all" if layer is None else str(layer) for layer in row["layers"]),
            "product": write_product(row["shape"], row["times"]),
        }
        for row in price.table(length)
    ]
    columns = [
        Column("label", "term", number=False),
        Column("layers", "layers"),
        Column("kind", "kind", number=False),
        Column("status", "status", number=False),
        Column("product", "product", number=False),
        Column("executions", "executions", number=False),
        Column("flops", "MFLOPs", mflops),
        Column("share", "share", lambda x: f"{x:.1%}"),
    ]
    return Table("terms", f"{name}, D={width}: terms over T = {length + 1} tokens", columns, rows)


def formula_table(names: Sequence[str], widths: Sequence[int], price_at: Callable[[str, int], Price]) -> Table:
    """The closed form of every backbone, read off its terms."""
    rows = []
    for name in names:
        price = price_at(name, widths[0])
        declared = price.source == "declared"
        rows.append(
            {
                "backbone": name,
                "formula": closed_form(lambda d, name=name: price_at(name, d), widths) if declared else price.source,
                "assumed": ", ".join(price.assumed) or None,
            }
        )
    columns = [
        Column("backbone", "backbone", number=False),
        Column("formula", "FLOPs over T = L + 1 tokens", number=False),
        Column("assumed", "assumed terms", number=False),
    ]
    values = ", ".join(map(str, widths))
    note = f"At D = {values}; a dimension that is neither constant nor a multiple of D is shown by its values there."
    return Table("formulas", "Closed forms, read off the terms", columns, rows, [note])
