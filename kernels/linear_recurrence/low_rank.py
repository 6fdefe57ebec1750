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
from kernels.linear_recurrence.tiles import add_mm, t


class LowRankErase(Part):
    """Inputs q or None, k, v, a, b. Without q there are no rows of q. Keeps the inverse."""

    factorise = True

    @staticmethod
    def temporary(size: int, key_dim: int, value_dim: int) -> int:
        return size * max(4 * size, key_dim + value_dim)

    def __init__(
        self, frame: Frame, lead: tuple[int, int, int], inputs: tuple[Tensor | None, ...], kept: Tensor | None
    ):
        super().__init__(frame, lead, inputs, kept)
        self.q, self.k, self.v, self.a, self.b = inputs
        self.before = before(frame)
        rows_b = scaled(self.b, self.before)
        self.rows = rows_b if self.q is None else torch.cat([scaled(self.q, frame.start), rows_b], 1)  # 2C or C of them
        self.columns = torch.cat([scaled(self.a, frame.end), scaled(self.k, frame.end)], 1)  # 2C of them
        self.q_rows = self.rows[:, : -self.size]
        self.a_columns, self.k_columns = self.columns.split(self.size, 1)
        scores = self.mask_(torch.bmm(self.rows, t(self.columns)))
        self.q_scores = scores[:, : -self.size]
        ba, self.bk = scores[:, -self.size :].split(self.size, -1)
        self.kept = unit_lower_inverse(ba.neg()) if kept is None else kept
        self.x = torch.bmm(self.kept, torch.cat([rows_b, torch.bmm(self.bk, self.v)], -1))
        self.w, self.u = self.x.split([self.k.shape[-1], self.v.shape[-1]], -1)
        w, columns = self.w, self.a_columns
        if frame.entry is not None:
            w, columns = w * t(frame.entry), columns * t(frame.exit)
        self.w_entering, self.a_exiting, self.total = self.chunks(w), self.chunks(columns), self.chunks(frame.total)

    def mask_(self, scores: Tensor, strict: bool = False) -> Tensor:
        """Zero what is not causal, in place: above the diagonal for rows q, on it too for rows b.

        By a product, ten times faster than `tril_` on the four parts. It makes no NaN of the entries above the
        diagonal, which are large but finite: the factors of a frame are bounded.

        Args:
            scores: `[N G, 2C or C, 2C]`.
            strict: zero the pairs without decay between them as well, one diagonal more.
        """
        everything = torch.ones(self.size, self.size, dtype=scores.dtype, device=scores.device)
        mask = everything.tril(-1 - strict)
        if scores.shape[1] > self.size:
            mask = torch.cat([everything.tril(-strict), mask])
        return scores.mul_(mask.repeat(1, 2))

    def forward(self, states: Tensor) -> Tensor | None:
        f, u = self.frame, self.u.contiguous()
        written = self.chunks(scaled(torch.bmm(t(self.k_columns), self.v), f.exit))
        chunks = self.chunks(u), self.w_entering, self.a_exiting, self.total, written
        for u_n, w, a, total, write, old, new in zip(*chunks, states[:-1], states[1:], strict=True):
            torch.baddbmm(u_n, w, old, out=u_n)
            torch.baddbmm(advance(write, total, old), t(a), u_n, out=new)
        if self.q is None:
            return None
        entering = scaled(states[:-1].flatten(0, 1), f.entry)
        return add_mm(torch.bmm(self.q_scores, torch.cat([u, self.v], 1)), self.q_rows, entering)

    def backward(self, states: Tensor, grad_o: Tensor | None, leaving: Tensor) -> Gradients:
        f, size, entering = self.frame, self.size, scaled(states[:-1].flatten(0, 1), self.frame.entry)
        values = torch.cat([torch.baddbmm(self.u, self.w, entering), self.v], 1)

        # From chunk to chunk, backwards: the gradient of the state that leaves, and through it that of u.
        if grad_o is None:
            du, dv, grad_read = torch.zeros_like(self.v), torch.zeros_like(self.v), torch.zeros_like(entering)
        else:
            du, dv = (x.contiguous() for x in torch.bmm(t(self.q_scores), grad_o).split(size, 1))
            grad_read = scaled(torch.bmm(t(self.q_rows), grad_o), f.entry)
        grad_states = torch.empty_like(states[1:])
        chunks = self.chunks(du), self.w_entering, self.a_exiting, self.total, self.chunks(grad_read)
        for du_n, w, a, total, read, grad in reversed(list(zip(*chunks, grad_states, strict=True))):
            grad.copy_(leaving)
            torch.baddbmm(du_n, a, leaving, out=du_n)
            leaving = advance(read, total, leaving)
            torch.baddbmm(leaving, t(w), du_n, out=leaving)

        # Everything else is local to the chunks.
        grad_written = scaled(grad_states.flatten(0, 1), f.exit)
        y = torch.bmm(t(self.kept), torch.cat([torch.bmm(du, t(entering)), du], -1))
        y_b, y_v = y.split([self.w.shape[-1], self.u.shape[-1]], -1)
        add_mm(add_mm(dv, self.k_columns, grad_written), t(self.bk), y_v)
        grad_scores = torch.cat([torch.bmm(y, t(self.x)), torch.bmm(y_v, t(self.v))], -1)
        d_rows = y_b
        if grad_o is not None:
            grad_scores = torch.cat([torch.bmm(grad_o, t(values)), grad_scores], 1)
            d_rows = torch.cat([torch.bmm(grad_o, t(entering)), y_b], 1)
        q, k, a, b, own = self.q, self.k, self.a, self.b, []
        if f.total is not None:
            # Pairs without decay between them are kept apart, for the gate's gradient: a token with itself for rows
            # q, with the one before it for rows b, which read the state before their token.
            own = [x.diagonal(-1, 1, 2).unsqueeze(-1).clone() for x in grad_scores[:, -size:].split(size, -1)]
            if q is not None:
                own += [x.diagonal(0, 1, 2).unsqueeze(-1).clone() for x in grad_scores[:, :-size].split(size, -1)]
        grad_scores = self.mask_(grad_scores, strict=bool(own))
        d_rows = torch.baddbmm(d_rows, grad_scores, self.columns)
        d_columns, d_leaving = torch.bmm(t(grad_scores), self.rows), torch.bmm(values, t(grad_written))
        dq = None if q is None else scaled(d_rows[:, :-size], f.start)
        db = scaled(d_rows[:, -size:], self.before)
        da, dk = (scaled(x, f.end) for x in d_columns.split(size, 1))
        da_leaving, dk_leaving = (scaled(x, f.end) for x in d_leaving.split(size, 1))
        gate = None
        if own:
            crossing = (a * da).addcmul_(k, dk).neg_()
            crossing[:, :-1].addcmul_(b[:, 1:], db[:, 1:])  # Row b is weighed by the token before it.
            if q is not None:
                crossing.addcmul_(q, dq)
            gate = crossing, (a * da_leaving).addcmul_(k, dk_leaving)
            for column, d_column, of_b in ((a, da, own[0]), (k, dk, own[1])):
                db[:, 1:].addcmul_(of_b, column[:, :-1])
                d_column[:, :-1].addcmul_(of_b, b[:, 1:])
            for column, d_column, of_q in zip((a, k), (da, dk), own[2:], strict=q is not None):
                dq.addcmul_(of_q, column)
                d_column.addcmul_(of_q, q)
        return Gradients((dq, dk + dk_leaving, dv, da + da_leaving, db), gate, grad_states, leaving)
