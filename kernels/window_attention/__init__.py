"""Causal softmax attention that sees the last few tokens only: `o_t` over the tokens `t - W .. t`.

`B` batch, `L` stream length, `H` heads, `K` key dim, `V` value dim, `W` window: how far back a token sees. A cache of
the last `W` keys and values, or of all while there are fewer, continues a stream; a query over such a cache is ordinary
attention (`kernels.attention_read`), because everything in it is in view.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.choice import pick
from kernels.window_attention import blocked, reference

FORMS = {"block": blocked.window_attention, "reference": reference.window_attention}


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    *,
    past: tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Attend over a stream, or its next piece.

    Args:
        q, k: `[B, L, H, K]`, `L >= 1`.
        v: `[B, L, H, V]`.
        window: W, at least 1.
        past: keys and values of the last `min(W, tokens so far)` tokens, `[B, P, H, *]`; none means none.
        scale: factor on the scores, `K ** -0.5` if none.
        kernel: `"auto"`, `"block"` or `"reference"`.

    Returns:
        `[B, L, H, V]`.
    """
    if q.ndim != 4 or q.shape != k.shape or v.shape[:3] != q.shape[:3] or not q.shape[1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"window_attention takes q, k, v [B, L >= 1, H, *] of one length, got {shapes}")
    if past is None:
        past = k[:, :0], v[:, :0]
    if window < 1 or past[0].shape[1] > window:
        raise ValueError(f"window {window} must be at least 1 and not below the {past[0].shape[1]} cached tokens")
    k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return pick("window_attention", FORMS, kernel)(q, k, v, window, scale).transpose(1, 2)
