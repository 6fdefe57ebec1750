"""The frame that the chunked algorithms share: tiles, the states between chunks, and what autograd needs.

An algorithm says what happens inside one tile, forward and backward, as a subclass of `Part`. Everything that does
not depend on the algorithm is here: cutting, the order of the tiles, putting results back, and the gate's gradient.

The backward pass recomputes the insides of a tile from the inputs and the saved states between chunks. So training
keeps one state per chunk, and the temporaries of both passes stay in the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.first_order import differentiable_once
from kernels.linear_recurrence.frame import Frame, frame, gate_gradient
from kernels.linear_recurrence.tiles import Tile, Tiling, blocks, natural


class Gradients(NamedTuple):
    """What the backward pass of a tile returns, in blocks; for the gate's part see `frame.gate_gradient`."""

    inputs: tuple[Tensor | None, ...]  # in the order of the algorithm's inputs
    gate: tuple[Tensor, Tensor] | None  # crossing, leaving: [N G, C, K]; None without a gate
    leaving: Tensor  # of the state after each chunk, [N, G, K, V]
    entering: Tensor  # of the state before the tile, [G, K, V]


class Part(ABC):
    """One tile of an algorithm."""

    factorise = False
    """Whether a gate per head is to be treated as one per channel."""

    kept: Tensor | None = None
    """A small result of the forward pass that spares the backward pass much work."""

    def __init__(
        self, frame: Frame, lead: tuple[int, int, int], inputs: tuple[Tensor | None, ...], kept: Tensor | None
    ):
        """Subclasses call this first.

        Args:
            frame: the decays of the tile.
            lead: `(N, B, H)`, what the first axis of blocks is made of.
            inputs: in blocks, `[N G, C, ..]`; the first, q, may be None.
            kept: in the backward pass, what the forward pass kept.
        """
        self.frame, self.lead, self.size = frame, lead, inputs[1].shape[1]

    @staticmethod
    @abstractmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        """Numbers in the largest temporary, per chunk and head."""

    @abstractmethod
    def forward(self, states: Tensor) -> Tensor | None:
        """Fill `states[1:]` from `states[0]`, `[N + 1, G, K, V]`; the outputs in blocks, or None without q."""

    @abstractmethod
    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        """Gradients from those of the outputs, in blocks (None without q), and of the state after the tile."""

    def weigh_(self, scores: Tensor, strict: bool = False) -> Tensor:
        return self.frame.weigh_(scores, self.lead, strict)

    def chunks(self, x: Tensor | None) -> tuple[Tensor | None, ...]:
        """Blocks `[N G, ..]` one chunk at a time, each `[G, ..]`; of None, None for each."""
        return (None,) * self.lead[0] if x is None else x.unflatten(0, (self.lead[0], -1)).unbind(0)


def run(
    algorithm: type[Part], inputs: tuple[Tensor | None, ...], log_decay: Tensor | None, state: Tensor, size: int
) -> tuple[Tensor | None, Tensor]:
    """A whole stream.

    Args:
        algorithm: what to do inside a tile.
        inputs: `(q or None, k, v, ..)`, each `[B, L, H, ..]`.
        log_decay: `[B or 1, L, H]` or `[B, L, H, K]`.
        state: `[B, H, K, V]`.
        size: tokens per chunk.

    Returns:
        `(o [B, L, H, V] or None, state)`.
    """
    o, state = _Tiled.apply(algorithm, size, state, log_decay, *inputs)
    return (None if inputs[0] is None else o), state


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, algorithm, size, state, log_decay, *inputs):
        k, v = inputs[1:3]
        batch, length, heads, key_dim = k.shape
        tiling = Tiling(batch, length, size, heads * algorithm.temporary(size, key_dim, v.shape[-1]), v.device)
        o = v.new_empty(0) if inputs[0] is None else torch.empty_like(v)
        states = state.new_empty(tiling.count + 1, *state.shape)
        states[0] = state
        kept = []
        for tile in tiles(tiling):
            part = _part(algorithm, tiling, tile, log_decay, inputs)
            out = part.forward(_states(states, tile))
            if out is not None:
                tiling.put(o, tile, natural(out, part.lead))
            kept.append(part.kept)
        ctx.algorithm, ctx.tiling, ctx.count = algorithm, tiling, len(kept)
        ctx.save_for_backward(states, log_decay, *kept, *inputs)
        return o, states[-1].clone()

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_o, grad_state):
        states, log_decay, *rest = ctx.saved_tensors
        kept, inputs = rest[: ctx.count], rest[ctx.count :]
        tiling = ctx.tiling
        grads = [None if x is None else torch.empty_like(x) for x in inputs]
        grad_gate = torch.zeros_like(log_decay) if ctx.needs_input_grad[3] else None
        grad_first = grad_state.clone()  # becomes that of the first state, tile by tile
        for tile in reversed(tiles(tiling)):
            part = _part(ctx.algorithm, tiling, tile, log_decay, inputs, kept.pop())
            do = None if inputs[0] is None else blocks(tiling.natural(grad_o, tile))
            s, leaving = _states(states, tile), grad_first[tile.streams]
            found = part.backward(s, do, leaving.flatten(0, 1))
            for target, x in zip(grads, found.inputs, strict=True):
                if target is not None:
                    tiling.put(target, tile, natural(x, part.lead))
            if grad_gate is not None:
                through = (found.leaving * s[:-1]).flatten(0, 1).mul_(part.frame.total).sum(-1).unsqueeze(1)
                scales = [*found.gate, through]
                if log_decay.ndim == 3:
                    scales = [x.sum(-1) for x in scales]
                tiling.add(grad_gate, tile, gate_gradient(*(natural(x, part.lead) for x in scales)))
            leaving.copy_(found.entering.view_as(leaving))
        return None, None, grad_first, grad_gate, *grads


def tiles(tiling: Tiling) -> list[Tile]:
    """All tiles, each stream's in order."""
    return [Tile(streams, chunks) for streams in tiling.streams for chunks in tiling.spans]


def _states(states: Tensor, tile: Tile) -> Tensor:
    """The states around a tile's chunks, `[N + 1, G, K, V]`."""
    return states[tile.chunks.start : tile.chunks.stop + 1, tile.streams].flatten(1, 2)


def _part(algorithm: type[Part], tiling: Tiling, tile: Tile, log_decay: Tensor | None, inputs, kept=None) -> Part:
    batch = tile.streams.stop - tile.streams.start
    lead = tile.chunks.stop - tile.chunks.start, batch, inputs[2].shape[2]
    gate = None if log_decay is None else tiling.natural(log_decay, tile)
    parts = tuple(None if x is None else blocks(tiling.natural(x, tile)) for x in inputs)
    return algorithm(frame(gate, batch, algorithm.factorise), lead, parts, kept)
