"""Reading many queries off one state without building a new state for any of them.

The state after one more token is a rank-one change of the old one, so its product with q collapses to products with
the old state, shared by all queries of a stream, and dot products:

    no erase     o = (q e^g)^T S + (q.k) v
    delta rule   o = (q e^g)^T S + (q.k) beta (v - (k e^g)^T S)
    low rank     o = (q e^g)^T S + (q.a) b^T S + (q.k) v
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_recurrence.arguments import LowRank, Rule


def read(rule: Rule) -> Tensor:
    """`[B, Q, H, V]`, unscaled."""
    q, k, v, erase = rule.q, rule.k, rule.v, rule.erase
    overlap = (q * k).sum(-1, keepdim=True)  # [B, Q, H, 1]
    decay = None if rule.log_decay is None else rule.log_decay.exp()
    before = after = None
    if rule.gate == "channel":
        before = decay
    elif decay is not None:  # One factor per head: cheaper on the result, where q and k may be shared by the heads.
        after = decay.unsqueeze(-1)

    def decayed(*rows: Tensor) -> tuple[Tensor, ...]:
        """Rows times the decayed state, in one product."""
        rows = [x if before is None else x * before for x in rows]
        found = _rows(rows, rule.state)
        return found if after is None else tuple(x * after for x in found)

    if erase is None:
        return torch.addcmul(*decayed(q), overlap, v)
    if isinstance(erase, LowRank):
        (erased,) = _rows([erase.b], rule.state)
        return decayed(q)[0] + (q * erase.a).sum(-1, keepdim=True) * erased + overlap * v
    seen, found = decayed(q, k)
    return seen + overlap * erase.unsqueeze(-1) * (v - found)


def _rows(rows: list[Tensor], state: Tensor) -> tuple[Tensor, ...]:
    """Each `[B, Q, H or 1, K]` times the state `[B, H, K, V]` of its stream: `[B, Q, H, V]`."""
    heads = max(x.shape[2] for x in rows)
    stacked = torch.cat([x.expand(-1, -1, heads, -1) for x in rows], 1) if len(rows) > 1 else rows[0]
    return (stacked.transpose(1, 2) @ state).transpose(1, 2).chunk(len(rows), 1)
