"""Leaky average of a stream, one decay per head: Memory Mosaic's scan (arXiv 2405.06394).

    y_t = x_t + exp(log_decay) y_{t-1}

`B` batch, `L` stream length, `Q` queries, `H` heads, `K` channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.choice import pick
from kernels.leaky_average import reference, scan

FORMS = {"scan": scan.leaky_average, "reference": reference.leaky_average}


def leaky_average(
    x_BLHK: Tensor, log_decay: Tensor, state: Tensor | None = None, kernel: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Average a stream, or its next piece.

    Args:
        x_BLHK: `[B, L, H, K]`, `L >= 1`.
        log_decay: `[H]`, at most 0.
        state: the last output `[B, H, K]`; none means zeros.
        kernel: `"auto"`, `"scan"` or `"reference"`.

    Returns:
        `(y [B, L, H, K] in x's dtype, state [B, H, K] in float32, or float64 if x is)`.
    """
    with torch.autocast(x_BLHK.device.type, enabled=False):
        x, log_decay, state = _prepare(x_BLHK, log_decay, state)
        y, state = pick("leaky_average", FORMS, kernel)(x, log_decay, state)
        return y.to(x_BLHK.dtype), state


def leaky_average_read(x_BQHK: Tensor, log_decay: Tensor, state: Tensor) -> Tensor:
    """`[B, Q, H, K]` at `Q` independent candidates for the next token; the state is left alone."""
    with torch.autocast(x_BQHK.device.type, enabled=False):
        x, log_decay, state = _prepare(x_BQHK, log_decay, state)
        return (x + (log_decay.exp().unsqueeze(-1) * state).unsqueeze(1)).to(x_BQHK.dtype)


def _prepare(x: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if x.ndim != 4 or x.shape[1] == 0:
        raise ValueError(f"leaky_average takes x [B, L, H, K] with L >= 1, got {tuple(x.shape)}")
    batch, _, heads, channels = x.shape
    if log_decay.shape != (heads,):
        raise ValueError(f"log_decay must be [{heads}], one per head of x, got {tuple(log_decay.shape)}")
    if state is None:
        state = x.new_zeros(batch, heads, channels)
    elif state.shape != (batch, heads, channels):
        raise ValueError(f"state must be {(batch, heads, channels)} to match x, got {tuple(state.shape)}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.to(dtype), log_decay.to(dtype), state.to(dtype)
