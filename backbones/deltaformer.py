"""DeltaFormer: a Transformer whose cache holds corrected values, so that attention overwrites as the delta rule does.

    u_t = v_t - beta_t sum_{j < t} softmax_{j < t}(q_t . k_j / 4) u_j       stage 1: store what was not predicted
    o_t = sum_{j <= t} softmax_{j <= t}(q_t . k_j / 4) u_j                   stage 2: ordinary causal attention over u
    x <- x + W_o o
    x <- x + SwiGLU(norm(x))                                                 hidden width 256 at ratio 1

Xu et al., "Understanding Transformer from the Perspective of Associative Memory", 2025, arXiv 2505.19488; ECCBench,
Table 11 (heads of 16, qk-norm, rotary theta 10^4) and Appendix C.2. q and k are normed per head (RMSNorm with a learned
weight) and rotated; beta is a projection to one number per head, with a bias.

Where sources differ: flash-linear-attention's layer documents k-k similarity in stage 1 and computes q-k; so does its
naive function, the only oracle, so q-k is the default and `stage1="kk"` the other reading. beta is used raw, as there.
A raw beta can make the corrections grow (beta near -1 raised |u| to 2.3 |v|); `beta_act="sigmoid"` bounds them.
Initialisation is PyTorch's instead of N(0, 0.02).

State: keys after norm and rotation, and u: 2 D L floats per layer and stream (512 KiB at D = 64, L = 1024). The
position is the length of the cache. Price per token: 8.125 D^2 + 1536 D, and 4 D per pair and stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flops import Term, attention_pairs, causal_pairs, linear, strict_pairs
from kernels import causal_attention, rotary
from kernels.deltaformer import corrected_read, corrected_values

from .base import MemoryLayer
from .gates import count_heads, wide
from .parts import SwiGLU, norm
from .registry import register
from .state import State


@dataclass
class DeltaFormerState(State):
    k: Tensor  # [B, L, H, K], normed and rotated, float32 or wider
    u: Tensor  # [B, L, H, K]: corrected values, float32 or wider


@register("deltaformer")
class DeltaFormer(MemoryLayer):
    """Pre-norm block: two-stage attention, SwiGLU."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Channels of a head; the number of heads is D / head_dim (Table 11)."""
        rope_theta: float = 10_000.0
        """Base of the rotary angles (Table 11)."""
        ffn_ratio: float = 1.0
        """Ratio of the SwiGLU; its hidden width is rounded up to a multiple of 256."""
        stage1: Literal["qk", "kk"] = "qk"
        """What scores the keys in the first stage: the query, or the token's own key."""
        beta_act: Literal["none", "sigmoid"] = "none"
        """Squash beta into (0, 1), or use it as projected."""

        def __post_init__(self):
            if self.stage1 not in ("qk", "kk"):
                raise ValueError(f"stage1={self.stage1!r}: choose 'qk' or 'kk'")
            if self.beta_act not in ("none", "sigmoid"):
                raise ValueError(f"beta_act={self.beta_act!r}: choose 'none' or 'sigmoid'")
            if self.head_dim < 2 or self.head_dim % 2:
                raise ValueError(f"head_dim={self.head_dim}: rotary pairs need an even head of at least 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads = count_heads(width, config.head_dim)
        self.attention_norm = norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.beta = nn.Linear(width, self.heads)
        self.q_norm, self.k_norm = norm(config.head_dim), norm(config.head_dim)
        self.out = nn.Linear(width, width, bias=False)
        self.ffn_norm = norm(width)
        self.ffn = SwiGLU(width, config.ffn_ratio, status="assumed")

    def initial_state(self, batch: int) -> DeltaFormerState:
        empty = wide(self.out.weight.new_zeros(batch, 0, self.heads, self.config.head_dim))
        return DeltaFormerState(empty, empty)

    # ---- the projections, the same for streams and queries -----------------------------------------------------------
    def _inputs(self, x: Tensor, position: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v [B, tokens, H, K] and beta [B, tokens, H]; `tokens` is 1 where all share one position."""
        x = self.attention_norm(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        positions = torch.arange(position, position + tokens, device=x.device)
        q, k = (rotary(y, positions, self.config.rope_theta) for y in (self.q_norm(wide(q)), self.k_norm(wide(k))))
        beta = wide(self.beta(x))
        return q, k, wide(v), beta.sigmoid() if self.config.beta_act == "sigmoid" else beta

    def _finish(self, x: Tensor, o_BLHK: Tensor) -> Tensor:
        x = x + self.out(o_BLHK.flatten(-2).to(x.dtype))
        return x + self.ffn(self.ffn_norm(x))

    def _attend(self, x: Tensor, state: DeltaFormerState, outputs: bool, kernel: str):
        """Both stages for tokens that follow the state; the second only where its outputs are read."""
        past = (state.k, state.u) if state.k.shape[1] else None
        q, k, v, beta = self._inputs(x, state.k.shape[1], x.shape[1])
        address = q if self.config.stage1 == "qk" else k
        u = corrected_values(address, k, v, beta, past=past, kernel=kernel)
        o = causal_attention(q, k, u, past=past, kernel=kernel) if outputs else None
        if past:
            k, u = torch.cat([past[0], k], 1), torch.cat([past[1], u], 1)
        return o, DeltaFormerState(k, u)

    # ---- the memory --------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: DeltaFormerState, outputs: bool = True):
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: DeltaFormerState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[DeltaFormerState]]:
        """An earlier state is a shorter cache: the states of all times are views of one."""
        o, after = self._attend(x_BLD, state, outputs, "auto")
        lengths = [state.k.shape[1] + t for t in times]
        y = self._finish(x_BLD, o) if outputs else None
        return y, [DeltaFormerState(after.k[:, :n], after.u[:, :n]) for n in lengths]

    def read(self, x_BQD: Tensor, state: DeltaFormerState) -> Tensor:
        """The scores of a query over the cache serve both stages."""
        q, k, v, beta = self._inputs(x_BQD, state.k.shape[1], 1)
        address = k if self.config.stage1 == "kk" else None
        return self._finish(x_BQD, corrected_read(q, k, v, beta, state.k, state.u, address=address))

    def step(self, x_BD: Tensor, state: DeltaFormerState) -> tuple[Tensor, DeltaFormerState]:
        """One token over the cache with every product written out, each stage with scores of its own, as priced."""
        x = x_BD[:, None]
        o, state = self._attend(x, state, True, "reference")
        return self._finish(x, o)[:, 0], state

    def terms(self) -> list[Term]:
        D = self.width
        return [
            linear("q, k, v, output projections", D, D, times=4),
            linear("beta", D, self.heads),
            *attention_pairs("stage 1", D, strict_pairs, status="given"),
            *attention_pairs("stage 2", D, causal_pairs, status="given"),
            *self.ffn.terms(),
        ]
