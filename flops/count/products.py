"""The matrix products that a callable executes: PyTorch's FLOP counter, repaired, with every product kept by shape.

`torch.utils.flop_counter.FlopCounterMode` is the count. Three of its gaps are closed here:

    mv, dot, addr, ... and SDPA on a CPU    have no formula there: `REPAIRS` adds them
    nn.MultiheadAttention, LSTM, cuDNN      run as one fused operation that it cannot look into: fused paths are off
    products by broadcasting                are no matrix products to it at all: `hidden` names them, see `lint`

A recorder beside it keeps the shape of every product, and which parameter it was with, so that a difference between a
closed form and a count has a name. Causal attention in one call still counts all T^2 pairs: count steps, not streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..terms import write_product
from .lint import Hidden, Lint, storage

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """`times` matrix products (m x k)(k x n) made by one operation.

    Args:
        op: the operation, as torch calls it.
        shape: (m, k, n).
        times: how many.
        parameter: name of the parameter that is one factor; None when there is none.
    """

    op: str
    shape: tuple[int, int, int]
    times: int = 1
    parameter: str | None = None

    @property
    def flops(self) -> int:
        return 2 * prod(self.shape) * self.times

    def __str__(self) -> str:
        return f"{self.parameter or self.op}: {write_product(self.shape, self.times)}"


@dataclass(frozen=True)
class Count:
    """What `count` saw.

    Args:
        result: what the callable returned.
        products: in the order of execution.
        hidden: products that no counter sees, and operations that other counters miss.
    """

    result: Any
    products: tuple[Product, ...]
    hidden: tuple[Hidden, ...]

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.products)


def count(fn: Callable[..., Any], *args: Any, module: nn.Module | None = None, **kwargs: Any) -> Count:
    """Run `fn(*args, **kwargs)` without gradients and count its matrix products.

    Args:
        fn: any callable on tensors.
        module: its parameters give products their names.
    """
    recorder, counter = Recorder(module), FlopCounterMode(display=False, custom_mapping=REPAIRS)
    with torch.no_grad(), unfused(), recorder, counter:
        result = fn(*args, **kwargs)
    products = list(recorder.products)
    for op, flops in counter.get_flop_counts().get("Global", {}).items():
        unseen = flops - sum(product.flops for product in products if product.op == _name(op))
        if unseen:  # torch has a formula for it, the recorder has no shape
            products.append(Product(_name(op), (1, unseen // 2, 1)))
    return Count(result, tuple(products), tuple(recorder.lint.found))


@contextmanager
def unfused() -> Iterator[None]:
    """Within, recurrent and attention modules run as plain operations, not as one that a counter cannot look into."""
    backends = torch.backends
    before = backends.mha.get_fastpath_enabled(), backends.mkldnn.enabled, backends.cudnn.enabled

    def use(mha: bool, mkldnn: bool, cudnn: bool) -> None:
        backends.mha.set_fastpath_enabled(mha)
        backends.mkldnn.enabled, backends.cudnn.enabled = mkldnn, cudnn

    use(False, False, False)
    try:
        yield
    finally:
        use(*before)


# ---- formulas that torch's counter lacks: shapes in, FLOPs out -------------------------------------------------------
REPAIRS = {
    aten.mv: lambda matrix, vector, **_: 2 * prod(matrix),
    aten.addmv: lambda bias, matrix, vector, **_: 2 * prod(matrix),
    aten.dot: lambda a, b, **_: 2 * prod(a),
    aten.vdot: lambda a, b, **_: 2 * prod(a),
    aten.addr: lambda bias, a, b, **_: 2 * prod(a) * prod(b),
    aten.addbmm: lambda bias, a, b, **_: 2 * prod(a) * b[-1],
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
}


# ---- shapes: operands and result in, (m, k, n) and times out ---------------------------------------------------------
def _mm(a: Tensor, b: Tensor, out: Tensor):
    return (a.shape[-2], a.shape[-1], b.shape[-1]), prod(a.shape[:-2])


def _mv(a: Tensor, b: Tensor, out: Tensor):
    return (a.shape[0], a.shape[1], 1), 1


def _dot(a: Tensor, b: Tensor, out: Tensor):
    return (1, a.numel(), 1), 1


def _outer(a: Tensor, b: Tensor, out: Tensor):
    return (a.numel(), 1, b.numel()), 1


def _convolution(x: Tensor, weight: Tensor, out: Tensor):
    places, taps = out.shape[0] * prod(out.shape[2:]), prod(weight.shape[1:])
    groups = x.shape[1] // weight.shape[1]
    if groups == weight.shape[0]:  # depthwise: one dot product per channel
        return (groups, taps, 1), places
    return (places, taps, weight.shape[0] // groups), groups


SHAPES: dict[Any, tuple[int, Callable]] = {
    aten.mm: (0, _mm),
    aten.bmm: (0, _mm),
    aten.addmm: (1, _mm),
    aten.baddbmm: (1, _mm),
    aten.addbmm: (1, _mm),
    aten.mv: (0, _mv),
    aten.addmv: (1, _mv),
    aten.dot: (0, _dot),
    aten.vdot: (0, _dot),
    aten.addr: (1, _outer),
    aten.convolution: (0, _convolution),
}
"""Operation -> position of its first factor (the second follows), and how to read the shape."""


def _name(packet: Any) -> str:
    return str(packet).removeprefix("aten.")


class Recorder(TorchDispatchMode):
    """Keeps the products and passes every operation on to the lint."""

    def __init__(self, module: nn.Module | None):
        super().__init__()
        self.products: list[Product] = []
        self.lint = Lint(module.buffers() if module else ())
        self.names = {storage(p): name for name, p in module.named_parameters()} if module else {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", func)
        known = SHAPES.get(packet)
        if known and not (packet is aten.convolution and args[6]):  # a transposed one is left to torch's formula
            first, read = known
            factors = args[first : first + 2]
            shape, times = read(*factors, out)
            parameter = next((self.names[s] for s in map(storage, factors) if s in self.names), None)
            self.products.append(Product(_name(packet), tuple(shape), times, parameter))
        self.lint.look(_name(packet), args, out)
        return out
