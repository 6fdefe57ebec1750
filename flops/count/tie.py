"""The tie: what a memory declares, what its step executes, and what its parameters hold must be the same numbers.

    counted = declared     every layer, at token positions around every window, block and mini-batch, to the integer
    weights = parameters   the entries of all matrix parameters = the weights behind the terms
    nothing hidden         no product by broadcasting, no opaque operation in the step: see `lint`

A layer names its exceptions, each with the reason:

    not_matrices = {"mu": "mixing vectors"}            parameters with axes that are no matrix of a weight term
    free_products = {"contraction over 3": "mixing"}   products that the lint finds and the convention leaves free
    charged_anyway = {"long-term update": "..."}       terms that the convention charges at tokens whose step needs none

A memory here is anything with `layers`, each with `step`, `terms` and an `initial_state`, and with `write_at`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..terms import Term
from .lint import Hidden
from .match import Item, total, unmatched
from .products import Count, Product, count

EDGES = (1, 2, 3, 16, 17, 18, 128, 129, 130, 256, 257, 385, 512, 513, 1536, 1537, 2049)
"""Tokens, counted from 1, around the edges of convolutions, windows of 16, mini-batches and blocks of 128 and 256."""


@dataclass(frozen=True)
class Tie:
    """What does not hold, in words; empty where everything does."""

    counts: tuple[str, ...]
    weights: tuple[str, ...]
    hidden: tuple[tuple[int, Hidden], ...]
    """(layer, finding), each once."""

    @property
    def problems(self) -> list[str]:
        hidden = [f"layer {layer}: {finding}" for layer, finding in self.hidden]
        return [*self.counts, *self.weights, *hidden]


def tie(memory: Any, positions: Sequence[int] = EDGES) -> Tie:
    """Hold a memory to its declared terms.

    Args:
        memory: see the module docstring.
        positions: the tokens to count, increasing, from 1.
    """
    return compare(memory, count_tokens(memory, positions))


def compare(memory: Any, counted: Iterable[tuple[int, list[Count]]]) -> Tie:
    """As `tie`, given the counts of every layer at some tokens."""
    declared = [layer.terms() for layer in memory.layers]
    differences: dict[tuple[str, ...], list[str]] = {}
    hidden: dict[tuple[int, Hidden], None] = {}
    for token, counts in counted:
        for i, (layer, terms, count_) in enumerate(zip(memory.layers, declared, counts, strict=True)):
            charged = getattr(layer, "charged_anyway", {})
            difference = explain(terms, count_.products, token, matrices(layer), charged)
            if difference:
                differences.setdefault(difference.what, []).append(f"layer {i}, token {token}: {difference.text}")
            free = getattr(layer, "free_products", {})
            hidden |= dict.fromkeys((i, finding) for finding in count_.hidden if finding.what not in free)
    told = [
        first + (f"\n  and {len(more)} times more, up to {more[-1].split(':')[0]}" if more else "")
        for first, *more in differences.values()
    ]
    return Tie(tuple(told), tuple(_weights(memory, declared)), tuple(hidden))


def count_tokens(memory: Any, positions: Sequence[int]) -> Iterator[tuple[int, list[Count]]]:
    """Each of the tokens with its count in every layer; what comes before it is written, not counted."""
    parameter = next(memory.parameters())
    generator = torch.Generator(parameter.device).manual_seed(0)
    shape = (1, positions[-1], memory.width)
    x = torch.randn(shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad():
        before = [token - 1 for token in positions if token > 1]
        states = memory.write_at(x, before)[1] if before else []
        if positions[0] == 1:
            states = [memory.initial_state(1), *states]
        for token, state in zip(positions, states, strict=True):
            # A copy: a state that starts as a parameter must not be taken for one.
            layer_states = state.map(Tensor.clone).layers
            x_BD, counts = x[:, token - 1], []
            for layer, layer_state in zip(memory.layers, layer_states, strict=True):
                counted = count(layer.step, x_BD, layer_state, module=layer)
                x_BD = counted.result[0]
                counts.append(replace(counted, result=None))
            yield token, counts


def matrices(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that weight terms stand for, by name."""
    exempt = getattr(layer, "not_matrices", {})
    return {name: p for name, p in layer.named_parameters() if p.ndim > 1 and name not in exempt}


@dataclass(frozen=True)
class Difference:
    """What is declared or counted and has no counterpart: by name, and with numbers."""

    what: tuple[str, ...]
    text: str


def explain(
    terms: Sequence[Term],
    products: Sequence[Product],
    token: int,
    weights: Container[str],
    charged_anyway: Container[str] = (),
) -> Difference | None:
    """What a layer declares for a token against what it executed.

    Args:
        terms: of the layer.
        products: that its step made at `token`.
        weights: names of the parameters that weight terms stand for; products with others count as state.
        charged_anyway: labels of terms that may be declared and not executed.

    Returns:
        Which terms and which products are left when all that agree are taken away; None when the sums agree.
    """
    what, text = [], []
    for side, kinds in (("weights", ("weight", "rerun")), ("state", ("state", "pair"))):
        of_side = [term for term in terms if term.kind in kinds]
        declared = [Item(term.label, str(term), term.at(token), term.shape) for term in of_side]
        without = [item for item in declared if item.name not in charged_anyway]
        counted = [
            Item(p.parameter or p.op, str(p), p.flops, p.shape)
            for p in products
            if (p.parameter in weights) == ("weight" in kinds)
        ]
        if total(counted) in (total(declared), total(without)):
            continue
        left, right = unmatched(declared, counted)
        what += [item.name for item in (*left, *right)]
        text.append(f"products with {side}: declared {total(declared):,} FLOPs, counted {total(counted):,}")
        text += [f"declared, not counted: {item.text} = {item.amount:,} FLOPs" for item in left]
        text += [f"counted, not declared: {item.text} = {item.amount:,} FLOPs" for item in right]
    return Difference(tuple(what), "\n  ".join(text)) if text else None


def _weights(memory: Any, declared: Sequence[Sequence[Term]]) -> Iterator[str]:
    """Matrix parameters against the weights behind the terms. A parameter that layers share belongs to the lowest."""
    seen = set()
    for i, (layer, terms) in enumerate(zip(memory.layers, declared, strict=True)):
        parameters = dict(layer.named_parameters())
        unknown = [name for name in getattr(layer, "not_matrices", {}) if name not in parameters]
        if unknown:
            yield f"layer {i}: not_matrices names {', '.join(unknown)}; the parameters are {', '.join(parameters)}"
        own = {name: p for name, p in matrices(layer).items() if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        weights = [Item(term.label, str(term), term.weights, term.shape) for term in terms]
        held = [
            Item(name, f"{name} {list(p.shape)}", p.numel(), (1, p.shape[-1], p[..., 0].numel()))
            for name, p in own.items()
        ]
        if total(weights) != total(held):
            left, right = unmatched(weights, held)
            text = [f"layer {i}: weight terms declare {total(weights):,} entries, matrices hold {total(held):,}"]
            text += [f"declared, not held: {item.text} = {item.amount:,} entries" for item in left]
            text += [f"held, not declared: {item.text}; add a term, or name it in not_matrices" for item in right]
            yield "\n  ".join(text)
