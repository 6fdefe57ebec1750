"""The frame that the chunked algorithms share: tiles, the states between chunks, and what autograd needs.

An algorithm says what happens inside one tile, forward and backward, as a subclass of `Part`. Everything that does
not depend on the algorithm is here: cutting, the order of the tiles, putting results back, and the gate's gradient.

The backward pass recomputes the insides of a tile from the inputs and the saved states between chunks. So training
keeps one state per chunk and nothing of size `C x C`, and the temporaries of both passes stay in the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.linear_recurrence.frame import Frame, frame, gate_gradient
from kernels.linear_recurrence.tiles import Tile, Tiling, blocks, swap


class Gradients(NamedTuple):
    """What the backward pass of a tile returns; for the gate's part see `frame.gate_gradient`."""

    inputs: tuple[Tensor | None, ...]  # natural, in the order of the algorithm's inputs
    gate: tuple[Tensor, Tensor, Tensor] | None  # rows, columns, leaving: natural [B, N, C, H, K]; None without a gate
    leaving: Tensor  # of the state after each chunk, [N, B, H, K, V]
    entering: Tensor  # of the state before the tile, [B, H, K, V]


class Part(ABC):
    """One tile of an algorithm; built from its inputs, natural `[B, N, C, H, ..]` (q may be None), and its frame."""

    factorise = False
    """Whether a gate per head is to be treated as one per channel."""

    @staticmethod
    @abstractmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        """Numbers in the largest temporary, per chunk and head."""

    frame: Frame

    @abstractmethod
    def __init__(self, frame: Frame, *inputs: Tensor | None): ...

    @abstractmethod
    def forward(self, states: Tensor) -> Tensor | None:
        """Fill `states[1:]` from `states[0]`; the outputs `[N, B, H, C, V]`, or None without q."""

    @abstractmethod
    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        """Gradients from those of the outputs (None without q) and of the state after the tile, `[B, H, K, V]`."""


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
        for streams in tiling.streams:
            for chunks in tiling.spans:
                tile = Tile(streams, chunks)
                part = _part(algorithm, tiling, tile, log_decay, inputs)
                out = part.forward(states[chunks.start : chunks.stop + 1, streams])
                if out is not None:
                    tiling.put(o, tile, swap(out))
        ctx.algorithm, ctx.tiling = algorithm, tiling
        ctx.save_for_backward(states, log_decay, *inputs)
        return o, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_o, grad_state):
        states, log_decay, *inputs = ctx.saved_tensors
        tiling = ctx.tiling
        grads = [None if x is None else torch.empty_like(x) for x in inputs]
        grad_gate = torch.zeros_like(log_decay) if ctx.needs_input_grad[3] else None
        grad_first = torch.empty_like(grad_state)
        for streams in tiling.streams:
            leaving = grad_state[streams]
            for chunks in reversed(tiling.spans):
                tile = Tile(streams, chunks)
                part = _part(ctx.algorithm, tiling, tile, log_decay, inputs)
                do = None if inputs[0] is None else blocks(tiling.natural(grad_o, tile))
                s = states[chunks.start : chunks.stop + 1, streams]
                found = part.backward(s, do, leaving)
                for target, x in zip(grads, found.inputs, strict=True):
                    if target is not None:
                        tiling.put(target, tile, x)
                if grad_gate is not None:
                    through = (found.leaving * s[:-1] * part.frame.total).sum(-1)
                    scales = [*found.gate, through]
                    if log_decay.ndim == 3:
                        scales = [x.sum(-1) for x in scales]
                    tiling.add(grad_gate, tile, gate_gradient(*scales))
                leaving = found.entering
            grad_first[streams] = leaving
        return None, None, grad_first, grad_gate, *grads


def _part(algorithm: type[Part], tiling: Tiling, tile: Tile, log_decay: Tensor | None, inputs) -> Part:
    gate = None if log_decay is None else tiling.natural(log_decay, tile)
    naturals = (None if x is None else tiling.natural(x, tile) for x in inputs)
    return algorithm(frame(gate, algorithm.factorise), *naturals)
