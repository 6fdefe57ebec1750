"""The leaky average in chunks: a triangular table of decay powers inside a chunk, a short scan between chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.leaky_average.scan import diagonal_scan

CHUNK = 16
"""Tokens per chunk: fastest of 16, 32 and 64 on a CPU, where the table's work grows with it."""


def leaky_average(x_BLHK: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Arguments and results as the public `leaky_average`."""
    length = x_BLHK.shape[1]
    size = min(CHUNK, length)
    count = -(-length // size)
    x = F.pad(x_BLHK, (0, 0, 0, 0, 0, count * size - length)).unflatten(1, (count, size)).movedim(3, 1)  # [B,H,N,C,K]
    steps = torch.arange(size, device=x.device)
    exponent = log_decay[:, None, None] * (steps[:, None] - steps).clamp_min(0)
    # Masked before exp: above the diagonal the exponents would be positive and overflow.
    table = exponent.masked_fill(steps[:, None] < steps, -torch.inf).exp()  # [H, C, C]
    inside = table.unsqueeze(1) @ x
    since_start = (log_decay[:, None] * (steps + 1)).exp()  # [H, C]
    decay = since_start[:, -1, None, None, None].expand(len(x), -1, count, 1, 1)
    entering, _ = diagonal_scan(decay, inside[..., -1:, :], state.unsqueeze(-2))
    y = inside + since_start[:, None, :, None] * entering
    y_BLHK = y.movedim(1, 3).flatten(1, 2)[:, :length]
    return y_BLHK, y_BLHK[:, -1].clone()
