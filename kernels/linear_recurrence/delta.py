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
from kernels.linear_recurrence.tiles import add_mm, t


class Delta(Part):
    """Inputs q or None, k, v, beta `[N G, C]`. Keeps the inverse."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim + value_dim)

    def __init__(
        self, frame: Frame, lead: tuple[int, int, int], inputs: tuple[Tensor | None, ...], kept: Tensor | None
    ):
        super().__init__(frame, lead, inputs, kept)
        self.q, self.k, v, beta = inputs
        self.beta = beta.unsqueeze(-1)
        self.q_rows = None if self.q is None else scaled(self.q, frame.start)
        self.k_rows, self.k_columns = scaled(self.k, frame.start), scaled(self.k, frame.end)
        self.right_side = torch.cat([self.k_rows, v], -1)
        if kept is None:
            rows, columns = (self.k_rows, self.k_columns) if frame.pair is None else (self.k, self.k)
            kept = unit_lower_inverse(self.weigh_(torch.bmm(rows, t(columns)), strict=True).mul_(self.beta))
        self.kept = kept
        self.x = torch.bmm(kept * t(self.beta), self.right_side)
        self.w, self.u = self.x.split([self.k.shape[-1], v.shape[-1]], -1)
        w, columns = self.w, self.k_columns
        if frame.entry is not None:
            w, columns = w * t(frame.entry), columns * t(frame.exit)
        self.w_entering, self.k_exiting, self.total = self.chunks(w), self.chunks(columns), self.chunks(frame.total)

    def scores(self) -> Tensor:
        rows, columns = (self.q_rows, self.k_columns) if self.frame.pair is None else (self.q, self.k)
        return self.weigh_(torch.bmm(rows, t(columns)))

    def forward(self, states: Tensor) -> Tensor | None:
        u = self.u.contiguous()
        chunks = self.chunks(u), self.w_entering, self.k_exiting, self.total
        for u_n, w, k, total, old, new in zip(*chunks, states[:-1], states[1:], strict=True):
            torch.baddbmm(u_n, w, old, alpha=-1, out=u_n)
            torch.baddbmm(advance(None, total, old), t(k), u_n, out=new)
        if self.q is None:
            return None
        return add_mm(torch.bmm(self.scores(), u), self.q_rows, scaled(states[:-1].flatten(0, 1), self.frame.entry))

    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        f, beta, entering = self.frame, self.beta, scaled(states[:-1].flatten(0, 1), self.frame.entry)
        u = torch.baddbmm(self.u, self.w, entering, alpha=-1)

        # From chunk to chunk, backwards: the gradient of the state that leaves, and through it that of u.
        if grad_o is None:
            du, grad_read = torch.zeros_like(u), torch.zeros_like(entering)
        else:
            du, grad_read = torch.bmm(t(self.scores()), grad_o), scaled(torch.bmm(t(self.q_rows), grad_o), f.entry)
        grad_states = torch.empty_like(states[1:])
        chunks = self.chunks(du), self.w_entering, self.k_exiting, self.total, self.chunks(grad_read)
        for du_n, w, k, total, read, grad in reversed(list(zip(*chunks, grad_states, strict=True))):
            grad.copy_(leaving)
            torch.baddbmm(du_n, k, leaving, out=du_n)
            leaving = advance(read, total, leaving)
            torch.baddbmm(leaving, t(w), du_n, alpha=-1, out=leaving)

        # Everything else is local to the chunks. Rows and columns of k, in a and in what is read and written:
        rows, columns = (self.k_rows, self.k_columns) if f.pair is None else (self.k, self.k)
        y = torch.bmm(t(self.kept), torch.cat([torch.bmm(du, t(entering)).neg_(), du], -1))
        grad_a = self.weigh_(torch.bmm(y, t(self.x)).neg_(), strict=True)
        dk_row = torch.bmm(grad_a, columns)
        grad_beta = (y * self.right_side).sum(-1).add_((dk_row * rows).sum(-1))
        y_k, dv = y.mul_(beta).split([self.w.shape[-1], self.u.shape[-1]], -1)
        dk_row.mul_(beta)
        dk_column = torch.bmm(t(grad_a.mul_(beta)), rows)
        dk_leaving = scaled(torch.bmm(u, t(scaled(grad_states.flatten(0, 1), f.exit))), f.end)
        dq = own = None
        if grad_o is not None:
            grad_scores = torch.bmm(grad_o, t(u))
            # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
            own = grad_scores.diagonal(dim1=1, dim2=2).unsqueeze(-1).clone()
            self.weigh_(grad_scores, strict=True)
            dq = torch.bmm(grad_o, t(entering))
            if f.pair is None:
                dq = scaled(add_mm(dq, grad_scores, columns), f.start)
                add_mm(dk_column, t(grad_scores), self.q_rows)
            else:
                dq = add_mm(dq.mul_(f.start), grad_scores, columns)
                add_mm(dk_column, t(grad_scores), self.q)
        if f.pair is None:
            dk_row, dk_column = scaled(dk_row.add_(y_k), f.start), scaled(dk_column, f.end)
        else:
            dk_row.addcmul_(y_k, f.start)
        gate = None
        if f.total is not None:
            crossing = self.k * (dk_row - dk_column)
            gate = crossing if dq is None else crossing.addcmul_(self.q, dq), self.k * dk_leaving
        dk = dk_row.add_(dk_column).add_(dk_leaving)
        if own is not None:
            dq.addcmul_(own, self.k)
            dk.addcmul_(own, self.q)
        return Gradients((dq, dk, dv, grad_beta), gate, grad_states, leaving)
