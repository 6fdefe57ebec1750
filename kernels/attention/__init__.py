"""Softmax attention for streams: causal, with a cache of the past, and for reading many queries off one cache.

    o_t = sum_{j <= t} softmax_j(scale * q_t . k_j) v_j

`B` batch, `L` new tokens, `P` tokens of the past, `Q` queries, `H` heads, `K` key dim, `V` value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import fused, reference
from kernels.attention.reference import softmax_scale
from kernels.attention.rotary import rotary
from kernels.choice import pick

__all__ = ["attention_read", "causal_attention", "rotary"]

FORMS = {"sdpa": fused.causal_attention, "reference": reference.causal_attention}
_READ = {"sdpa": fused.attention_read, "reference": reference.attention_read}


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: tuple[Tensor, Tensor] | None = None,
    strict: bool = False,
    scale: float | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Attention of each new token over the past, the new tokens before it, and itself.

    Args:
        q, k, v: `[B, L, H, K]`, `[B, L, H, K]`, `[B, L, H, V]`.
        past: `(k, v)` of the tokens before, `[B, P, H, *]`.
        strict: leave the token itself out; a token that sees nothing gets zeros.
        scale: factor on the scores, `K ** -0.5` if none.
        kernel: `"auto"`, `"sdpa"` or `"reference"`.

    Returns:
        `[B, L, H, V]`.
    """
    _check_heads(q, k, v)
    past_length = 0
    if past is not None:
        _check_past(*past, k, v)
        past_length = past[0].shape[1]
        k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    form = pick("attention", FORMS, kernel)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return form(q, k, v, past_length, strict, softmax_scale(q.shape[-1], scale)).transpose(1, 2)


def attention_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past_k: Tensor,
    past_v: Tensor,
    *,
    scale: float | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Attention of `Q` independent next tokens, each over the past and itself; they never see each other.

    Args:
        q, k, v: the queries' own `[B, Q, H, K]`, `[B, Q, H, K]`, `[B, Q, H, V]`.
        past_k, past_v: the cache `[B, P, H, K]`, `[B, P, H, V]`; `P` may be 0.
        scale: factor on the scores, `K ** -0.5` if none.
        kernel: `"auto"`, `"sdpa"` or `"reference"`.

    Returns:
        `[B, Q, H, V]`.
    """
    _check_heads(q, k, v)
    _check_past(past_k, past_v, k, v)
    form = pick("attention", _READ, kernel)
    heads_first = (x.transpose(1, 2) for x in (q, k, v, past_k, past_v))
    return form(*heads_first, softmax_scale(q.shape[-1], scale)).transpose(1, 2)


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.ndim != 4 or k.shape != q.shape or v.shape[:3] != q.shape[:3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"attention takes q, k [B, L, H, K] and v [B, L, H, V] of one length, got {shapes}")


def _check_past(past_k: Tensor, past_v: Tensor, k: Tensor, v: Tensor) -> None:
    batch, length = k.shape[0], past_k.shape[1]
    expected = (batch, length, *k.shape[2:]), (batch, length, *v.shape[2:])
    if (past_k.shape, past_v.shape) != expected:
        found = tuple(past_k.shape), tuple(past_v.shape)
        raise ValueError(f"the cached keys and values must be {expected} to match the new ones, got {found}")
