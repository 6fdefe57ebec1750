"""The recurrence one token at a time: the oracle of every other form, and the form whose matmuls are counted.

Each pass over the state is a `matmul`, outer products included, so that PyTorch's FLOP counter sees the whole price:
`2 K V` per pass and head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_recurrence.arguments import LowRank, Rule


def step(
    q: Tensor | None, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | LowRank | None, state: Tensor
) -> tuple[Tensor | None, Tensor]:
    """One token of the recurrence, unscaled.

    Args:
        q, k, v, log_decay, erase: as in `Rule`, without the axis `L`.
        state: `[B, H, K, V]`.

    Returns:
        `(o [B, H, V], state)`; no output if there is no q.
    """
    heads = v.shape[-2]
    q, k = (None if x is None else x.expand(-1, heads, -1) for x in (q, k))
    old = state
    if log_decay is not None:
        decay = log_decay.exp()
        state = state * (decay.unsqueeze(-1) if decay.ndim == 3 else decay[..., None, None])
    if isinstance(erase, LowRank):
        state = state + _outer(erase.a, _row(erase.b, old))
    elif erase is not None:
        v = erase.unsqueeze(-1) * (v - _row(k, state))
    state = state + _outer(k, v)
    return (None if q is None else _row(q, state)), state


def recurrence(rule: Rule) -> tuple[Tensor | None, Tensor]:
    """All tokens: `(o [B, L, H, V], state)`, unscaled; no output if there is no q."""
    length = rule.v.shape[1]

    def tokens(x: Tensor | None) -> list[Tensor | None]:
        # Unbound once: indexing inside the loop would make the backward pass quadratic in the length.
        return [x] * length if x is None or x.ndim == 1 else x.unbind(1)

    erase = rule.erase
    if isinstance(erase, LowRank):
        erase = [LowRank(a, b) for a, b in zip(*map(tokens, erase), strict=True)]
    else:
        erase = tokens(erase)
    state, outputs = rule.state, []
    for token in zip(*map(tokens, (rule.q, rule.k, rule.v, rule.log_decay)), erase, strict=True):
        o, state = step(*token, state)
        outputs.append(o)
    return (None if rule.q is None else torch.stack(outputs, 1)), state


def _row(x: Tensor, state: Tensor) -> Tensor:
    """`x^T S`: `[B, H, K]` and `[B, H, K, V]` to `[B, H, V]`."""
    return (x.unsqueeze(-2) @ state).squeeze(-2)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """`x y^T` as a matmul, which a FLOP counter sees; a broadcast product it would miss."""
    return x.unsqueeze(-1) @ y.unsqueeze(-2)
