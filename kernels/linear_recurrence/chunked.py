"""The recurrence in chunks of tokens: matrix products inside a chunk, and one step from chunk to chunk.

A recurrence over L tokens reads and writes its state L times. Over chunks of C tokens it does so L / C times; what the
tokens of a chunk do to each other is a `C x C` matrix, masked to be causal. The work inside chunks grows with C, the
work between them shrinks. This module picks the algorithm and the C, by the gate and the erase:

    no erase, heads with their own q and k    `linear.py`
    no erase, one q and k for all heads       `shared.py`
    delta rule                                `delta.py`
    low-rank erase                            `low_rank.py`

`tiled.py` is the frame of all but `shared.py`; `tiles.py` and `frame.py` are about layout and decay.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kernels.linear_recurrence.arguments import LowRank, Rule, factorised
from kernels.linear_recurrence.delta import Delta
from kernels.linear_recurrence.linear import Linear
from kernels.linear_recurrence.low_rank import LowRankErase
from kernels.linear_recurrence.shared import shared
from kernels.linear_recurrence.tiled import run

CHUNKS = {"linear": 32, "shared": 64, "delta": 16, "low rank": 16}
"""Tokens per chunk, by algorithm: what measured fastest on a CPU (`python -m benchmarks.kernels --chunks`)."""

MAX_EXPONENT = 40.0
"""Largest exponent that a factorised decay may take to either side of a chunk's middle: `e^40` times `e^40` times
large inputs is still far from float32's end at `e^88`, and rounding the exponent costs 2e-6."""

LOWEST = -60.0
"""Factorised log decays below this are computed as this; `e^-60` is 9e-27, which no dtype in use can add to 1."""

LOWEST_SUMMED = -1e4
"""Log decays below this, -inf among them, are computed as this: its exponential is 0, but differences of sums exist."""


def algorithm(erase: str, shared_heads: bool = False, gate: str = "head") -> str:
    """The name of the algorithm for a rule, from the names in `Rule.erasure` and `Rule.gate`."""
    if erase != "none":
        return erase
    return "shared" if shared_heads and gate != "channel" else "linear"


def algorithm_of(rule: Rule) -> str:
    """The same for a rule. Sharing saves reads: without any it is no algorithm of its own."""
    return algorithm(rule.erasure, rule.shared_heads and rule.q is not None, rule.gate)


def recurrence(rule: Rule, chunk: int | None = None) -> tuple[Tensor | None, Tensor]:
    """`(o [B, L, H, V], state [B, H, K, V])`, unscaled; no output if the rule has no q.

    Args:
        rule: the checked arguments.
        chunk: tokens per chunk; none takes the default. A factorised decay may make it smaller.
    """
    heads = rule.v.shape[2]
    name = algorithm_of(rule)
    gate = summable(rule)
    if name == "linear" and rule.q is None:
        return None, _final_state(rule.k, rule.v, gate, rule.state)
    size = min(chunk or CHUNKS[name], rule.v.shape[1])
    if factorised(rule.log_decay, rule.erase):
        gate, size = gate.clamp_min(LOWEST), _safe_size(size, rule.lowest, name)
    if name == "shared":
        return shared(rule.q, rule.k, rule.v, gate, rule.state, size)
    q, k = (None if x is None else x.expand(-1, -1, heads, -1) for x in (rule.q, rule.k))
    if isinstance(rule.erase, LowRank):
        return run(LowRankErase, (q, k, rule.v, *rule.erase), gate, rule.state, size)
    if rule.erase is not None:
        return run(Delta, (q, k, rule.v, rule.erase), gate, rule.state, size)
    return run(Linear, (q, k, rule.v), gate, rule.state, size)


def summable(rule: Rule) -> Tensor | None:
    """The log decays for running sums: `[B, L, H]`, `[B, L, H, K]` or, if constant, `[1, L, H]`; all finite."""
    gate = rule.log_decay
    if gate is None:
        return None
    if rule.gate == "constant":
        gate = gate.expand(1, *rule.v.shape[1:3])
    return gate.clamp_min(LOWEST_SUMMED)


def _safe_size(size: int, lowest: float, name: str) -> int:
    """The largest halving of `size` whose factorised decay stays within `MAX_EXPONENT` of the chunk's middle."""
    limit = MAX_EXPONENT if name == "linear" else MAX_EXPONENT / 2  # A solve multiplies two such factors.
    extra = 1 if name == "low rank" else 0  # Its rows reach back to before their own token.
    while size > 1 and (size // 2 + extra) * -lowest > limit:
        size //= 2
    return size


def _final_state(k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor) -> Tensor:
    """`S_L = decay(0 -> L) S_0 + sum_j (decay(j -> L) * k_j) v_j^T`: one product, no chunks, no exponent above 0."""
    weight = None
    if log_decay is not None:
        until_end = log_decay.flip(1).cumsum(1).flip(1)  # [B, L, H, ..], including the token itself
        total = until_end[:, 0].exp()
        state = state * (total.unsqueeze(-1) if total.ndim == 3 else total[..., None, None])
        after = F.pad(until_end[:, 1:], (0, 0) * (until_end.ndim - 2) + (0, 1))
        weight = after.exp() if after.ndim == 4 else after.exp().unsqueeze(-1)
    if k.shape[2] == 1 and (weight is None or weight.shape[-1] == 1):
        weighed = v if weight is None else v * weight
        written = k.squeeze(2).transpose(1, 2) @ weighed.flatten(2)  # [B, K, H V]
        return state + written.unflatten(2, v.shape[2:]).transpose(1, 2)
    weighed = k if weight is None else k * weight
    return state + weighed.permute(0, 2, 3, 1) @ v.transpose(1, 2)
