"""Cutting a stream into chunks and the work into tiles.

The parallel forms turn `[B, L, H, K]` into chunks `[N, B, H, C, K]`, chunks first, so that the inside of every chunk
is a batched matrix product and one chunk of all streams is one slice. They do so a tile at a time (a few streams, a
few chunks), because a CPU computes these small products faster than it fetches them from memory: a tile's temporaries
stay in the cache, and the memory in use does not grow with the stream. On a GPU a tile is everything.

Two layouts: `[B, N, C, H, ..]` is a view of the stream, "natural", and right for elementwise work; `[N, B, H, C, ..]`
is a copy, "blocks", and right for matrix products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TILE_ELEMENTS = 1 << 18
"""Numbers in a tile's largest temporary on a CPU: 1 MiB in float32, about the second-level cache of one core."""


LANES = 16
"""Float32 numbers in one vector register of a current CPU."""


class Tile(NamedTuple):
    """Some streams and some consecutive chunks."""

    streams: slice
    chunks: slice


class Tiling:
    """How `[B, L, ..]` is cut into chunks of `size` tokens, and those into tiles."""

    def __init__(self, batch: int, length: int, size: int, elements_per_chunk: int, device: torch.device):
        """`elements_per_chunk`: numbers in the largest temporary of one chunk of one stream."""
        self.length, self.size = length, size
        self.count = -(-length // size)
        budget = TILE_ELEMENTS if device.type == "cpu" else batch * self.count * elements_per_chunk
        streams = max(1, min(batch, budget // elements_per_chunk))
        chunks = max(1, min(self.count, budget // (elements_per_chunk * streams)))
        self.streams = [slice(start, min(start + streams, batch)) for start in range(0, batch, streams)]
        self.spans = [slice(start, min(start + chunks, self.count)) for start in range(0, self.count, chunks)]

    def natural(self, x: Tensor, tile: Tile) -> Tensor:
        """A tile of `[B or 1, L, H, ..]` as `[B or 1, N, C, H, ..]`; zeros beyond the stream's end."""
        x = self._tokens(x, tile)
        count = tile.chunks.stop - tile.chunks.start
        missing = count * self.size - x.shape[1]
        if missing:
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
        return x.unflatten(1, (count, self.size))

    def put(self, target: Tensor, tile: Tile, x: Tensor) -> None:
        """Write `x`, natural, to its place in `[B, L, H, ..]`; what lies beyond the end is dropped."""
        target = self._tokens(target, tile)
        if target.shape[1] == x.shape[1] * x.shape[2]:
            target.unflatten(1, x.shape[1:3]).copy_(x)
        else:
            target.copy_(x.flatten(1, 2)[:, : target.shape[1]])

    def add(self, target: Tensor, tile: Tile, x: Tensor) -> None:
        """As `put`, adding; a target of batch 1 gets the sum over the streams."""
        if target.shape[0] == 1:
            x = x.sum(0, keepdim=True)
        target = self._tokens(target, tile)
        target += x.flatten(1, 2)[:, : target.shape[1]]

    def _tokens(self, x: Tensor, tile: Tile) -> Tensor:
        streams = tile.streams if x.shape[0] > 1 else slice(0, 1)
        return x[streams, tile.chunks.start * self.size : tile.chunks.stop * self.size]


def swap(x: Tensor) -> Tensor:
    """Natural to blocks, `[B, N, C, H, ..]` to `[N, B, H, C, ..]`, or back, as a view."""
    return x.permute(1, 0, 3, 2, *range(4, x.ndim))


def blocks(x: Tensor) -> Tensor:
    """Natural to blocks, as a copy whose chunks are contiguous."""
    return swap(x).contiguous()


def mm(x: Tensor, y: Tensor) -> Tensor:
    """Batched product over the last two axes, for equal leading axes: what `@` does, without its broadcasting."""
    return torch.bmm(x.flatten(0, -3), y.flatten(0, -3)).unflatten(0, x.shape[:-2])


def add_mm(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`total += x @ y`, in place; returns `total`."""
    flat = total.flatten(0, -3)
    torch.baddbmm(flat, x.flatten(0, -3), y.flatten(0, -3), out=flat)
    return total


def narrow_mm(x: Tensor, y: Tensor) -> Tensor:
    """As `mm`, possibly with its last two axes transposed in memory.

    A product whose result has fewer columns than a vector register has lanes runs at a third of the speed on a CPU;
    its transpose has enough.
    """
    return t(mm(t(y), t(x))) if y.shape[-1] < LANES <= x.shape[-2] else mm(x, y)


def add_narrow_mm(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`total += x @ y`, in place, for a `total` from `narrow_mm`."""
    if y.shape[-1] < LANES <= x.shape[-2]:
        add_mm(t(total), t(y), t(x))
        return total
    return add_mm(total, x, y)


def step_mm(base: Tensor, x: Tensor, y: Tensor, out: Tensor, alpha: float = 1) -> Tensor:
    """`out = base + alpha * x @ y` for one chunk of all streams, `[B, H, ..]`; returns `out`."""
    torch.baddbmm(base.flatten(0, 1), x.flatten(0, 1), y.flatten(0, 1), alpha=alpha, out=out.flatten(0, 1))
    return out


def t(x: Tensor) -> Tensor:
    """The last two axes swapped."""
    return x.transpose(-1, -2)
