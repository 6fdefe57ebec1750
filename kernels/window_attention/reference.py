"""Window attention with the full table of scores: the oracle, which a FLOP counter sees exactly for one token."""

from __future__ import annotations

import torch
from torch import Tensor


def window_attention(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
    """q `[B, H, L, K]`, k and v `[B, H, P + L, *]` with the past in front; returns `[B, H, L, V]`."""
    past = k.shape[2] - q.shape[2]
    scores = q @ k.transpose(-1, -2) * scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(past).triu(past - window)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
