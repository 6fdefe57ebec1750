"""Corrected values one token at a time: the oracle, in matrix products that a FLOP counter sees."""

from __future__ import annotations

import torch
from torch import Tensor


def corrected_values(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, past_k: Tensor, past_u: Tensor, scale: float
) -> Tensor:
    """Arguments and result as the public `corrected_values`, with a past that may be empty."""
    keys, values = past_k.transpose(1, 2), past_u.transpose(1, 2)  # [B, H, j, *]
    for q_t, k_t, v_t, beta_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True):
        scores = q_t.unsqueeze(2) @ keys.transpose(-1, -2) * scale  # [B, H, 1, j]
        predicted = (scores.softmax(-1) @ values).squeeze(2)
        u_t = v_t - beta_t.unsqueeze(-1) * predicted
        keys, values = torch.cat([keys, k_t.unsqueeze(2)], 2), torch.cat([values, u_t.unsqueeze(2)], 2)
    return values[:, :, past_u.shape[1] :].transpose(1, 2)
