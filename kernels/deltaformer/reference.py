"""Corrected values one token at a time: the oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def corrected_values(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, past_k: Tensor, past_u: Tensor, scale: float
) -> Tensor:
    """Arguments and result as the public `corrected_values`, with a past that may be empty."""
    keys, values = past_k, past_u
    for q_t, k_t, v_t, beta_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), beta.unbind(1), strict=True):
        scores = torch.einsum("bhk,bjhk->bhj", q_t, keys) * scale
        predicted = torch.einsum("bhj,bjhv->bhv", scores.softmax(-1), values)
        u_t = v_t - beta_t.unsqueeze(-1) * predicted
        keys, values = torch.cat([keys, k_t.unsqueeze(1)], 1), torch.cat([values, u_t.unsqueeze(1)], 1)
    return values[:, past_u.shape[1] :]
