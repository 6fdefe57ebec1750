"""Decayed linear attention: the recurrence without an erase, chunk by chunk.

Inside a chunk, with the rows, columns and factors of `frame.py` and `S` the state that entered,

    o  = (rows columns^T, weighed) v + rows S
    S' = total S + columns^T v
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_recurrence.frame import Frame, advance, scaled
from kernels.linear_recurrence.tiled import Gradients, Part
from kernels.linear_recurrence.tiles import add_mm, add_narrow_mm, blocks, narrow_mm, t


class Linear(Part):
    """Inputs q, k, v; always with q, since `chunked.py` has a shorter way to the state alone."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim, value_dim)

    def __init__(self, frame: Frame, inputs: tuple[Tensor, ...], kept: None):
        super().__init__(frame, inputs, kept)
        self.q_natural, self.k_natural, v = inputs
        self.v = blocks(v)
        self.rows, self.columns = blocks(scaled(inputs[0], frame.start)), blocks(scaled(inputs[1], frame.end))
        # What scores are made of: scaled already, or raw and weighed pair by pair.
        self.q, self.k = self.rows, self.columns
        if frame.pair is not None:
            self.q, self.k = blocks(inputs[0]), blocks(inputs[1])

    def scores(self) -> Tensor:
        return self.weigh_(torch.bmm(self.q, t(self.k)))

    def forward(self, states: Tensor) -> Tensor:
        f = self.frame
        written = scaled(torch.bmm(t(self.columns), self.v).view_as(states[1:]), f.exit)
        steps = zip(written, _each(f.total, written), states[:-1], states[1:], strict=True)
        for write, total, before, after in steps:
            advance(write, total, before, out=after)
        entering = scaled(states[:-1], f.entry).flatten(0, 1)
        return add_mm(torch.bmm(self.scores(), self.v), self.rows, entering)

    def backward(self, states: Tensor, grad_o: Tensor, leaving: Tensor) -> Gradients:
        f, entering = self.frame, scaled(states[:-1], self.frame.entry).flatten(0, 1)
        grad_read = scaled(torch.bmm(t(self.rows), grad_o).view_as(states[1:]), f.entry)
        grad_states = torch.empty_like(grad_read)
        steps = zip(grad_read, _each(f.total, grad_read), grad_states, strict=True)
        for read, total, grad in reversed(list(steps)):
            grad.copy_(leaving)
            leaving = advance(read, total, leaving)
        grad_written = scaled(grad_states, f.exit).flatten(0, 1)
        dv = self.natural(add_mm(torch.bmm(t(self.scores()), grad_o), self.columns, grad_written))
        grad_scores = torch.bmm(grad_o, t(self.v))
        dq, dk_leaving = narrow_mm(grad_o, t(entering)), narrow_mm(self.v, t(grad_written))
        if f.total is None:
            grad_scores.tril_()
            dq = add_narrow_mm(dq, grad_scores, self.k)
            dk = add_narrow_mm(dk_leaving, t(grad_scores), self.q)
            return Gradients((self.natural(dq), self.natural(dk), dv), None, grad_states, leaving)

        # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
        own = self.natural(grad_scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).clone())
        self.weigh_(grad_scores, strict=True)
        q, k = self.q_natural, self.k_natural
        dk = self.natural(narrow_mm(t(grad_scores), self.q))
        dk_leaving = self.natural(dk_leaving) * f.end
        if f.pair is None:
            dq = self.natural(add_narrow_mm(dq, grad_scores, self.k)) * f.start
            dk = dk * f.end
        else:
            dq = torch.addcmul(self.natural(narrow_mm(grad_scores, self.k)), self.natural(dq), f.start)
        gate = q * dq, k * dk, k * dk_leaving
        dq, dk = torch.addcmul(dq, own, k), dk_leaving.addcmul_(own, q).add_(dk)
        return Gradients((dq, dk, dv), gate, grad_states, leaving)


def _each(factor: Tensor | None, like: Tensor) -> Tensor | list[None]:
    return [None] * len(like) if factor is None else factor
