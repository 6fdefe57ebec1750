"""Gates, decays and norms of the linear recurrences: the arithmetic that must not run in half precision.

A decay of 1 - 2^-12 rounds to 1 in bf16, and autocast leaves softplus and exp in whatever dtype they are given. So
everything here computes in float32 (float64 stays float64), and the parameters behind a decay stay float32 when the
model around them is cast to bf16.

Letters: B batch, L stream length (or queries), H heads, V value dim.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 when it is."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last axis: a zero vector stays zero and has a finite gradient."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def count_heads(width: int, head_dim: int) -> int:
    """H = width / head_dim.

    Raises:
        ValueError: it does not divide.
    """
    if width % head_dim:
        raise ValueError(f"width {width} is not divisible by head_dim {head_dim}; choose d or head_dim to fit")
    return width // head_dim


def no_decay(parameter: nn.Parameter) -> nn.Parameter:
    """Mark a parameter that weight decay would pull away from what it means (a decay rate, a mixing weight)."""
    parameter._no_weight_decay = True
    return parameter


class Float32Module(nn.Module):
    """A module whose parameters follow every move and widening, but are never narrowed below float32."""

    def _apply(self, fn, recurse=True):
        def keep_wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= 4 else tensor.to(moved.device)

        return super()._apply(keep_wide, recurse)


class HeadDecay(Float32Module):
    """One decay per head and token, as in Mamba-2: dt = softplus(logit + dt_bias), log-decay g = -exp(A_log) dt <= 0.

    Args:
        heads: H.
        a_min, a_max: A = exp(A_log) starts uniform between them. A is floored at 1e-3: log 0 would kill the head.
        dt_min, dt_max: softplus(dt_bias) starts log-uniform between them.

    Raises:
        ValueError: bounds out of order, or a step size of 0.
    """

    def __init__(self, heads: int, a_min: float, a_max: float, dt_min: float, dt_max: float):
        super().__init__()
        if not 0 <= a_min <= a_max:
            raise ValueError(f"a_min={a_min}, a_max={a_max}: need 0 <= a_min <= a_max")
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"dt_min={dt_min}, dt_max={dt_max}: need 0 < dt_min <= dt_max")
        a = torch.empty(heads, dtype=torch.float32).uniform_(a_min, a_max).clamp_min(1e-3)
        dt = torch.empty(heads, dtype=torch.float32).uniform_(math.log(dt_min), math.log(dt_max)).exp()
        self.A_log = no_decay(nn.Parameter(a.log()))
        self.dt_bias = no_decay(nn.Parameter(dt + torch.log(-torch.expm1(-dt))))  # the inverse of softplus

    def forward(self, logit_BLH: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-decay and dt, both [B, L, H]."""
        dt = F.softplus(wide(logit_BLH) + self.dt_bias)
        return -self.A_log.exp() * dt, dt


class HeadNorm(nn.Module):
    """RMSNorm over the V channels of each head with one weight for all heads, then times SiLU(gate) if there is one."""

    def __init__(self, value_dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(value_dim))
        self.eps = eps

    def forward(self, o_BLHV: Tensor, gate: Tensor | None = None) -> Tensor:
        """[B, L, H, V] and a gate [B, L, H V] -> [B, L, H V] in the dtype of the weight."""
        o = wide(o_BLHV)
        scale = torch.rsqrt(o.square().mean(-1, keepdim=True) + self.eps)
        y = (o * scale * self.weight).flatten(-2)
        return (y if gate is None else y * F.silu(wide(gate))).to(self.weight.dtype)
