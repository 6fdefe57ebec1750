"""Carrying the state from chunk to chunk: the only sequential part of the parallel forms.

    diagonal   S_{n+1} = decay_n * S_n + write_n
    affine     S_{n+1} = transition_n S_n + write_n

One fused operation per chunk, written into place, and a backward pass that is the same scan in reverse; the gradients
of the decays and transitions are then one batched product over all chunks. Autograd on a Python loop would record
every step and return a full-size gradient for each.

Letters: `G` streams times heads, `N` chunks, `K` key dim, `V` value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def diagonal_scan(decay: Tensor, writes: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States at the start of each chunk and after the last.

    Args:
        decay: `[.., N, K or 1, 1]`, broadcast against the writes.
        writes: `[.., N, K, V]`.
        state: `[.., K, V]`.

    Returns:
        `(entering [.., N, K, V], final [.., K, V])`.
    """
    return _Diagonal.apply(decay, writes, state)


def affine_scan(transitions: Tensor, writes: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As `diagonal_scan`, with `[G, N, K, K]` transitions instead of decays and one leading axis."""
    return _Affine.apply(transitions, writes, state)


class _Diagonal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, decay, writes, state):
        entering, final = torch.empty_like(writes), torch.empty_like(state)
        slots = [*entering.unbind(-3), final]
        slots[0].copy_(state)
        steps = zip(decay.unbind(-3), writes.unbind(-3), slots[:-1], slots[1:], strict=True)
        for decay_n, write, before, after in steps:
            torch.addcmul(write, decay_n, before, out=after)
        ctx.save_for_backward(decay, entering)
        return entering, final

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_entering, grad_final):
        decay, entering = ctx.saved_tensors
        grad_writes, grad_state = torch.empty_like(entering), torch.empty_like(grad_final)
        slots = [grad_state, *grad_writes.unbind(-3)]
        slots[-1].copy_(grad_final)
        steps = zip(decay.unbind(-3), grad_entering.unbind(-3), slots[1:], slots[:-1], strict=True)
        for decay_n, grad, after, before in reversed(list(steps)):
            torch.addcmul(grad, decay_n, after, out=before)
        grad_decay = (grad_writes * entering).sum_to_size(decay.shape) if ctx.needs_input_grad[0] else None
        return grad_decay, grad_writes, grad_state


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, transitions, writes, state):
        entering, final = torch.empty_like(writes), torch.empty_like(state)
        slots = [*entering.unbind(-3), final]
        slots[0].copy_(state)
        steps = zip(transitions.unbind(-3), writes.unbind(-3), slots[:-1], slots[1:], strict=True)
        for transition, write, before, after in steps:
            torch.baddbmm(write, transition, before, out=after)
        ctx.save_for_backward(transitions, entering)
        return entering, final

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_entering, grad_final):
        transitions, entering = ctx.saved_tensors
        grad_writes, grad_state = torch.empty_like(entering), torch.empty_like(grad_final)
        slots = [grad_state, *grad_writes.unbind(-3)]
        slots[-1].copy_(grad_final)
        steps = zip(transitions.unbind(-3), grad_entering.unbind(-3), slots[1:], slots[:-1], strict=True)
        for transition, grad, after, before in reversed(list(steps)):
            torch.baddbmm(grad, transition.transpose(-1, -2), after, out=before)
        grad_transitions = grad_writes @ entering.transpose(-1, -2) if ctx.needs_input_grad[0] else None
        return grad_transitions, grad_writes, grad_state
