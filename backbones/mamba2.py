"""Mamba-2: a matrix state per head that decays by one input-dependent factor; all heads share keys and queries.

    [z | x | B | C | dt] = W_in norm(u)          widths 2 D, 2 D, 2 D, 2 D, H
    x, B, C = SiLU(conv4(x | B | C))
    dt = softplus(dt + dt_bias),  a = exp(-exp(A_log) dt)
    S_t = a_t S_{t-1} + B_t (dt_t x_t)^T         per head, S in R^{2D x 64}
    y_t = S_t^T C_t + D_h x_t
    u <- u + W_out RMSNorm(y * SiLU(z))

Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space
Duality", 2024, arXiv 2405.21060. ECCBench, Table 11 (d_state 128 and 256, expand 2, conv 4) and Appendix C.2 (heads
of 64, one group, no feed-forward). Where the paper is silent: pre-norm RMSNorm, a bias in the convolution, the gate
before the norm, as in the authors' `Mamba2` module.

State: S, 4 D^2 floats, and the last three inputs of the convolution, 18 D, per layer and stream (69 KiB at D = 64 in
float32). Price per token and layer: 2 D (8 D + D / 32) + 48 D + 20 D^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, linear, state_read, state_write

from .gates import Float32Module, HeadDecay, count_heads, no_decay, wide
from .linear import LinearMemoryLayer, RecurrenceInputs
from .registry import register


class HeadSkip(Float32Module):
    """y + D_h x: what a head's own input adds to its output."""

    def __init__(self, heads: int):
        super().__init__()
        self.D = no_decay(nn.Parameter(torch.ones(heads)))

    def forward(self, y_BLHV: Tensor, x_BLHV: Tensor) -> Tensor:
        return torch.addcmul(wide(y_BLHV), self.D[:, None], wide(x_BLHV))


@register("mamba2")
class Mamba2(LinearMemoryLayer):
    """Pre-norm Mamba-2 mixer; there is no feed-forward."""

    @dataclass(frozen=True)
    class Config:
        expand: int = 2
        """Inner channels (x and z) over D (Table 11)."""
        state_expand: int = 2
        """Channels of B and C over D: d_state = 2 D (Table 11)."""
        head_dim: int = 64
        """Inner channels of a head (Appendix C.2); the number of heads is expand * D / head_dim."""
        conv: int = 4
        """Width of the convolution over x, B and C; 0 leaves it out."""
        a_min: float = 1.0
        """Initial decay rates A are uniform from here ..."""
        a_max: float = 16.0
        """... to here."""
        dt_min: float = 1e-3
        """Initial step sizes dt are log-uniform from here ..."""
        dt_max: float = 0.1
        """... to here."""

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.inner, self.key_dim, self.value_dim = config.expand * width, config.state_expand * width, config.head_dim
        self.heads = count_heads(self.inner, config.head_dim)
        self.project = nn.Linear(width, 2 * self.inner + 2 * self.key_dim + self.heads, bias=False)
        self.add_conv("xBC", self.inner + 2 * self.key_dim, config.conv, bias=True)
        self.decay = HeadDecay(self.heads, config.a_min, config.a_max, config.dt_min, config.dt_max)
        self.skip = HeadSkip(self.heads)
        self.readout_norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.out = nn.Linear(self.inner, width, bias=False)
        with torch.no_grad():
            self.out.weight /= math.sqrt(depth)  # one residual branch per layer

    def inputs(self, x_BLD: Tensor, tokens) -> RecurrenceInputs:
        z, xBC, dt = self.project(x_BLD).split([self.inner, self.inner + 2 * self.key_dim, self.heads], -1)
        x, B, C = tokens.conv("xBC", xBC).split([self.inner, self.key_dim, self.key_dim], -1)
        log_decay, dt = self.decay(dt)
        x = x.unflatten(-1, (self.heads, self.value_dim))  # [B, L, H, V]
        return RecurrenceInputs(
            q=C.unsqueeze(2), k=B.unsqueeze(2), v=x * dt.unsqueeze(-1), log_decay=log_decay, gate=z, skip=x
        )

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        y = self.skip(o_BLHV, r.skip).flatten(-2)
        return self.out(self.readout_norm((y * F.silu(wide(r.gate))).to(self.readout_norm.weight.dtype)))

    def terms(self) -> list[Term]:
        terms = [
            linear("z, x, B, C, dt projections", self.width, self.project.out_features, status="given"),
            linear("output projection", self.inner, self.width, status="given"),
            state_write("state write", self.heads, self.key_dim, self.value_dim, "given"),
            state_read("state read", self.heads, self.key_dim, self.value_dim, "given"),
        ]
        return terms + [conv.term("short convolution", status="given") for conv in self.convs.values()]
