"""Gated DeltaNet: the delta rule on a state that decays by one input-dependent factor per head.

    q, k, v = SiLU(conv4(W x)),  q, k of unit length per head (D channels each), v of 2 D;   gate = W_g x of 2 D
    beta = sigmoid(W_b x);   g = -exp(A_log) softplus(W_a x + dt_bias)      one of each per head
    S_t = e^{g_t} S_{t-1} + beta_t k_t (v_t - e^{g_t} S_{t-1}^T k_t)^T      per head, S in R^{16 x 32}
    o_t = 16^-1/2 S_t^T q_t
    x <- x + W_o (RMSNorm_head(o) * SiLU(gate));    x <- x + SwiGLU(norm(x))

The old value is read from the state that has already decayed. Yang, Kautz and Hatamizadeh, "Gated Delta Networks:
Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464. ECCBench, Table 11 (expand_v 2, gating, convolution, FFN 4);
where it is silent: «gating» covers the output gate, as in flash-linear-attention's layer.

State: S, 32 D floats, and the last three inputs of the convolution, 12 D, per layer and stream (11 KiB at D = 64 in
float32). Price per token and layer: 16.25 D^2 + 224 D + 6 D I with I = 256 (D = 64) or 512 (D = 128).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from flops import Term, linear, state_read, state_write

from .gates import HeadDecay, HeadNorm, count_heads, unit, wide
from .linear import LinearMemoryLayer, RecurrenceInputs
from .parts import SwiGLU
from .registry import register


@register("gated_deltanet")
class GatedDeltaNet(LinearMemoryLayer):
    """Pre-norm gated delta rule, then SwiGLU."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Key channels of a head; the number of heads is D / head_dim (Table 11)."""
        expand_v: int = 2
        """Value channels of a head over its key channels (Table 11)."""
        conv: int = 4
        """Width of the convolution over q, k and v (Table 11); 0 leaves it and its SiLU out."""
        max_beta: float = 1.0
        """beta = max_beta * sigmoid: 2 allows negative eigenvalues (arXiv 2411.12537)."""
        a_min: float = 0.0
        """Initial decay rates A are uniform from here (floored at 1e-3) ..."""
        a_max: float = 16.0
        """... to here."""
        dt_min: float = 1e-3
        """Initial step sizes dt are log-uniform from here ..."""
        dt_max: float = 0.1
        """... to here."""
        ffn_ratio: float = 4.0
        """SwiGLU ratio (Table 11)."""

        def __post_init__(self):
            if not 0 < self.max_beta <= 2:
                raise ValueError(f"max_beta={self.max_beta}: above 2 the state grows without bound; choose 1 or 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, self.key_dim = count_heads(width, config.head_dim), config.head_dim
        self.value_dim = config.expand_v * config.head_dim
        self.values = config.expand_v * width
        self.sizes = [self.values, 2 * width + self.values, self.heads, self.heads]  # output gate; q, k, v; beta; decay
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.add_conv("qkv", 2 * width + self.values, config.conv)
        self.decay = HeadDecay(self.heads, config.a_min, config.a_max, config.dt_min, config.dt_max)
        self.readout_norm = HeadNorm(self.value_dim)
        self.out = nn.Linear(self.values, width, bias=False)
        self.add_ffn(SwiGLU(width, config.ffn_ratio))

    def inputs(self, x_BLD: Tensor, tokens) -> RecurrenceInputs:
        gate, qkv, beta, decay = self.project(x_BLD).split(self.sizes, -1)
        qk, v = tokens.conv("qkv", qkv).split([2 * self.width, self.values], -1)
        q, k = unit(qk.unflatten(-1, (2 * self.heads, self.key_dim))).chunk(2, 2)  # [B, L, H, K]
        return RecurrenceInputs(
            q=q,
            k=k,
            v=v.unflatten(-1, (self.heads, self.value_dim)),
            log_decay=self.decay(decay)[0],
            erase=self.config.max_beta * wide(beta).sigmoid(),
            scale=self.key_dim**-0.5,
            gate=gate,
        )

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        return self.out(self.readout_norm(o_BLHV, r.gate))

    def terms(self) -> list[Term]:
        D, values, sizes = self.width, self.values, (self.heads, self.key_dim, self.value_dim)
        return [
            linear("q, k projections", D, D, times=2),
            linear("v projection", D, values),
            linear("output gate projection", D, values),
            linear("beta and decay projections", D, self.heads, times=2),
            linear("output projection", values, D),
            *(conv.term("short convolution over q, k, v") for conv in self.convs.values()),
            state_read("old value read", *sizes),
            state_write("correction write", *sizes),
            state_read("state read", *sizes),
            *self.ffn.terms(),
        ]
