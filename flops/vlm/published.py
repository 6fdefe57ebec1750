"""The paper's twelve models, in the fields of their configs that a price reads, and the tables of docs/vlm_pricing.md.

The paper's own constants (its Table 4) are not in its text, so `published.json` gathers them from what is public and
says per model where from and how sure. They serve tables and tests; a run is priced by its own checkpoint's config.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ..tables import Column, Table
from .price import VlmPrice, price_vlm

FRAMES, LONG, ANSWER = 64, 1024, 3
"""Frames and answer tokens of the paper's Table 3, and its longest video."""


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """Rows of name, source and config."""
    return tuple(json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8")))


def names() -> list[str]:
    return [entry["name"] for entry in entries()]


def published(name: str) -> VlmPrice:
    """The price of one of the paper's models.

    Raises:
        ValueError: no such model; the names are listed.
    """
    for entry in entries():
        if entry["name"] == name:
            return price_vlm(entry["config"])
    raise ValueError(f"no published model is called {name!r}; there are {', '.join(names())}")


def scaled(power: int, digits: int = 1):
    """Shows FLOPs in units of 10^power."""
    return lambda flops: f"{flops / 10**power:.{digits}f}"


def row(name: str) -> dict[str, Any]:
    price = published(name)
    cost = price.response((FRAMES,), answer=ANSWER)
    positions = price.decoder.positions
    return {
        "model": name,
        "B": price.per_token,
        "A": price.per_pair,
        "F_voc": price.per_vocabulary,
        "vision_per_frame": price.vision((FRAMES,)) / FRAMES,
        "tokens": price.tokens((FRAMES,)),
        "tokens_long": price.tokens((LONG,)),
        "context": price.tokens((LONG,)) / positions,
        **cost.terms,
        "write": cost.write,
        "read": cost.read,
        "source": next(entry["source"] for entry in entries() if entry["name"] == name),
    }


def tables() -> list[Table]:
    """Per-token prices, the terms of a response, and where the constants are from."""
    rows = [row(name) for name in names()]
    model = Column("model", "model", number=False)
    unit = Table("vlm_units", "Prices of a token, a pair, a projection and a frame", (
        model, Column("B", "B (GF/token)", scaled(9, 3)), Column("A", "A (MF/pair)", scaled(6, 3)),
        Column("F_voc", "F_voc (GF)", scaled(9, 3)),
        Column("vision_per_frame", "tower (TF/frame)", scaled(12, 3)),
        Column("tokens", f"V_LLM, L={FRAMES}"), Column("tokens_long", f"V_LLM, L={LONG}"),
        Column("context", f"V_LLM / position limit, L={LONG}", scaled(0, 2))), rows)  # fmt: skip
    terms = Table(
        "vlm_terms", f"One response: {FRAMES} frames of 448 x 448, {ANSWER} tokens of answer, no text in the prompt", (
            model, Column("vision", "vision (TF)", scaled(12)), Column("connector", "connector (TF)", scaled(12)),
            Column("prefill", "prefill (TF)", scaled(12)), Column("write", "write (TF)", scaled(12)),
            Column("read", "read = decode (GF)", scaled(9))), rows)  # fmt: skip
    sources = Table("vlm_sources", "Where the constants are from", (
        model, Column("source", "source", number=False)), rows)  # fmt: skip
    return [unit, terms, sources]
