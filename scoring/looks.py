"""How systems look in every figure: one colour and dash per architecture, one marker per width.

Colours differ in lightness and lines in dash, and points are labelled, so the figures can be read in grey. A new
architecture needs no entry: its look follows from its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scoring.comparisons import REFERENCES, CellScore


@dataclass(frozen=True)
class Look:
    """Label, colour, and dash as on-off lengths in points (empty: solid)."""

    label: str
    colour: str
    dash: tuple[float, ...] = ()


DASHED, DOTTED, MIXED = (5, 2), (1.5, 1.5), (6, 2, 1.5, 2)

LOOKS: dict[str, Look] = {
    "transformer_rope": Look("Transformer RoPE", "#111111"),
    "transformer_conv": Look("Transformer conv", "#5588dd"),
    "transformer_nope": Look("Transformer NoPE", "#7788aa", DOTTED),
    "compressive_transformer": Look("Compressive Transformer", "#66bbdd", DASHED),
    "deltaformer": Look("DeltaFormer", "#332288", MIXED),
    "memory_mosaic": Look("Memory Mosaic", "#bb44aa"),
    "gru": Look("GRU", "#ee7733", DASHED),
    "mamba2": Look("Mamba-2", "#bb2211"),
    "retnet": Look("RetNet", "#117733", DASHED),
    "gla": Look("GLA", "#009988"),
    "deltanet": Look("DeltaNet", "#ccaa22"),
    "gated_deltanet": Look("Gated DeltaNet", "#886600", MIXED),
    "rwkv7": Look("RWKV-7", "#ee3377", DOTTED),
    "mom": Look("MoM", "#77bb44", DOTTED),
    "ttt_mlp": Look("TTT-MLP", "#b05070", MIXED),
    "coin": Look("coin flip", "#bbbbbb", DOTTED),
    "hist": Look("symbol counts", "#8a8a8a", DASHED),
    "hist2": Look("pair counts", "#8a8a8a", MIXED),
    "set1": Look("symbol set", "#a5a5a5", DOTTED),
    "set2": Look("pair set", "#a5a5a5", DASHED),
    "set3": Look("triple set", "#a5a5a5", MIXED),
    "exact": Look("exact store", "#6f6f6f", DOTTED),
}
_OTHERS = ("#4455cc", "#cc6677", "#228899", "#aa7744", "#66762a", "#994455", "#5599cc", "#555577")


def look(architecture: str) -> Look:
    """The look of an architecture; the same one in every figure and run, also for names without an entry."""
    if architecture in LOOKS:
        return LOOKS[architecture]
    number = int.from_bytes(hashlib.sha256(architecture.encode()).digest()[:4], "big")
    return Look(architecture, _OTHERS[number % len(_OTHERS)], (DASHED, DOTTED, MIXED, ())[number // 8 % 4])


def marker(width: int | None) -> str:
    """Marker of a width, in matplotlib's letters: circle up to 64, triangle above (paper, Figure 8), square without."""
    if width is None:
        return "s"
    return "o" if width <= 64 else "^"


def labels(cells: list[CellScore]) -> dict[str, str]:
    """Readable label of each system: its architecture and width, and its own name where these do not tell it apart."""
    short = {}
    for cell in cells:
        width = f" D={cell.width}" if cell.width and cell.architecture not in REFERENCES else ""
        short[cell.system] = look(cell.architecture).label + width
    taken = list(short.values())
    return {s: text if taken.count(text) == 1 else f"{text} ({s})" for s, text in short.items()}


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights for labels: at least `gap` apart, in the same order, each at or above the given one."""
    moved = list(heights)
    order = sorted(range(len(moved)), key=lambda i: moved[i])
    for below, i in pairwise(order):
        moved[i] = max(moved[i], moved[below] + gap)
    return moved
