"""The recurrence in chunks: matrix products inside a chunk, one short scan from chunk to chunk.

(first version; see the package for the mathematics)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear_recurrence.arguments import LowRank, Rule
from kernels.linear_recurrence.decay import ChannelDecay, HeadDecay, NoDecay, PairwiseDecay
from kernels.linear_recurrence.scan import affine_scan, diagonal_scan


def recurrence(rule: Rule, chunk: int | None = None, min_log_decay: float | None = None):
    """`(o [B, L, H, V], state)`, unscaled; no output if the rule has no q."""
    length, heads = rule.v.shape[1:3]
    pairwise = False
    if rule.gate == "channel":
        low = min_log_decay
        if low is None:
            low = float(rule.log_decay.detach().min()) if rule.v.device.type == "cpu" else -torch.inf
        fits = [c for c in (32, 16, 8) if (chunk is None or c <= chunk) and -low * c / 2 <= 40]
        pairwise = not fits
        size = fits[0] if fits else 8
    else:
        size = chunk or (64 if rule.erasure == "none" else 32)
    size = min(size, length)
    count = -(-length // size)
    padding = count * size - length

    def split(x: Tensor | None) -> Tensor | None:  # [B, L, H, ..] -> [B, H, N, C, ..], padded with zeros
        if x is None:
            return None
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, padding)) if padding else x
        return x.unflatten(1, (count, size)).movedim(3, 1).contiguous()

    q, k, v = split(rule.q), split(rule.k), split(rule.v)
    if rule.gate == "none":
        decay = NoDecay(k.shape[-1], v)
    elif rule.gate == "constant":
        decay = HeadDecay(split(rule.log_decay.expand(1, length, heads)))
    elif rule.gate == "head":
        decay = HeadDecay(split(rule.log_decay))
    else:
        decay = (PairwiseDecay if pairwise else ChannelDecay)(split(rule.log_decay))
    if rule.erase is None:
        o, state = _linear(q, k, v, decay, rule.state)
    elif isinstance(rule.erase, LowRank):
        o, state = _low_rank(q, k, v, LowRank(*map(split, rule.erase)), decay, rule.state)
    else:
        o, state = _delta(q, k.expand(-1, heads, -1, -1, -1), v, split(rule.erase).unsqueeze(-1), decay, rule.state)
    return None if o is None else o.movedim(1, 3).flatten(1, 2)[:, :length], state


def _linear(q, k, v, decay, state):
    writes = decay.to_end(k).transpose(-1, -2) @ v
    entering, state = diagonal_scan(decay.total.expand(*writes.shape[:3], -1, -1), writes, state)
    if q is None:
        return None, state
    return decay.scores(q, k) @ v + decay.from_start(q) @ entering, state


def _delta(q, k, v, beta, decay, state):
    erased = beta * decay.scores(k, k, strict=True)
    known = beta * torch.cat([decay.from_start(k), v], -1)
    w, u = _solve(erased, known).split([k.shape[-1], v.shape[-1]], -1)
    last = decay.to_end(k).transpose(-1, -2)
    entering, state = _affine(decay, -(last @ w), last @ u, state)
    if q is None:
        return None, state
    u = u - w @ entering
    return decay.scores(q, k) @ u + decay.from_start(q) @ entering, state


def _low_rank(q, k, v, erase, decay, state):
    a, b = erase
    a_b = decay.scores(b, a, strict=True, before=True)
    known = torch.cat([decay.from_start(b, before=True), decay.scores(b, k, strict=True, before=True) @ v], -1)
    w, u = _solve(-a_b, known).split([k.shape[-1], v.shape[-1]], -1)
    last_a, last_k = decay.to_end(a).transpose(-1, -2), decay.to_end(k).transpose(-1, -2)
    entering, state = _affine(decay, last_a @ w, last_a @ u + last_k @ v, state)
    if q is None:
        return None, state
    u = u + w @ entering
    return decay.scores(q, k) @ v + decay.scores(q, a) @ u + decay.from_start(q) @ entering, state


def _solve(strictly_lower: Tensor, known: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(strictly_lower, known, upper=False, unitriangular=True)


def _affine(decay, transitions, writes, state):
    total = decay.total.expand(*transitions.shape[:3], transitions.shape[-1], 1).squeeze(-1)
    transitions = (transitions + torch.diag_embed(total)).flatten(0, 1)
    entering, final = affine_scan(transitions, writes.flatten(0, 1), state.flatten(0, 1))
    return entering.view_as(writes), final.view_as(state)
