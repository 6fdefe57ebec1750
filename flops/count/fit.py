"""A price for a memory that declares none: its step is counted, and what was counted is continued.

    constant, or linear in the token's position    found at a few tokens and continued for ever, product by product
    so at last, as a window or warm-up makes it    every token up to HORIZON is counted, and its second half continued
    anything else, such as work once per block     every token is counted up to the one that is asked for: exact, slow

A price cannot know what happens beyond the tokens that were counted, nor what others would have cost where a layer
chooses its work by its input. Its note says which of the three it is, and which products no count can see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..terms import Price, Term, written
from .products import Product, count

HORIZON = 257
COUNTED = (*range(1, 21), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, HORIZON)
"""Tokens that are counted at first, from 1: all at the start, then around the usual windows and blocks."""


def counted_price(memory: Any) -> Price:
    """The price of what a memory's step executes.

    Args:
        memory: anything with `width`, `initial_state(1)`, and `layers` that have `step`.
    """
    walk = _Walk(memory)
    seen = {token: walk.to(token) for token in COUNTED}
    terms, complete = [], True
    for layer, label in sorted({group for work in seen.values() for group in work}):
        work = [seen[token].get((layer, label), _Work()) for token in COUNTED]
        parameter = dict(memory.layers[layer].named_parameters()).get(label)
        entries = parameter.numel() if parameter is not None and parameter.ndim > 1 else 0
        found = _regular(label, work, entries)
        terms += [replace(term, layer=layer) for term in found]
        complete &= bool(found)
    note = f"counted at {len(COUNTED)} of the first {HORIZON} tokens and continued"
    if not complete:
        rest, note = _rest(_Table(memory), tuple(terms))
        terms.append(rest)
    missed = "".join(f"; not in it: {finding}" for finding in dict.fromkeys(map(str, walk.hidden)))
    return Price(tuple(terms), "counted", note + missed)


# ---- counting --------------------------------------------------------------------------------------------------------
@dataclass
class _Work:
    """The products of one layer with one parameter, or by one operation on its state, at one token."""

    macs: int = 0
    shape: tuple[int, int, int] = (1, 1, 1)
    times: int = 0

    def add(self, product: Product) -> None:
        before, self.macs = self.macs, self.macs + product.flops // 2
        if before and self.shape != product.shape:
            self.shape, self.times = (1, 1, 1), self.macs
        else:
            self.shape, self.times = product.shape, self.times + product.times


class _Walk:
    """One random token after another through the step of every layer."""

    def __init__(self, memory: Any):
        self.memory, self.token, self.hidden = memory, 0, []
        parameter = next(memory.parameters())
        self.x = torch.empty(1, memory.width, device=parameter.device, dtype=parameter.dtype)
        self.generator = None if self.x.is_meta else torch.Generator(self.x.device).manual_seed(0)
        # A copy: a state that starts as a parameter must not be taken for one.
        self.states = list(memory.initial_state(1).map(Tensor.clone).layers)

    def to(self, token: int) -> dict[tuple[int, str], _Work]:
        """Step over the tokens before `token`, count it, and sort its products by layer and label."""
        work: dict[tuple[int, str], _Work] = {}
        while self.token < token:
            self.token += 1
            x = self.x.clone().normal_(generator=self.generator)
            for i, layer in enumerate(self.memory.layers):
                if self.token < token:
                    with torch.no_grad():
                        x, self.states[i] = layer.step(x, self.states[i])
                    continue
                counted = count(layer.step, x, self.states[i], module=layer)
                x, self.states[i] = counted.result
                self.hidden += counted.hidden
                for product in counted.products:
                    work.setdefault((i, product.parameter or f"state ({product.op})"), _Work()).add(product)
        return work


class _Table:
    """Multiplications over the first T tokens, every one of them counted, as far as somebody asks."""

    def __init__(self, memory: Any):
        self.memory, self.walk, self.totals = memory, None, [0]

    def __call__(self, T: int) -> int:
        self.walk = self.walk or _Walk(self.memory)
        while len(self.totals) <= T:
            work = self.walk.to(len(self.totals))
            self.totals.append(self.totals[-1] + sum(w.macs for w in work.values()))
        return self.totals[T]


# ---- continuing ------------------------------------------------------------------------------------------------------
def _regular(label: str, work: list[_Work], entries: int) -> list[Term]:
    """One kind of product as terms, if it is constant or linear over the counted tokens; else nothing.

    Args:
        label: of the terms.
        work: at each of COUNTED.
        entries: of the parameter behind it; 0 for none that is a matrix.
    """
    macs = [w.macs for w in work]
    if len(set(macs)) == 1:
        again = macs[0] - entries
        if entries and again > 0:
            return [Term(label, "weight", (1, 1, entries)), Term(f"{label}, used again", "rerun", (1, 1, again))]
        return [Term(label, "weight" if entries else "state", work[0].shape, work[0].times)]
    line = _line(COUNTED, macs)
    if line is None:
        return []
    offset, slope = line
    rule = written(f"{offset} T + {slope} T (T + 1) / 2")(lambda T: offset * T + slope * (T * (T + 1) // 2))
    return [Term(label, "pair", (1, 1, 1), count=rule)]


def _rest(table: _Table, regular: tuple[Term, ...]) -> tuple[Term, str]:
    """Everything that the regular terms do not cover, as one term, and the note for the price."""

    @written("counted token by token")
    def rest(T: int) -> int:
        return table(T) - sum(term.total(T) for term in regular) // 2

    half = range(HORIZON // 2 + 1, HORIZON + 1)
    line = _line(half, [rest(t) - rest(t - 1) for t in half])
    if line is None:
        return _one_term(rest), "counted token by token, as far as anybody asks"
    offset, slope = line

    @written(f"counted to {HORIZON}, then {offset} + {slope} t each")
    def rule(T: int) -> int:
        if T <= HORIZON:
            return rest(T)
        beyond = T * (T + 1) // 2 - HORIZON * (HORIZON + 1) // 2
        return rest(HORIZON) + offset * (T - HORIZON) + slope * beyond

    return _one_term(rule), f"counted at each of the first {HORIZON} tokens, continued as over the last {len(half)}"


def _one_term(rule: Callable[[int], int]) -> Term:
    return Term("the rest, which varies from token to token", "pair", (1, 1, 1), count=rule)


def _line(tokens: tuple[int, ...] | range, macs: list[int]) -> tuple[int, int] | None:
    """(offset, slope) of the line through all points; None when there is none with whole coefficients."""
    slope = (macs[-1] - macs[0]) // (tokens[-1] - tokens[0])
    offset = macs[0] - slope * tokens[0]
    fits = all(m == offset + slope * t for t, m in zip(tokens, macs, strict=True))
    return (offset, slope) if fits else None
