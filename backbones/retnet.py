"""RetNet: linear attention with rotary positions in which every head forgets at a fixed rate of its own.

    q, k, v = SiLU(conv4(W x))       q, k of D, v of 2 D channels;  gate = W_g x of 2 D
    q, k = rotate(q, t), rotate(k, t)
    S_t = gamma_h S_{t-1} + k_t v_t^T,   gamma_h = 1 - 2^(-5-h)     per head, S in R^{16 x 32}
    o_t = 16^-1/2 S_t^T q_t
    x <- x + W_o (RMSNorm_head(o) * SiLU(gate));    x <- x + SwiGLU(norm(x))

Sun et al., "Retentive Network: A Successor to Transformer for Large Language Models", 2023, arXiv 2307.08621. ECCBench,
Table 11 (expand_k 1, expand_v 2, output gate, FFN 1, conv 4). The convolution is on because Table 11 lists it;
flash-linear-attention's RetNet model, which the table's settings name, never hands it to its layer: `conv: 0` is that
reading. The slowest head keeps half of a token for 177 tokens at D = 64 (4 heads) and 2,839 at D = 128 (8 heads).

State: S, 32 D floats, the last three inputs of the convolution, 12 D, and the position, per layer and stream (11 KiB
at D = 64 in float32). Price per token and layer: 16 D^2 + 1696 D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flops import Term, linear, state_read, state_write
from kernels import rotary

from .gates import HeadNorm, count_heads
from .linear import LinearMemoryLayer, RecurrenceInputs
from .parts import SwiGLU
from .registry import register


@register("retnet")
class RetNet(LinearMemoryLayer):
    """Pre-norm multi-scale retention, then SwiGLU."""

    counts_positions = True

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Key channels of a head; the number of heads is D / head_dim (Table 11)."""
        expand_v: int = 2
        """Value channels of a head over its key channels (Table 11)."""
        conv: int = 4
        """Width of the convolution over q, k and v (Table 11); 0 leaves it and its SiLU out."""
        rope_theta: float = 10_000.0
        """Base of the rotary angles."""
        ffn_ratio: float = 1.0
        """SwiGLU ratio (Table 11)."""

        def __post_init__(self):
            if self.head_dim < 2 or self.head_dim % 2:
                raise ValueError(f"head_dim={self.head_dim}: rotary pairs need an even head of at least 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, self.key_dim = count_heads(width, config.head_dim), config.head_dim
        self.value_dim = config.expand_v * config.head_dim
        self.values = config.expand_v * width
        self.project = nn.Linear(width, 2 * self.values + 2 * width, bias=False)  # output gate; q, k, v
        self.add_conv("qkv", 2 * width + self.values, config.conv)
        self.readout_norm = HeadNorm(self.value_dim)
        self.out = nn.Linear(self.values, width, bias=False)
        self.add_ffn(SwiGLU(width, config.ffn_ratio))

    def log_decay(self) -> Tensor:
        """[H]: log gamma_h, from the exponent and not from gamma, which rounds to 1 in bf16 from head 4 on."""
        weight = self.readout_norm.weight
        head = torch.arange(self.heads, device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))
        return torch.log1p(-torch.exp2(-5 - head))

    def inputs(self, x_BLD: Tensor, tokens) -> RecurrenceInputs:
        gate, qkv = self.project(x_BLD).split([self.values, 2 * self.width + self.values], -1)
        qk, v = tokens.conv("qkv", qkv).split([2 * self.width, self.values], -1)
        qk = rotary(qk.unflatten(-1, (2 * self.heads, self.key_dim)), tokens.positions, self.config.rope_theta)
        q, k = qk.chunk(2, 2)  # [B, L, H, K]
        v = v.unflatten(-1, (self.heads, self.value_dim))
        return RecurrenceInputs(q=q, k=k, v=v, log_decay=self.log_decay(), scale=self.key_dim**-0.5, gate=gate)

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        return self.out(self.readout_norm(o_BLHV, r.gate))

    def terms(self) -> list[Term]:
        D, values = self.width, self.values
        return [
            linear("q, k projections", D, D, times=2),
            linear("v projection", D, values),
            linear("output gate projection", D, values),
            linear("output projection", values, D),
            *(conv.term("short convolution over q, k, v", status="assumed") for conv in self.convs.values()),
            state_write("state write", self.heads, self.key_dim, self.value_dim),
            state_read("state read", self.heads, self.key_dim, self.value_dim),
            *self.ffn.terms(),
        ]
