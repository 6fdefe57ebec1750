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
from .products import Count, Product, count

EDGES = (1, 2, 3, 16, 17, 18, 33, 128, 129, 130, 256, 257, 384, 385, 512, 513, 1536, 1537, 1538, 2048, 2049)
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
        declared = [(term, term.at(token)) for term in terms if term.kind in kinds]
        counted = [(p, p.flops) for p in products if (p.parameter in weights) == ("weight" in kinds)]
        executed = _sum(counted)
        if executed in (_sum(declared), _sum([item for item in declared if item[0].label not in charged_anyway])):
            continue
        left, right = unmatched(declared, counted)
        what += [term.label for term, _ in left] + [product.parameter or product.op for product, _ in right]
        text.append(f"products with {side}: declared {_sum(declared):,} FLOPs, counted {executed:,}")
        text += [f"declared, not counted: {term} = {flops:,} FLOPs" for term, flops in left]
        text += [f"counted, not declared: {product} = {flops:,} FLOPs" for product, flops in right]
    return Difference(tuple(what), "\n  ".join(text)) if text else None


def unmatched(left: list[tuple[Any, int]], right: list[tuple[Any, int]]) -> tuple[list, list]:
    """Take away equal amounts: one against one, then one against several (a term may be split, a matrix fused)."""
    left, right = ([item for item in side if item[1]] for side in (left, right))
    for item in sorted(left, key=_same_shape_first(right)):
        partner = next((r for r in right if r[1] == item[1] and _shape(r) == _shape(item)), None)
        partner = partner or next((r for r in right if r[1] == item[1]), None)
        if partner:
            _remove(left, [item])
            _remove(right, [partner])
    for one, many in ((left, right), (right, left)):
        for item in sorted(one, key=lambda pair: -pair[1]):
            parts = _subset(many, item[1])
            if parts:
                _remove(one, [item])
                _remove(many, parts)
    return left, right


def _sum(items: Sequence[tuple[Any, int]]) -> int:
    return sum(amount for _, amount in items)


def _shape(item: tuple[Any, int]) -> Any:
    return getattr(item[0], "shape", None)


def _same_shape_first(others: list[tuple[Any, int]]):
    shapes = {_shape(item) for item in others}
    return lambda item: _shape(item) not in shapes


def _remove(items: list[tuple[Any, int]], parts: list[tuple[Any, int]]) -> None:
    for part in parts:
        del items[next(i for i, item in enumerate(items) if item is part)]


def _subset(items: list[tuple[Any, int]], total: int) -> list[tuple[Any, int]]:
    """The fewest items that sum to `total`; empty if none do."""
    reach: dict[int, list] = {0: []}
    for item in items:
        for amount, parts in list(reach.items()):
            new = amount + item[1]
            if new <= total and (new not in reach or len(reach[new]) > len(parts) + 1):
                reach[new] = [*parts, item]
    return reach.get(total, [])


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
        weights = [(term, term.weights) for term in terms]
        entries = [(f"{name} {list(p.shape)}", p.numel()) for name, p in own.items()]
        if _sum(weights) != _sum(entries):
            left, right = unmatched(weights, entries)
            text = [f"layer {i}: weight terms declare {_sum(weights):,} entries, matrices hold {_sum(entries):,}"]
            text += [f"declared, not held: {term} = {n:,} entries" for term, n in left]
            text += [f"held, not declared: {name}; add a term, or name it in not_matrices" for name, _ in right]
            yield "\n  ".join(text)
