"""DeltaNet: before a key stores its new value, the value it held is taken back out.

    q, k, v = SiLU(conv4(W x)),  q, k of unit length per head;   beta = sigmoid(W_b x), one per head
    S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T           per head, S in R^{16 x 16}
    o_t = 16^-1/2 S_t^T q_t
    x <- x + W_o RMSNorm_head(o);    x <- x + SwiGLU(norm(x))

Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, arXiv 2406.06484; the
rule itself: Schlag et al., 2021, arXiv 2102.11174. ECCBench, Table 11 (expand_k = expand_v = 1, L2 qk-norm, FFN 1,
conv 4) and the itemised table of Appendix C.2, which has no output gate.

State: S, 16 D floats, and the last three inputs of the convolution, 9 D, per layer and stream (6 KiB at D = 64 in
float32). Price per token and layer: 8.125 D^2 + 1656 D.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from flops import Term, linear, state_read, state_write

from .gates import HeadNorm, count_heads, unit, wide
from .linear import LinearMemoryLayer, RecurrenceInputs
from .parts import SwiGLU
from .registry import register


@register("deltanet")
class DeltaNet(LinearMemoryLayer):
    """Pre-norm delta rule, then SwiGLU."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Key and value channels of a head; the number of heads is D / head_dim (Table 11)."""
        conv: int = 4
        """Width of the convolution over q, k and v (Table 11); 0 leaves it and its SiLU out."""
        max_beta: float = 1.0
        """beta = max_beta * sigmoid: 2 allows negative eigenvalues (arXiv 2411.12537)."""
        ffn_ratio: float = 1.0
        """SwiGLU ratio (Table 11)."""

        def __post_init__(self):
            if not 0 < self.max_beta <= 2:
                raise ValueError(f"max_beta={self.max_beta}: above 2 the state grows without bound; choose 1 or 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads = count_heads(width, config.head_dim)
        self.key_dim = self.value_dim = config.head_dim
        self.project = nn.Linear(width, 3 * width + self.heads, bias=False)  # q, k, v; beta
        self.add_conv("qkv", 3 * width, config.conv)
        self.readout_norm = HeadNorm(self.value_dim)
        self.out = nn.Linear(width, width, bias=False)
        self.add_ffn(SwiGLU(width, config.ffn_ratio, status="given"))

    def inputs(self, x_BLD: Tensor, tokens) -> RecurrenceInputs:
        qkv, beta = self.project(x_BLD).split([3 * self.width, self.heads], -1)
        qk, v = tokens.conv("qkv", qkv).split([2 * self.width, self.width], -1)
        q, k = unit(qk.unflatten(-1, (2 * self.heads, self.key_dim))).chunk(2, 2)  # [B, L, H, K]
        return RecurrenceInputs(
            q=q,
            k=k,
            v=v.unflatten(-1, (self.heads, self.value_dim)),
            erase=self.config.max_beta * wide(beta).sigmoid(),
            scale=self.key_dim**-0.5,
        )

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        return self.out(self.readout_norm(o_BLHV))

    def terms(self) -> list[Term]:
        D, sizes = self.width, (self.heads, self.key_dim, self.value_dim, "given")
        return [
            linear("q, k, v projections", D, D, times=3, status="given"),
            linear("beta projection", D, self.heads, status="given"),
            linear("output projection", D, D, status="given"),
            *(conv.term("short convolution over q, k, v", status="given") for conv in self.convs.values()),
            state_read("old value read", *sizes),
            state_write("correction write", *sizes),
            state_read("state read", *sizes),
            *self.ffn.terms(),
        ]
