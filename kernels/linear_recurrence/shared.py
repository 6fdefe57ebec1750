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

from kernels.first_order import differentiable_once
from kernels.linear_recurrence.frame import Sums, gate_gradient, sums
from kernels.linear_recurrence.tiles import Tiling, t


def shared(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor, size: int):
    """`(o, state)`; shapes as in `Rule`, with one head in q and k; a gate per head or, as `[1, L, H]`, constant."""
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, log_decay, state))
    return _Shared.apply(q, k, v, log_decay, state, size, training)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, log_decay, state, size, training):
        batch, length, heads, value_dim = v.shape
        key_dim = k.shape[-1]
        tiling = Tiling(batch, length, size, heads * max(size * size, key_dim * value_dim), v.device)
        o = v.new_empty(v.shape)
        # All states if there will be a backward pass; otherwise two, written in turn. A tensor each: an allocator gives
        # one of tens of megabytes back to the system, and getting it again costs a tenth of a training step.
        count = tiling.count + 1 if training else 2
        states = [state.new_empty(batch, key_dim, heads, value_dim) for _ in range(count)]
        states[0].copy_(state.transpose(1, 2))
        decays = _decays(tiling, log_decay)
        # What rows read of the state that entered: each head's gate will want its own share of q's gradient.
        read = v.new_empty(v.shape) if training and log_decay is not None else None
        for streams in tiling.streams:
            for n in range(tiling.count):
                part = _Part(tiling, streams, n, q, k, v, decays)
                entering, leaving = states[n % count][streams], states[(n + 1) % count][streams]
                out = part.of(o)
                torch.bmm(part.q, entering.flatten(2), out=out.view(*out.shape[:2], -1))
                part.times_(out, part.start)
                if read is not None:
                    part.of(read).copy_(out)
                for h, scores in enumerate(part.scores().unbind(1)):
                    out[:, :, h].baddbmm_(scores, part.v[:, :, h])
                part.carry(entering, out=leaving)
                leaving.view(*leaving.shape[:2], -1).baddbmm_(t(part.k), part.times(part.v, part.end).flatten(2))
        ctx.tiling = tiling
        ctx.save_for_backward(q, k, v, log_decay, read, *(states if training else []))
        return o, states[tiling.count % count].transpose(1, 2).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_o, grad_state):
        q, k, v, log_decay, read, *states = ctx.saved_tensors
        tiling, decays = ctx.tiling, _decays(ctx.tiling, log_decay)
        grad_q, grad_k, grad_v = (x.new_empty(x.shape) for x in (q, k, v))
        gates = _GateGradient(tiling, log_decay, v) if ctx.needs_input_grad[3] else None
        grad_first = torch.empty_like(grad_state)
        for streams in tiling.streams:
            grad_s = grad_state[streams].transpose(1, 2).clone(memory_format=torch.contiguous_format)  # of what leaves
            for n in reversed(range(tiling.count)):
                part = _Part(tiling, streams, n, q, k, v, decays)
                entering, do = states[n][streams], part.of(grad_o)
                do_started = part.times(do, part.start)
                scores = part.scores()
                grad_scores = torch.empty_like(scores)
                for do_h, v_h, out in zip(do.unbind(2), part.v.unbind(2), grad_scores.unbind(1), strict=True):
                    torch.bmm(do_h, t(v_h), out=out)

                dk = torch.bmm(part.times(part.v, part.end).flatten(2), t(grad_s.flatten(2)))
                dv = part.of(grad_v)
                torch.bmm(part.k, grad_s.flatten(2), out=dv.view(*dv.shape[:2], -1))
                part.times_(dv, part.end)
                dq = torch.bmm(do_started.flatten(2), t(entering.flatten(2)))
                if gates is not None:
                    pairs = (scores * grad_scores).tril_(-1)
                    reads = (do * part.of(read)).sum(-1)  # [B, C, H]
                    gates.crossing[streams, n, : pairs.shape[-1]] = reads + (pairs.sum(-1) - pairs.sum(-2)).transpose(
                        1, 2
                    )
                    gates.leaving[streams, n, : pairs.shape[-1]] = (part.v * dv).sum(-1)
                    gates.through[streams, n, 0] = (grad_s * entering).sum((1, 3)) * part.total[:, 0, :, 0]
                for h, (scores_h, do_h) in enumerate(zip(scores.unbind(1), do.unbind(2), strict=True)):
                    dv[:, :, h].baddbmm_(t(scores_h), do_h)
                products = part.weigh_(grad_scores).sum(1)
                part.of(grad_q)[:, :, 0] = dq.baddbmm_(products, part.k)
                part.of(grad_k)[:, :, 0] = dk.baddbmm_(t(products), part.q)
                part.carry(grad_s, out=grad_s)
                grad_s.view(*grad_s.shape[:2], -1).baddbmm_(t(part.q), do_started.flatten(2))
            grad_first[streams] = grad_s.transpose(1, 2)
        return grad_q, grad_k, grad_v, None if gates is None else gates.collected(), grad_first, None, None


class _GateGradient:
    """What `gate_gradient` wants of all chunks, gathered chunk by chunk."""

    def __init__(self, tiling: Tiling, log_decay: Tensor, v: Tensor):
        batch, _, heads, _ = v.shape
        self.tiling, self.log_decay = tiling, log_decay
        self.crossing, self.leaving = (v.new_zeros(batch, tiling.count, tiling.size, heads) for _ in range(2))
        self.through = v.new_empty(batch, tiling.count, 1, heads)

    def collected(self) -> Tensor:
        """Shaped as the log decays."""
        gradient = torch.zeros_like(self.log_decay)
        self.tiling.add(gradient, self.tiling.everything, gate_gradient(self.crossing, self.leaving, self.through))
        return gradient


def _decays(tiling: Tiling, log_decay: Tensor | None) -> Sums | None:
    """Of all chunks, `[N, B or 1, H, C or 1]` each: together they cost what those of one chunk cost."""
    if log_decay is None:
        return None
    return sums(tiling.natural(log_decay, tiling.everything))


class _Part:
    """One chunk of some streams: `[B, C, K]` of q and k, `[B, C, H, V]` of v, and the factors of its frame."""

    def __init__(self, tiling: Tiling, streams: slice, n: int, q: Tensor, k: Tensor, v: Tensor, decays: Sums | None):
        self.streams, self.tokens = streams, slice(n * tiling.size, (n + 1) * tiling.size)
        self.q, self.k, self.v = self.of(q).squeeze(2), self.of(k).squeeze(2), self.of(v)
        self.pair = self.start = self.end = self.total = None
        if decays is not None:
            length = self.v.shape[1]  # The last chunk may be shorter; what is missing has no decay.
            own = Sums(*(x[n : n + 1, self._streams(x[n]), :, :length] for x in decays))
            self.pair = own.pair()[0]  # [B or 1, H, C, C]
            self.start, self.end, self.total = (
                x[0].transpose(1, 2).unsqueeze(-1) for x in (own.start, own.end, own.total)
            )

    def _streams(self, x: Tensor) -> slice:
        return self.streams if x.shape[0] > 1 else slice(0, 1)

    def of(self, x: Tensor) -> Tensor:
        return x[self._streams(x), self.tokens]

    def weigh_(self, scores: Tensor) -> Tensor:
        return scores.tril_() if self.pair is None else scores.mul_(self.pair)

    def scores(self) -> Tensor:
        """`[B, H, C, C]`."""
        products = torch.bmm(self.q, t(self.k)).unsqueeze(1)
        return products.tril().expand(-1, self.v.shape[2], -1, -1) if self.pair is None else products * self.pair

    def carry(self, state: Tensor, out: Tensor) -> None:
        """Decay a state `[B, K, H, V]` over the chunk."""
        if self.total is not None:
            torch.mul(state, self.total, out=out)
        elif out is not state:
            out.copy_(state)

    @staticmethod
    def times(x: Tensor, factor: Tensor | None) -> Tensor:
        return x if factor is None else x * factor

    @staticmethod
    def times_(x: Tensor, factor: Tensor | None) -> Tensor:
        return x if factor is None else x.mul_(factor)
