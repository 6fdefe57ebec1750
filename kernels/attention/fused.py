"""Softmax attention through PyTorch's `scaled_dot_product_attention`, which never stores the scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_attention(q: Tensor, k: Tensor, v: Tensor, past_length: int, strict: bool, scale: float) -> Tensor:
    """Causal attention of `L` new tokens.

    Args:
        q: `[B, H, L, K]`.
        k, v: `[B, H, P + L, *]`, the past in front.
        past_length: `P`.
        strict: a token does not see itself.
        scale: factor on the scores.

    Returns:
        `[B, H, L, V]`.
    """
    if strict:
        if past_length == 0:  # The first token sees nothing; the others see what ends one token before them.
            return F.pad(causal_attention(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], 0, False, scale), (0, 0, 1, 0))
        k, v, past_length = k[:, :, :-1], v[:, :, :-1], past_length - 1
    if past_length == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    # `is_causal` would align the first query with the first key instead of the last with the last.
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril_(past_length)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)


def attention_read(q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, scale: float) -> Tensor:
    """Each query over the past and its own key; all `[B, H, Q or P, *]`.

    The queries' own keys are appended to the past once per stream, and a mask hides them from each other. That was
    2.7 times faster forward than explicit scores (1.5 times with backward) at 32 queries over 1024 tokens.
    """
    queries, past_length = q.shape[2], past_k.shape[2]
    visible = torch.eye(queries, dtype=torch.bool, device=q.device)
    visible = F.pad(visible, (past_length, 0), value=True)
    k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
