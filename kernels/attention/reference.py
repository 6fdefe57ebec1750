"""Softmax attention with every score written out: the oracle, and the form whose matmuls a FLOP counter can see."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def causal_attention(q: Tensor, k: Tensor, v: Tensor, past_length: int, strict: bool, scale: float) -> Tensor:
    """Arguments as `fused.causal_attention`: heads before length, k and v with the past in front."""
    scores = q @ k.transpose(-1, -2) * scale  # [B, H, L, P + L]
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(past_length - strict)
    # The smallest finite number instead of -inf: a row that sees nothing must not become NaN before it is zeroed.
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights * visible.any(-1, keepdim=True)) @ v


def attention_read(q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, scale: float) -> Tensor:
    """Arguments as `fused.attention_read`."""
    past_scores = q @ past_k.transpose(-1, -2)  # [B, H, Q, P]
    own_score = q.unsqueeze(-2) @ k.unsqueeze(-1)  # [B, H, Q, 1, 1]
    weights = torch.cat([past_scores, own_score.squeeze(-1)], -1).mul(scale).softmax(-1)
    return weights[..., :-1] @ past_v + (weights[..., -1:, None] @ v.unsqueeze(-2)).squeeze(-2)


def softmax_scale(key_dim: int, scale: float | None) -> float:
    """The factor on the scores: `key_dim ** -0.5` unless given."""
    return 1 / math.sqrt(key_dim) if scale is None else scale
