"""Products that hide from a FLOP counter, found by looking at every operation that a callable executes.

    outer product    k[..., None] * v[..., None, :], torch.outer, addcmul, einsum("bhk,bhv->bhkv"): all are `mul`
    contraction      (S * q[..., None]).sum(-2), linalg.vecdot on a matrix: `mul`, then `sum`
    opaque           mv, dot, fused attention and recurrences: no formula in torch's counter, or one that counts masked
                     pairs as well

The way out is the same for all: `@` on operands of two or more dimensions, which every counter counts exactly.

What is free by convention stays silent: a decay or gate scales a state and yields nothing larger than it; a norm or an
elementwise product that is summed has no axis that belongs to one factor alone; rotary angles and other products of
constants (positions, buffers) see neither data nor parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

OPAQUE = {
    "mv",
    "addmv",
    "dot",
    "vdot",
    "addr",
    "addbmm",
    "linalg_vecdot",
    "_trilinear",
    "_cdist_forward",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "flex_attention",
    "mkldnn_rnn_layer",
    "_cudnn_rnn",
    "miopen_rnn",
}
"""Operations with matrix products inside that torch's counter misses or overcounts, beside all of SDPA's."""

PRODUCTS = {"mul": 0, "mul_": 0, "addcmul": 1, "addcmul_": 1}
"""Elementwise products, and the position of their first factor."""


@dataclass(frozen=True)
class Hidden:
    """One finding.

    Args:
        kind: see the module docstring.
        op: the operation, as torch calls it.
        shapes: of the factors; empty for an opaque operation.
        over: entries of the axes that a contraction sums over.
    """

    kind: Literal["outer product", "contraction", "opaque"]
    op: str
    shapes: tuple[tuple[int, ...], ...] = ()
    over: int | None = None

    @property
    def what(self) -> str:
        """By which a layer's `free_products` names it, whatever the width: `contraction over 3`, `opaque mv`."""
        return {"contraction": f"contraction over {self.over}", "opaque": f"opaque {self.op}"}.get(self.kind, self.kind)

    def __str__(self) -> str:
        if self.kind == "opaque":
            return f"{self.op} is opaque to FLOP counters: use @ on operands of two or more dimensions"
        a, b = self.shapes
        return f"{self.what} by {self.op} of {list(a)} and {list(b)}, which no counter sees: use @"


class Lint:
    """Collects findings; feed it every operation of a run, in order.

    Args:
        constants: tensors that hold neither data nor parameters, such as a module's buffers.
    """

    def __init__(self, constants: Iterable[Tensor] = ()):
        self.found: list[Hidden] = []
        self._constants = {storage(tensor) for tensor in constants}
        self._products: dict[int, tuple[Tensor, tuple[int, ...], tuple[int, ...]]] = {}
        self._alive: list[Tensor] = []  # what has been seen stays, so that no identity is given out twice

    def look(self, op: str, args: tuple[Any, ...], out: Any) -> None:
        if op in OPAQUE or "_scaled_dot_product" in op:
            self.found.append(Hidden("opaque", op))
        made = _tensors((out,))
        self._alive += made
        if all(self._is_constant(tensor) for tensor in _tensors(args)):
            self._constants |= {storage(tensor) for tensor in made}
            return
        self._constants -= {storage(tensor) for tensor in made}  # data has been written into it
        if op in PRODUCTS:
            self._product(op, *args[PRODUCTS[op] :][:2], out)
        elif op in ("sum", "mean") and id(args[0]) in self._products:
            self._sum(args[1] if len(args) > 1 else None, *self._products[id(args[0])])

    def _is_constant(self, tensor: Tensor) -> bool:
        """Integers are positions or choices."""
        return not tensor.is_floating_point() or storage(tensor) in self._constants

    def _product(self, op: str, a: Any, b: Any, out: Tensor) -> None:
        """An outer product is larger than both of its factors."""
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return
        a, b = tuple(a.shape), tuple(b.shape)
        if prod(torch.broadcast_shapes(a, b)) > max(prod(a), prod(b)):
            self.found.append(Hidden("outer product", op, (a, b)))
        if op == "mul":
            self._products[id(out)] = out, a, b

    def _sum(self, dims: Sequence[int] | None, product: Tensor, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """A contraction sums a product over an axis of both factors while another axis belongs to one of them alone."""
        n = product.ndim
        summed = {d % n for d in dims} if dims else set(range(n))
        sizes = [((1,) * (n - len(a)) + a)[d] for d in range(n)], [((1,) * (n - len(b)) + b)[d] for d in range(n)]
        shared = [x for d, (x, y) in enumerate(zip(*sizes, strict=True)) if d in summed and x > 1 and y > 1]
        alone = any((x > 1) != (y > 1) for d, (x, y) in enumerate(zip(*sizes, strict=True)) if d not in summed)
        if shared and alone:
            self.found.append(Hidden("contraction", "mul and sum", (a, b), prod(shared)))


def storage(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor: the same for a parameter and every view of it."""
    return tensor.untyped_storage()._cdata


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
