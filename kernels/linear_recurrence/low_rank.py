"""The general erase `a b^T`, chunk by chunk.

Write `u_i = b_i^T (state before token i)` for what token i reads and erases. With rows of q and b, columns of a and k,
and all their products at once,

              columns:  a    k
    scores =  row q  [ qa   qk ]    weighed, on and below the diagonal
              row b  [ ba   bk ]    weighed, strictly below the diagonal

the u of a chunk solve a triangular system in the state `S` that entered:

    (I - ba) u = bk v + rows_b S
    o  = [qa qk] [u; v] + rows_q S
    S' = total S + [a k]^T [u; v]

Row b reads the state before its token, so its own token's decay is not in its weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_recurrence.frame import Frame, advance, before, scaled
from kernels.linear_recurrence.inverse import unit_lower_inverse
from kernels.linear_recurrence.tiled import Gradients, Part
from kernels.linear_recurrence.tiles import add_mm, blocks, mm, step_mm, swap, t


class LowRankErase(Part):
    """Inputs q or None, k, v, a, b. Without q the rows q are those of b: they cost little and nobody reads them."""

    factorise = True

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(4 * size, key_dim + value_dim)

    def __init__(self, frame: Frame, q: Tensor | None, k: Tensor, v: Tensor, a: Tensor, b: Tensor):
        self.frame, self.before, self.size = frame, before(frame), v.shape[2]
        self.naturals = q, k, a, b
        self.v = blocks(v)
        rows_b = scaled(b, self.before)
        rows = rows_b if q is None else torch.cat([scaled(q, frame.start), rows_b], 2)
        self.rows = blocks(rows)  # [N, B, H, 2C or C, K]
        self.columns = blocks(torch.cat([scaled(a, frame.end), scaled(k, frame.end)], 2))  # [N, B, H, 2C, K]
        self.q_rows, b_rows = self.rows[..., : -self.size, :], self.rows[..., -self.size :, :]
        self.a_columns, self.k_columns = self.columns.split(self.size, -2)
        scores = self.mask_(mm(self.rows, t(self.columns)))
        self.q_scores = scores[..., : -self.size, :]
        ba, self.bk = scores[..., -self.size :, :].split(self.size, -1)
        self.inverse = unit_lower_inverse(ba.neg())
        self.x = mm(self.inverse, torch.cat([b_rows, mm(self.bk, self.v)], -1))
        self.w, self.u = self.x.split([k.shape[-1], v.shape[-1]], -1)
        self.w_entering, self.a_exiting = self.w, self.a_columns
        if frame.entry is not None:
            self.w_entering, self.a_exiting = self.w * t(frame.entry), self.a_columns * t(frame.exit)

    def mask_(self, scores: Tensor) -> Tensor:
        by_column = scores.unflatten(-1, (2, self.size)).transpose(-2, -3)  # [N, B, H, 2, 2C or C, C]
        by_column[..., : -self.size, :].tril_()
        by_column[..., -self.size :, :].tril_(-1)
        return scores

    def forward(self, states: Tensor) -> Tensor | None:
        f, u = self.frame, torch.empty_like(self.v)
        written = scaled(mm(t(self.k_columns), self.v), f.exit)
        for n in range(len(u)):
            step_mm(self.u[n], self.w_entering[n], states[n], out=u[n])
            step_mm(advance(written[n], f.total, n, states[n]), t(self.a_exiting[n]), u[n], out=states[n + 1])
        if self.naturals[0] is None:
            return None
        values = torch.cat([u, self.v], -2)
        return add_mm(mm(self.q_scores, values), self.q_rows, scaled(states[:-1], f.entry))

    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        f, size, entering = self.frame, self.size, scaled(states[:-1], self.frame.entry)
        u = self.u + mm(self.w, entering)
        values = torch.cat([u, self.v], -2)

        # From chunk to chunk, backwards: the gradient of the state that leaves, and through it that of u.
        if grad_o is None:
            du, dv, grad_read = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(entering)
        else:
            du, dv = (x.contiguous() for x in mm(t(self.q_scores), grad_o).split(size, -2))
            grad_read = scaled(mm(t(self.q_rows), grad_o), f.entry)
        grad_states = torch.empty_like(grad_read)
        for n in reversed(range(len(grad_states))):
            grad_states[n] = leaving
            step_mm(du[n], self.a_exiting[n], leaving, out=du[n])
            leaving = advance(grad_read[n], f.total, n, leaving)
            leaving = step_mm(leaving, t(self.w_entering[n]), du[n], out=torch.empty_like(leaving))

        # Everything else is local to the chunks.
        grad_written = scaled(grad_states, f.exit)
        y = mm(t(self.inverse), torch.cat([mm(du, t(entering)), du], -1))
        y_b, y_v = y.split([self.w.shape[-1], self.u.shape[-1]], -1)
        add_mm(add_mm(dv, self.k_columns, grad_written), t(self.bk), y_v)
        grad_scores = torch.cat([mm(y, t(self.x)), mm(y_v, t(self.v))], -1)
        d_rows = y_b
        if grad_o is not None:
            grad_scores = torch.cat([mm(grad_o, t(values)), grad_scores], -2)
            d_rows = torch.cat([mm(grad_o, t(entering)), y_b], -2)
        grad_scores = self.mask_(grad_scores)
        d_rows = swap(mm(grad_scores, self.columns).add_(d_rows))
        d_columns, d_leaving = swap(mm(t(grad_scores), self.rows)), swap(mm(values, t(grad_written)))
        q, k, a, b = self.naturals
        dq = None if q is None else scaled(d_rows[:, :, :-size], f.start)
        db = scaled(d_rows[:, :, -size:], self.before)
        da, dk = (scaled(x, f.end) for x in d_columns.split(size, 2))
        da_leaving, dk_leaving = (scaled(x, f.end) for x in d_leaving.split(size, 2))
        gate = None
        if f.total is not None:
            rows = torch.zeros_like(b) if q is None else q * dq
            rows[:, :, :-1] += (b * db)[:, :, 1:]  # Row b is weighed by the token before it.
            gate = rows, a * da + k * dk, a * da_leaving + k * dk_leaving
        return Gradients((dq, dk + dk_leaving, swap(dv), da + da_leaving, db), gate, grad_states, leaving)
