"""Decayed linear attention whose heads share one q and one k, as in Mamba-2.

Then the products `q_i . k_j` are the same for all heads, and the states of all heads lie side by side in one matrix
`[K, H V]` that a large product reads or writes at once. That state is big (the point of Mamba-2), so chunks are taken
one after the other with all heads, and nothing is rearranged:

    o  = (q k^T, weighed per head) v + start q S
    S' = total S + k^T (end v)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.linear_recurrence.frame import frame, gate_gradient
from kernels.linear_recurrence.tiles import Tile, Tiling, t


def shared(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor, size: int):
    """`(o, state)`; shapes as in `Rule`, with one head in q and k; a gate per head or, as `[1, L, H]`, constant."""
    return _Shared.apply(q, k, v, log_decay, state, size)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, log_decay, state, size):
        batch, length, heads, value_dim = v.shape
        key_dim = k.shape[-1]
        tiling = Tiling(batch, length, size, heads * max(size * size, key_dim * value_dim), v.device)
        o = torch.empty_like(v)
        states = state.new_empty(tiling.count + 1, batch, key_dim, heads, value_dim)
        states[0] = state.transpose(1, 2)
        for streams in tiling.streams:
            for n in range(tiling.count):
                part = _Part(tiling, streams, n, q, k, v, log_decay)
                entering, leaving = states[n, streams], states[n + 1, streams]
                inside = (part.scores() @ part.v_blocks).transpose(1, 2)
                across = torch.bmm(part.q, entering.flatten(2)).view_as(part.v)
                torch.add(inside, part.times(across, part.start), out=part.of(o))
                carried, written = part.times(entering, part.total), part.times(part.v, part.end)
                torch.baddbmm(carried.flatten(2), t(part.k), written.flatten(2), out=leaving.flatten(2))
        ctx.tiling = tiling
        ctx.save_for_backward(q, k, v, log_decay, states)
        return o, states[-1].transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_o, grad_state):
        q, k, v, log_decay, states = ctx.saved_tensors
        tiling = ctx.tiling
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_gate = torch.zeros_like(log_decay) if ctx.needs_input_grad[3] else None
        grad_first = torch.empty_like(grad_state)
        for streams in tiling.streams:
            grad_s = grad_state[streams].transpose(1, 2).contiguous()  # of the state that leaves
            for n in reversed(range(tiling.count)):
                part = _Part(tiling, streams, n, q, k, v, log_decay)
                entering, do = states[n, streams], part.of(grad_o)
                do_blocks = do.transpose(1, 2).contiguous()
                do_started, v_ended = part.times(do, part.start), part.times(part.v, part.end)
                scores, grad_scores = part.scores(), do_blocks @ t(part.v_blocks)

                dk = torch.bmm(v_ended.flatten(2), t(grad_s.flatten(2)))
                dv_leaving = part.times(torch.bmm(part.k, grad_s.flatten(2)).view_as(part.v), part.end)
                torch.add((t(scores) @ do_blocks).transpose(1, 2), dv_leaving, out=part.of(grad_v))
                if grad_gate is None:
                    dq = torch.bmm(do_started.flatten(2), t(entering.flatten(2)))
                else:
                    # Head by head: only the sum is q's gradient, but each head's gate needs its own share.
                    heads = zip(do_started.unbind(2), entering.unbind(2), strict=True)
                    dq_heads = [torch.bmm(do_h, t(entering_h)) for do_h, entering_h in heads]
                    dq = sum(dq_heads)
                    pairs = (scores * grad_scores).tril_(-1)
                    reads = torch.stack([(dq_h * part.q).sum(-1) for dq_h in dq_heads], -1)  # [B, C, H]
                    rows, columns = reads + pairs.sum(-1).transpose(1, 2), pairs.sum(-2).transpose(1, 2)
                    leaving = (part.v * dv_leaving).sum(-1)
                    through = (grad_s * entering * part.total).sum((1, 3)).unsqueeze(1)
                    change = gate_gradient(*(x.unsqueeze(1) for x in (rows - columns, leaving, through)))
                    tiling.add(grad_gate, Tile(streams, slice(n, n + 1)), change)
                products = part.weigh_(grad_scores).sum(1)
                dq.baddbmm_(products, part.k)
                part.of(grad_q)[:, :, 0] = dq
                part.of(grad_k)[:, :, 0] = torch.baddbmm(dk, t(products), part.q)
                carried = part.times(grad_s, part.total).flatten(2)
                grad_s = torch.baddbmm(carried, t(part.q), do_started.flatten(2)).view_as(entering)
            grad_first[streams] = grad_s.transpose(1, 2)
        return grad_q, grad_k, grad_v, grad_gate, grad_first, None


class _Part:
    """One chunk of some streams: `[B, C, K]` of q and k, `[B, C, H, V]` of v, and the factors of its frame."""

    def __init__(self, tiling: Tiling, streams: slice, n: int, q: Tensor, k: Tensor, v: Tensor, log_decay):
        self.streams, self.tokens = streams, slice(n * tiling.size, (n + 1) * tiling.size)
        self.q, self.k, self.v = self.of(q).squeeze(2), self.of(k).squeeze(2), self.of(v)
        self.v_blocks = self.v.transpose(1, 2).contiguous()
        self.pair = self.start = self.end = self.total = None
        if log_decay is not None:
            batch, _, heads, _ = self.v.shape
            f = frame(self.of(log_decay).unsqueeze(1), batch)
            self.pair = f.pair[0]  # [B or 1, H, C, C]
            self.start, self.end = (x.unflatten(0, (batch, heads)).transpose(1, 2) for x in (f.start, f.end))
            self.total = f.total.view(batch, 1, heads, 1)

    def of(self, x: Tensor) -> Tensor:
        return x[self.streams if x.shape[0] > 1 else slice(0, 1), self.tokens]

    def weigh_(self, scores: Tensor) -> Tensor:
        return scores.tril_() if self.pair is None else scores.mul_(self.pair)

    def scores(self) -> Tensor:
        """`[B, H, C, C]`."""
        products = torch.bmm(self.q, t(self.k)).unsqueeze(1)
        return products.tril().expand(-1, self.v.shape[2], -1, -1) if self.pair is None else products * self.pair

    @staticmethod
    def times(x: Tensor, factor: Tensor | None) -> Tensor:
        return x if factor is None else x * factor
