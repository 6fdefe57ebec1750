"""The delta rule, chunk by chunk.

Write `u_i = beta_i (v_i - k_i^T (decayed state before token i))` for what token i really adds. Inside a chunk the u
depend on each other and on the state `S` that entered, linearly:

    (I + a) u = beta v - beta rows S,     a = beta (rows columns^T, weighed, strictly below the diagonal)

with the rows, columns and weights of `frame.py` made of k. So one triangular inverse gives `u = U - W S`, and then

    o  = (rows_q columns^T, weighed) u + rows_q S
    S' = total S + columns^T u
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_recurrence.frame import Frame, advance, scaled
from kernels.linear_recurrence.inverse import unit_lower_inverse
from kernels.linear_recurrence.tiled import Gradients, Part
from kernels.linear_recurrence.tiles import add_mm, blocks, t


class Delta(Part):
    """Inputs q or None, k, v, beta `[B, N, C, H]`. Keeps the inverse."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim + value_dim)

    def __init__(self, frame: Frame, inputs: tuple[Tensor | None, ...], kept: Tensor | None):
        super().__init__(frame, inputs, kept)
        self.q_natural, self.k_natural, v, beta = inputs
        q, k = inputs[:2]
        self.beta = blocks(beta).unsqueeze(-1)
        self.right_side = blocks(torch.cat([scaled(k, frame.start), v], -1))
        self.k_rows, self.v = self.right_side.split([k.shape[-1], v.shape[-1]], -1)
        self.k_columns = self.k_rows if frame.end is None else blocks(k * frame.end)
        self.q_rows = None if q is None else blocks(scaled(q, frame.start))
        # What scores are made of: scaled already, or raw and weighed pair by pair.
        self.q, self.k_row, self.k_column = self.q_rows, self.k_rows, self.k_columns
        if frame.pair is not None:
            self.k_row = self.k_column = blocks(k)
            self.q = None if q is None else blocks(q)
        if kept is None:
            a = self.weigh_(torch.bmm(self.k_row, t(self.k_column)), strict=True).mul_(self.beta)
            kept = unit_lower_inverse(a)
        self.kept = kept
        self.x = torch.bmm(kept * t(self.beta), self.right_side)
        self.w, self.u = self.x.split([k.shape[-1], v.shape[-1]], -1)
        w, columns = self.w, self.k_columns
        if frame.entry is not None:
            w, columns = w * t(frame.entry).flatten(0, 1), columns * t(frame.exit).flatten(0, 1)
        self.w_entering, self.k_exiting = self.chunks(w), self.chunks(columns)
        self.total = [None] * self.lead[0] if frame.total is None else frame.total.unbind(0)

    def scores(self) -> Tensor:
        return self.weigh_(torch.bmm(self.q, t(self.k_column)))

    def forward(self, states: Tensor) -> Tensor | None:
        u = self.u.contiguous()
        steps = zip(self.chunks(u), self.w_entering, self.k_exiting, self.total, states[:-1], states[1:], strict=True)
        for u_n, w, k, total, before, after in steps:
            torch.baddbmm(u_n, w, before, alpha=-1, out=u_n)
            torch.baddbmm(advance(None, total, before), t(k), u_n, out=after)
        if self.q is None:
            return None
        entering = scaled(states[:-1], self.frame.entry).flatten(0, 1)
        return add_mm(torch.bmm(self.scores(), u), self.q_rows, entering)

    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        f, beta, entering = self.frame, self.beta, scaled(states[:-1], self.frame.entry).flatten(0, 1)
        u = torch.baddbmm(self.u, self.w, entering, alpha=-1)

        # From chunk to chunk, backwards: the gradient of the state that leaves, and through it that of u.
        if grad_o is None:
            du, grad_read = torch.zeros_like(u), torch.zeros_like(states[1:])
        else:
            du = torch.bmm(t(self.scores()), grad_o)
            grad_read = scaled(torch.bmm(t(self.q_rows), grad_o).view_as(states[1:]), f.entry)
        grad_states = torch.empty_like(grad_read)
        steps = zip(self.chunks(du), self.w_entering, self.k_exiting, self.total, grad_read, grad_states, strict=True)
        for du_n, w, k, total, read, grad in reversed(list(steps)):
            grad.copy_(leaving)
            torch.baddbmm(du_n, k, leaving, out=du_n)
            leaving = advance(read, total, leaving)
            torch.baddbmm(leaving, t(w), du_n, alpha=-1, out=leaving)

        # Everything else is local to the chunks.
        y = torch.bmm(t(self.kept), torch.cat([torch.bmm(du, t(entering)).neg_(), du], -1))
        grad_a = self.weigh_(torch.bmm(y, t(self.x)).neg_(), strict=True)
        dk_row = torch.bmm(grad_a, self.k_column)  # through a, before beta
        grad_beta = (y * self.right_side).sum(-1) + (dk_row * self.k_row).sum(-1)
        y_k, y_v = y.mul_(beta).split([self.w.shape[-1], self.u.shape[-1]], -1)
        dk_row *= beta
        dk_column = torch.bmm(t(grad_a.mul_(beta)), self.k_row)
        dk_leaving = self.natural(torch.bmm(u, t(scaled(grad_states, f.exit).flatten(0, 1))))
        own = None
        if self.q is not None:
            grad_scores = torch.bmm(grad_o, t(u))
            # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
            own = self.natural(grad_scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).clone())
            self.weigh_(grad_scores, strict=True)
            dq_entering = torch.bmm(grad_o, t(entering))
            add_mm(dk_column, t(grad_scores), self.q)
        dk_column, dq = self.natural(dk_column), None
        if f.pair is None:
            if own is not None:
                dq = scaled(self.natural(add_mm(dq_entering, grad_scores, self.k_column)), f.start)
            dk_row = scaled(self.natural(dk_row.add_(y_k)), f.start)
            dk_column = scaled(dk_column, f.end)
        else:
            if own is not None:
                dq = torch.bmm(grad_scores, self.k_column)
                dq = torch.addcmul(self.natural(dq), self.natural(dq_entering), f.start)
            dk_row = torch.addcmul(self.natural(dk_row), self.natural(y_k), f.start)
        dk_leaving = scaled(dk_leaving, f.end)
        q, k, gate = self.q_natural, self.k_natural, None
        if f.total is not None:
            rows = k * dk_row if q is None else torch.addcmul(k * dk_row, q, dq)
            gate = rows, k * dk_column, k * dk_leaving
        dk = dk_row + dk_column + dk_leaving
        if own is not None:
            dq, dk = torch.addcmul(dq, own, k), torch.addcmul(dk, own, q)
        return Gradients((dq, dk, self.natural(y_v), self.natural(grad_beta)), gate, grad_states, leaving)
