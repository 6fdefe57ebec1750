"""Rotary position embedding: turn each pair of channels by an angle that grows with the token's position."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x_BLHK: Tensor, positions: Tensor, base: float = 1e4) -> Tensor:
    """Rotate channels `(i, i + K/2)` of the token at position `p` by `p * base^(-2i/K)` radians.

    A product of a rotated query and a rotated key depends on their distance only (Su et al., RoFormer, 2021,
    arXiv 2104.09864). Angles are float32 whatever x is (float64 for float64): in bf16 a position near 4096 would be
    off by whole turns.

    Args:
        x_BLHK: `[B, L, H, K]`, K even.
        positions: integers, `[L]` or `[B, L]`; may be one position `[1]` for all.
        base: 10,000 by convention.

    Returns:
        Shape and dtype of x.
    """
    key_dim = x_BLHK.shape[-1]
    if key_dim % 2:
        raise ValueError(f"rotary turns pairs of channels, so the head dim must be even, got {key_dim}")
    dtype = torch.promote_types(x_BLHK.dtype, torch.float32)
    exponents = torch.arange(0, key_dim, 2, dtype=dtype, device=x_BLHK.device) / key_dim
    angles = positions.to(dtype)[..., None, None] * base**-exponents  # [(B,) L, 1, K/2]
    cos, sin = angles.cos(), angles.sin()
    left, right = x_BLHK.to(dtype).chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x_BLHK.dtype)
