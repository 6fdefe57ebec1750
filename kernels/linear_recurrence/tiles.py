"""Cutting a stream into chunks and the work into tiles.

The parallel forms turn `[B, L, H, K]` into chunks, so that the inside of every chunk is one matrix product among many.
They do so a tile at a time (a few streams, a few chunks), because a CPU computes these small products faster than it
fetches them from memory: a tile's temporaries stay in the cache, and the memory in use does not grow with the stream.
On a GPU a tile is everything.

Two layouts:

* natural, `[B, N, C, H, ..]`: a view of the stream, right for elementwise work;
* blocks, `[N B H, C, ..]`: a copy, chunks first, right for batched matrix products. Kept with three axes, because
  `torch.bmm` takes three, and with whole chunks contiguous, because it falls back to a loop over matrices otherwise.

`B` streams, `N` chunks, `C` tokens of a chunk, `H` heads, `K` key dim, `V` value dim, `G = B H`.
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

    @property
    def everything(self) -> Tile:
        """All streams and chunks."""
        return Tile(slice(None), slice(0, self.count))

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
    """`[B, N, C, H, ..]` to `[N, B, H, C, ..]`, or back, as a view."""
    return x.permute(1, 0, 3, 2, *range(4, x.ndim))


def blocks(x: Tensor) -> Tensor:
    """Natural to blocks."""
    return swap(x).flatten(0, 2).contiguous()


def natural(x: Tensor, lead: tuple[int, int, int]) -> Tensor:
    """Blocks to natural, as a view; `lead` is `(N, B, H)`."""
    return swap(x.unflatten(0, lead))


def add_mm(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`total += x @ y`, in place; returns `total`."""
    return torch.baddbmm(total, x, y, out=total)


def narrow_mm(x: Tensor, y: Tensor) -> Tensor:
    """As `torch.bmm`, possibly with the last two axes transposed in memory.

    A product whose result has fewer columns than a vector register has lanes runs at a third of the speed on a CPU;
    its transpose has enough.
    """
    return t(torch.bmm(t(y), t(x))) if _is_narrow(x, y) else torch.bmm(x, y)


def add_narrow_mm(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`total += x @ y`, in place, for a `total` from `narrow_mm`; returns it."""
    return t(add_mm(t(total), t(y), t(x))) if _is_narrow(x, y) else add_mm(total, x, y)


def _is_narrow(x: Tensor, y: Tensor) -> bool:
    return y.shape[-1] < LANES <= x.shape[-2]


def t(x: Tensor) -> Tensor:
    """The last two axes swapped."""
    return x.transpose(-1, -2)
