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
from kernels.linear_recurrence.tiles import add_mm, add_narrow_mm, blocks, mm, narrow_mm, swap, t


class Linear(Part):
    """Inputs q, k, v; always with q, since `chunked.py` has a shorter way to the state alone."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim, value_dim)

    def __init__(self, frame: Frame, q: Tensor, k: Tensor, v: Tensor):
        self.frame, self.q_natural, self.k_natural, self.v = frame, q, k, blocks(v)
        self.rows, self.columns = blocks(scaled(q, frame.start)), blocks(scaled(k, frame.end))
        # What scores are made of: scaled already, or raw and weighed pair by pair.
        self.q, self.k = (self.rows, self.columns) if frame.pair is None else (blocks(q), blocks(k))

    def scores(self) -> Tensor:
        return self.frame.weigh_(mm(self.q, t(self.k)))

    def forward(self, states: Tensor) -> Tensor:
        f = self.frame
        written = scaled(mm(t(self.columns), self.v), f.exit)
        for n in range(len(written)):
            advance(written[n], f.total, n, states[n], out=states[n + 1])
        return add_mm(mm(self.scores(), self.v), self.rows, scaled(states[:-1], f.entry))

    def backward(self, states: Tensor, grad_o: Tensor, leaving: Tensor) -> Gradients:
        f, entering = self.frame, scaled(states[:-1], self.frame.entry)
        grad_read = scaled(mm(t(self.rows), grad_o), f.entry)
        grad_states = torch.empty_like(grad_read)
        for n in reversed(range(len(grad_states))):
            grad_states[n] = leaving
            leaving = advance(grad_read[n], f.total, n, leaving)
        grad_written = scaled(grad_states, f.exit)
        dv = swap(add_mm(mm(t(self.scores()), grad_o), self.columns, grad_written))
        grad_scores = mm(grad_o, t(self.v))
        q, k = self.q_natural, self.k_natural
        if f.total is None:
            grad_scores.tril_()
            dq = add_narrow_mm(narrow_mm(grad_o, t(entering)), grad_scores, self.k)
            dk = add_narrow_mm(narrow_mm(self.v, t(grad_written)), t(grad_scores), self.q)
            return Gradients((swap(dq), swap(dk), dv), None, grad_states, leaving)

        # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
        own = swap(grad_scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).clone())
        f.weigh_(grad_scores, strict=True)
        dq, dk_leaving = narrow_mm(grad_o, t(entering)), scaled(swap(narrow_mm(self.v, t(grad_written))), f.end)
        if f.pair is None:
            dq = swap(add_narrow_mm(dq, grad_scores, self.k)) * f.start
            dk = swap(narrow_mm(t(grad_scores), self.q)) * f.end
        else:
            dq = swap(add_narrow_mm(dq.mul_(swap(f.start)), grad_scores, self.k))
            dk = swap(narrow_mm(t(grad_scores), self.q))
        gate = q * dq, k * dk, k * dk_leaving
        dq, dk = torch.addcmul(dq, own, k), torch.addcmul(dk_leaving, own, q).add_(dk)
        return Gradients((dq, dk, dv), gate, grad_states, leaving)
