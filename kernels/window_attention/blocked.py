"""Window attention by blocks of W queries: each block sees its own keys and those of the block before."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def window_attention(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
    """Arguments and result as `reference.window_attention`; the past has at most `window` tokens."""
    L = q.shape[2]
    missing, padding = window - (k.shape[2] - L), -L % window

    def two_blocks(x: Tensor) -> Tensor:
        """`[B, H, P + L, *]` -> `[B, H, N, 2 W, *]`: for every block of tokens, the block before and itself."""
        blocks = F.pad(x, (0, 0, missing, padding)).unflatten(2, (-1, window))
        return torch.cat([blocks[:, :, :-1], blocks[:, :, 1:]], 3)

    q = F.pad(q, (0, 0, 0, padding)).unflatten(2, (-1, window))
    scores = (q * scale) @ two_blocks(k).transpose(-1, -2)  # [B, H, N, W, 2 W]
    hidden = torch.ones(scores.shape[-3:], dtype=torch.bool, device=q.device)
    hidden = hidden.tril(-1) | hidden.triu(window + 1)  # row i sees columns i .. i + W
    hidden[0, :, :missing] = True
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ two_blocks(v)).flatten(2, 3)[:, :, :L]
