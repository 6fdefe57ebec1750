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
from kernels.linear_recurrence.tiles import add_mm, add_narrow_mm, narrow_mm, t


class Linear(Part):
    """Inputs q, k, v; always with q, since `chunked.py` has a shorter way to the state alone."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim, value_dim)

    def __init__(self, frame: Frame, lead: tuple[int, int, int], inputs: tuple[Tensor, ...], kept: None):
        super().__init__(frame, lead, inputs, kept)
        self.q, self.k, self.v = inputs
        self.rows, self.columns = scaled(self.q, frame.start), scaled(self.k, frame.end)
        self.total = self.chunks(frame.total)

    def scores(self) -> Tensor:
        rows, columns = (self.rows, self.columns) if self.frame.pair is None else (self.q, self.k)
        return self.weigh_(torch.bmm(rows, t(columns)))

    def forward(self, states: Tensor) -> Tensor:
        written = scaled(torch.bmm(t(self.columns), self.v), self.frame.exit)
        for write, total, old, new in zip(self.chunks(written), self.total, states[:-1], states[1:], strict=True):
            advance(write, total, old, out=new)
        entering = scaled(states[:-1].flatten(0, 1), self.frame.entry)
        return add_mm(torch.bmm(self.scores(), self.v), self.rows, entering)

    def backward(self, states: Tensor, grad_o: Tensor, leaving: Tensor) -> Gradients:
        f, entering = self.frame, scaled(states[:-1].flatten(0, 1), self.frame.entry)
        grad_read = scaled(torch.bmm(t(self.rows), grad_o), f.entry)
        grad_states = torch.empty_like(states[1:])
        for read, total, grad in reversed(list(zip(self.chunks(grad_read), self.total, grad_states, strict=True))):
            grad.copy_(leaving)
            leaving = advance(read, total, leaving)
        grad_written = scaled(grad_states.flatten(0, 1), f.exit)
        dv = add_mm(torch.bmm(t(self.scores()), grad_o), self.columns, grad_written)
        grad_scores = torch.bmm(grad_o, t(self.v))
        dq, dk_leaving = narrow_mm(grad_o, t(entering)), narrow_mm(self.v, t(grad_written))
        if f.total is None:
            grad_scores.tril_()
            dq = add_narrow_mm(dq, grad_scores, self.columns)
            dk = add_narrow_mm(dk_leaving, t(grad_scores), self.rows)
            return Gradients((dq, dk, dv), None, grad_states, leaving)

        # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
        own = grad_scores.diagonal(dim1=1, dim2=2).unsqueeze(-1).clone()
        self.weigh_(grad_scores, strict=True)
        dk_leaving = dk_leaving.mul_(f.end)
        if f.pair is None:
            dq = add_narrow_mm(dq, grad_scores, self.columns).mul_(f.start)
            dk = narrow_mm(t(grad_scores), self.rows).mul_(f.end)
        else:
            dq = add_narrow_mm(dq.mul_(f.start), grad_scores, self.k)
            dk = narrow_mm(t(grad_scores), self.q)
        gate = (self.q * dq).addcmul_(self.k, dk, value=-1), self.k * dk_leaving
        dq, dk = dq.addcmul_(own, self.k), dk.add_(dk_leaving).addcmul_(own, self.q)
        return Gradients((dq, dk, dv), gate, grad_states, leaving)
