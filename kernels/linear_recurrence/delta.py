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
from kernels.linear_recurrence.tiles import add_mm, blocks, mm, step_mm, swap, t


class Delta(Part):
    """Inputs q or None, k, v, beta `[B, N, C, H]`."""

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(size, key_dim + value_dim)

    def __init__(self, frame: Frame, q: Tensor | None, k: Tensor, v: Tensor, beta: Tensor):
        self.frame, self.q_natural, self.k_natural = frame, q, k
        self.v, self.beta = blocks(v), blocks(beta).unsqueeze(-1)
        self.k_rows = blocks(scaled(k, frame.start))
        self.k_columns = self.k_rows if frame.end is None else blocks(k * frame.end)
        self.q_rows = None if q is None else blocks(scaled(q, frame.start))
        # What scores are made of: scaled already, or raw and weighed pair by pair.
        self.q, self.k_row, self.k_column = self.q_rows, self.k_rows, self.k_columns
        if frame.pair is not None:
            self.k_row = self.k_column = blocks(k)
            self.q = None if q is None else blocks(q)
        a = frame.weigh_(mm(self.k_row, t(self.k_column)), strict=True).mul_(self.beta)
        self.inverse = unit_lower_inverse(a)
        self.x = mm(self.inverse, torch.cat([self.k_rows, self.v], -1).mul_(self.beta))
        self.w, self.u = self.x.split([k.shape[-1], v.shape[-1]], -1)
        self.w_entering, self.k_exiting = self.w, self.k_columns
        if frame.entry is not None:
            self.w_entering, self.k_exiting = self.w * t(frame.entry), self.k_columns * t(frame.exit)

    def scores(self) -> Tensor:
        return self.frame.weigh_(mm(self.q, t(self.k_column)))

    def forward(self, states: Tensor) -> Tensor | None:
        f, u = self.frame, torch.empty_like(self.v)
        for n in range(len(u)):
            step_mm(self.u[n], self.w_entering[n], states[n], out=u[n], alpha=-1)
            step_mm(advance(None, f.total, n, states[n]), t(self.k_exiting[n]), u[n], out=states[n + 1])
        return None if self.q is None else add_mm(mm(self.scores(), u), self.q_rows, scaled(states[:-1], f.entry))

    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        f, beta, entering = self.frame, self.beta, scaled(states[:-1], self.frame.entry)
        u = self.u - mm(self.w, entering)

        # From chunk to chunk, backwards: the gradient of the state that leaves, and through it that of u.
        if grad_o is None:
            du, grad_read = torch.zeros_like(self.v), torch.zeros_like(entering)
        else:
            du, grad_read = mm(t(self.scores()), grad_o), scaled(mm(t(self.q_rows), grad_o), f.entry)
        grad_states = torch.empty_like(grad_read)
        for n in reversed(range(len(grad_states))):
            grad_states[n] = leaving
            step_mm(du[n], self.k_exiting[n], leaving, out=du[n])
            leaving = advance(grad_read[n], f.total, n, leaving)
            leaving = step_mm(leaving, t(self.w_entering[n]), du[n], out=torch.empty_like(leaving), alpha=-1)

        # Everything else is local to the chunks.
        y = mm(t(self.inverse), torch.cat([mm(du, t(entering)).neg_(), du], -1))
        y_k, y_v = y.split([self.w.shape[-1], self.u.shape[-1]], -1)
        grad_a = f.weigh_(mm(y, t(self.x)).neg_(), strict=True)
        dk_row = mm(grad_a, self.k_column)  # through a, before beta
        grad_beta = (y_k * self.k_rows).sum(-1) + (y_v * self.v).sum(-1) + (dk_row * self.k_row).sum(-1)
        dk_column = mm(t(grad_a.mul_(beta)), self.k_row)
        dk_leaving = mm(u, t(scaled(grad_states, f.exit)))
        own = None
        if self.q is not None:
            grad_scores = mm(grad_o, t(u))
            # A token with itself is no matter of decay: it is kept apart, for the gate's gradient.
            own = swap(grad_scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).clone())
            f.weigh_(grad_scores, strict=True)
            dq, dq_entering = mm(grad_scores, self.k_column), mm(grad_o, t(entering))
            add_mm(dk_column, t(grad_scores), self.q)
        if f.pair is None:
            dq = None if own is None else scaled(swap(dq.add_(dq_entering)), f.start)
            dk_row = scaled(swap(dk_row.add_(y_k).mul_(beta)), f.start)
            dk_column = scaled(swap(dk_column), f.end)
        else:
            dq = None if own is None else swap(dq.addcmul_(dq_entering, swap(f.start)))
            dk_row = swap(dk_row.addcmul_(y_k, swap(f.start)).mul_(beta))
            dk_column = swap(dk_column)
        dk_leaving = scaled(swap(dk_leaving), f.end)
        q, k, gate = self.q_natural, self.k_natural, None
        if f.total is not None:
            rows = k * dk_row if q is None else torch.addcmul(k * dk_row, q, dq)
            gate = rows, k * dk_column, k * dk_leaving
        dk = dk_row + dk_column + dk_leaving
        if own is not None:
            dq, dk = torch.addcmul(dq, own, k), torch.addcmul(dk, own, q)
        return Gradients((dq, dk, swap(y_v * beta), swap(grad_beta)), gate, grad_states, leaving)
