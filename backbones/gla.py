"""Gated linear attention: every key channel of every head decays at a rate of its own that the input decides.

    q, k = W_q x, W_k x          D -> D/2: 8 channels per head;     v, gate = W_v x, W_g x          D -> D
    log a = max(logsigmoid(W_2 W_1 x + b) / 16, -5)                 D -> 16 -> D/2
    S_t = Diag(a_t) S_{t-1} + k_t v_t^T                             per head, S in R^{8 x 16}
    o_t = 8^-1/2 S_t^T q_t
    x <- x + W_o (RMSNorm_head(o) * SiLU(gate));    x <- x + SwiGLU(norm(x))

Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023, arXiv 2312.06635. ECCBench,
Table 11 (expand_k 0.5, expand_v 1, FFN 1, no convolution) and Appendix C.2. Where the paper is silent: the output
gate, the rank 16 and the divisor 16 of flash-linear-attention's layer. The floor of -5 on the log-decay is ours: it
binds for gate logits below -80 only, and bounds the exponents of the fast form so that it cannot overflow.

State: S, 8 D floats per layer and stream (2 KiB at D = 64 in float32), the smallest of the matrix states. Price per
token and layer: 8 D^2 + 1616 D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, linear, state_read, state_write

from .gates import HeadNorm, count_heads, wide
from .linear import LinearMemoryLayer, RecurrenceInputs
from .parts import SwiGLU
from .registry import register


@register("gla")
class GLA(LinearMemoryLayer):
    """Pre-norm gated linear attention, then SwiGLU."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Value channels of a head; the number of heads is D / head_dim (Table 11)."""
        expand_k: float = 0.5
        """Key channels of a head over its value channels (Table 11)."""
        conv: int = 0
        """Width of a convolution over q, k and v; 0 for none (Table 11)."""
        gate_rank: int = 16
        """Inner width of the projection to the decay logits."""
        gate_normalizer: float = 16.0
        """Divides the log-sigmoid of a logit: at logit 0 a channel halves in this many tokens."""
        gate_bias: float = 0.0
        """Initial bias of the decay logits: above 0 channels forget more slowly at the start of training."""
        gate_bias_spread: float = 0.0
        """The channels' initial biases run evenly from gate_bias to gate_bias + this, so that time scales differ."""
        min_log_decay: float = -5.0
        """Floor of the log-decay."""
        ffn_ratio: float = 1.0
        """SwiGLU ratio (Table 11)."""

        def __post_init__(self):
            if self.min_log_decay > 0 or self.gate_normalizer <= 0:
                raise ValueError(
                    f"min_log_decay={self.min_log_decay}, gate_normalizer={self.gate_normalizer}: "
                    "a decay needs a floor of at most 0 and a positive normalizer"
                )
            if self.head_dim * self.expand_k < 1:
                raise ValueError(f"head_dim={self.head_dim}, expand_k={self.expand_k}: no key channel is left")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, self.value_dim = count_heads(width, config.head_dim), config.head_dim
        self.key_dim = int(config.head_dim * config.expand_k)
        self.min_log_decay = config.min_log_decay
        self.keys = self.heads * self.key_dim
        self.sizes = [width, 2 * self.keys + width, config.gate_rank]  # output gate; q, k, v; decay
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.add_conv("qkv", self.sizes[1], config.conv)
        self.decay = nn.Linear(config.gate_rank, self.keys)
        self.readout_norm = HeadNorm(self.value_dim)
        self.out = nn.Linear(width, width, bias=False)
        self.add_ffn(SwiGLU(width, config.ffn_ratio))
        with torch.no_grad():
            spread = torch.linspace(0, config.gate_bias_spread, self.key_dim).repeat(self.heads)
            self.decay.bias.copy_(config.gate_bias + spread)

    def inputs(self, x_BLD: Tensor, tokens) -> RecurrenceInputs:
        gate, qkv, decay = self.project(x_BLD).split(self.sizes, -1)
        q, k, v = tokens.conv("qkv", qkv).split([self.keys, self.keys, self.width], -1)
        log_decay = F.logsigmoid(wide(self.decay(decay))) / self.config.gate_normalizer
        q, k, log_decay = (x.unflatten(-1, (self.heads, self.key_dim)) for x in (q, k, log_decay))
        return RecurrenceInputs(
            q=q,
            k=k,
            v=v.unflatten(-1, (self.heads, self.value_dim)),
            log_decay=log_decay.clamp_min(self.min_log_decay),
            scale=self.key_dim**-0.5,
            gate=gate,
        )

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        return self.out(self.readout_norm(o_BLHV, r.gate))

    def terms(self) -> list[Term]:
        D, rank = self.width, self.config.gate_rank
        return [
            linear("q, k projections", D, self.keys, times=2),
            linear("v projection", D, D),
            linear("decay, down", D, rank, status="given"),
            linear("decay, up", rank, self.keys, status="given"),
            linear("output gate projection", D, D, status="assumed"),
            linear("output projection", D, D),
            state_write("state write", self.heads, self.key_dim, self.value_dim),
            state_read("state read", self.heads, self.key_dim, self.value_dim),
            *(conv.term("short convolution") for conv in self.convs.values()),
            *self.ffn.terms(),
        ]
