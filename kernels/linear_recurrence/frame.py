"""Decay inside a chunk: how much of token j is left when token i reads it.

With `c` the running sum of the log decays inside a chunk, token i sees token j through `exp(c_i - c_j)`, `i >= j`.
A frame holds the factors that put this weight on the products of a chunk:

    start   on rows, before they read the state that entered the chunk
    end     on columns, before they are written into the state that leaves it
    pair    on the product of row i and column j; None if `start` and `end` already carry the weight
    entry   on the state that entered, before rows read it      } one per channel, only where rows and columns
    exit    on what the columns wrote                           } are measured from the chunk's middle
    total   on the state that entered, until it leaves

Three kinds:

* no gate: all are None;
* a gate per head: a weight per pair, `exp(c_i - c_j)`. Above the diagonal the exponent is cut off at 0 before `exp`,
  so that nothing overflows;
* a gate per channel: a weight per pair and channel would be `C` times the work. Factorised instead,
  `exp(c_i - m) * exp(m - c_j)` with `m` the sum up to the chunk's middle. One of the two exceeds 1, by as much as the
  channel decays over half a chunk, so the chunk must be short enough (`chunked.py` sees to that).

None stands for 1. Layouts and letters as in `tiles.py`. A constant gate comes with 1 for `B`, and so does its `pair`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.linear_recurrence.tiles import blocks, swap


@dataclass
class Frame:
    """See the module's docstring."""

    start: Tensor | None = None  # [N G, C, K or 1]
    end: Tensor | None = None  # [N G, C, K or 1]
    pair: Tensor | None = None  # [N, B or 1, H, C, C], zero above the diagonal
    entry: Tensor | None = None  # [N G, K, 1]
    exit: Tensor | None = None  # [N G, K, 1]
    total: Tensor | None = None  # [N G, K or 1, 1]

    def weigh_(self, scores: Tensor, lead: tuple[int, int, int], strict: bool = False) -> Tensor:
        """Put the pair weights and the causal mask on `[N G, C, C]` in place; `lead` is `(N, B, H)`."""
        if self.pair is None:
            return scores.tril_(-strict)
        scores.unflatten(0, lead).mul_(self.pair)
        return scores.tril_(-1) if strict else scores


def frame(log_decay: Tensor | None, batch: int, factorise: bool = False) -> Frame:
    """The frame of chunks whose log decays are natural, `[B or 1, N, C, H]` or `[B, N, C, H, K]`.

    Args:
        log_decay: the gate, or None.
        batch: `B`.
        factorise: treat a gate per head as one per channel, for callers that want no pair weights.
    """
    if log_decay is None:
        return Frame()
    if log_decay.ndim == 5:
        return _channel_frame(log_decay)
    if factorise:
        return _channel_frame(log_decay.expand(batch, -1, -1, -1).unsqueeze(-1))
    return _head_frame(log_decay, batch)


class Sums(NamedTuple):
    """Running sums `c` of a gate per head inside chunks, and what follows from them; each `[N, B or 1, H, C or 1]`."""

    c: Tensor
    rest: Tensor
    """What rounding took from c. After a strong decay has pushed the sum to -1000, the difference of two float32 sums
    would be off by 1e-4."""
    start: Tensor
    end: Tensor
    total: Tensor

    def pair(self) -> Tensor:
        """`[N, B or 1, H, C, C]`."""
        pair = self.c.unsqueeze(-1) - self.c.unsqueeze(-2)
        pair.add_(self.rest.unsqueeze(-1)).sub_(self.rest.unsqueeze(-2))
        return pair.clamp_max_(0).exp_().tril_()


def sums(log_decay: Tensor) -> Sums:
    """For a natural `[B or 1, N, C, H]`; summed in float64."""
    exact = swap(log_decay.double().cumsum(2)).contiguous()
    c = exact.to(log_decay.dtype)
    until_end = (exact[..., -1:] - exact).to(c.dtype)
    return Sums(c, (exact - c).to(c.dtype), c.exp(), until_end.exp(), c[..., -1:].exp())


def _head_frame(log_decay: Tensor, batch: int) -> Frame:
    s = sums(log_decay)
    start, end, total = (x.expand(-1, batch, -1, -1).flatten(0, 2).unsqueeze(-1) for x in (s.start, s.end, s.total))
    return Frame(start=start, end=end, pair=s.pair(), total=total)


def _channel_frame(log_decay: Tensor) -> Frame:
    c = blocks(log_decay.cumsum(2))  # [N G, C, K]
    middle, last = c[:, c.shape[1] // 2, None], c[:, -1:]
    start = (c - middle).exp_()
    entry, exit, total = (x.exp().transpose(1, 2) for x in (middle, last - middle, last))
    return Frame(start=start, end=start.reciprocal(), entry=entry, exit=exit, total=total)


def scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """`x * factor`, where a factor of None is 1."""
    return x if factor is None else x * factor


def before(f: Frame) -> Tensor | None:
    """`start` for rows that read the state before their token: without that token's own decay."""
    return None if f.start is None else torch.cat([f.entry.transpose(1, 2).reciprocal(), f.start[:, :-1]], 1)


def advance(base: Tensor | None, total: Tensor | None, state: Tensor, out: Tensor | None = None) -> Tensor:
    """`base + total * state`, where a base of None is 0 and a total of None is 1."""
    if total is None:
        return state if base is None else torch.add(base, state, out=out)
    return torch.mul(total, state) if base is None else torch.addcmul(base, total, state, out=out)


def gate_gradient(crossing: Tensor, leaving: Tensor, through: Tensor) -> Tensor:
    """Gradient of the log decays, from what scaling a row, a column or a state by `1 + x` would do to the loss.

    A token's log decay acts on whatever crosses it: what later rows read of earlier columns or of the state that
    entered, what earlier columns leave behind, and what of the entering state leaves again. Pairs of a row and a
    column on one side of the token cancel; pairs of a token with itself must not be among the arguments, because
    under strong decay the rounding of their cancellation would be all that is left.

    Args:
        crossing: row times its gradient, minus column times its gradient through the rows of the chunk; natural
            `[B, N, C, H]` (or `[.., K]`).
        leaving: column times its gradient through the state that leaves.
        through: the same for the entering state through the leaving one, `[B, N, 1, H]` (or `[.., K]`).
    """
    gradient = crossing.flip(2).cumsum(2).flip(2)
    gradient[:, :, 1:] += leaving[:, :, :-1].cumsum(2)
    return gradient.add_(through)
