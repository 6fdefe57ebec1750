"""The leaky average in two short passes: along all chunks at once, then from chunk to chunk.

Cut into about `sqrt(L)` chunks of about `sqrt(L)` tokens, a stream needs that many vector operations twice over instead
of L: one per token of a chunk, for all chunks together, and one per chunk, to carry its last value into the next. What
has been carried then decays into each chunk in a single product. Every value is the recurrence's own, so there is no
table of decay powers to overflow.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.first_order import differentiable_once


def leaky_average(x_BLHK: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Arguments and results as the public `leaky_average`."""
    y_BLHK = _LeakyAverage.apply(x_BLHK, log_decay, state)
    return y_BLHK, y_BLHK[:, -1].clone()


class _LeakyAverage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log_decay, state):
        y = _scan(x, log_decay.exp(), state)
        ctx.save_for_backward(y, log_decay, state)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_y):
        y, log_decay, state = ctx.saved_tensors
        decay = log_decay.exp()
        grad_x = _scan(grad_y, decay, torch.zeros_like(state), backwards=True)
        grad_state = decay.unsqueeze(-1) * grad_x[:, 0]
        grad_decay = None
        if ctx.needs_input_grad[1]:
            crossing = (grad_x[:, 1:] * y[:, :-1]).sum((0, 1, 3)) + (grad_x[:, 0] * state).sum((0, 2))
            grad_decay = decay * crossing
        return grad_x, grad_decay, grad_state


def _scan(x: Tensor, decay: Tensor, state: Tensor, backwards: bool = False) -> Tensor:
    """`y_t = x_t + decay * y_(t-1)` from `y_0 = state`, or the same from the stream's end to its start."""
    length = x.shape[1]
    size = math.isqrt(length - 1) + 1
    count = -(-length // size)
    y = F.pad(x, (0, 0, 0, 0, 0, count * size - length)).unflatten(1, (count, size))  # [B, N, C, H, K]
    if y.data_ptr() == x.data_ptr():
        y = y.clone()
    tokens, chunks = list(y.unbind(2)), list(y.unbind(1))
    if backwards:
        tokens.reverse()
        chunks.reverse()
    decay = decay.unsqueeze(-1)  # [H, 1]
    for before, token in pairwise(tokens):
        token.addcmul_(before, decay)
    powers = decay ** torch.arange(1, size + 1, dtype=x.dtype, device=x.device).view(-1, 1, 1)  # [C, H, 1]
    powers = powers.flip(0) if backwards else powers
    last = 0 if backwards else -1
    for chunk in chunks:
        chunk.addcmul_(state.unsqueeze(1), powers)
        state = chunk[:, last]
    return y.flatten(1, 2)[:, :length]
