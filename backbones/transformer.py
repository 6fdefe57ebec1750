"""Causal Transformer with rotary positions, with a short convolution instead, or with neither: a cache that grows.

    x <- x + conv(norm(x))                       width-4 causal depthwise convolution, `transformer_conv` only
    x <- x + W_o attention(norm(x))              o_t = sum_{j <= t} softmax_j(q_t . k_j / 4) v_j, heads of 16
    x <- x + W_2 GELU(W_1 norm(x))               D -> D -> D

Vaswani et al., "Attention Is All You Need", 2017, arXiv 1706.03762; rotary positions: Su et al., 2021, arXiv
2104.09864; no positions: Kazemnejad et al., 2023, arXiv 2305.19466. ECCBench, Table 11 and Appendix C.2.

Three names: `transformer_rope`, `transformer_conv` (no positions; the convolution is how it sees order) and the control
`transformer_nope`, which sees order through causality alone and stayed at chance in the paper. Where the paper is
silent: RMSNorm, GELU, no biases, theta = 10^4, and the convolution as its own residual sub-layer before attention,
without activation: one D-channel convolution is the only count that gives the paper's 8 D per token.

State: K and V after rotation, 2 D L floats per layer and stream (512 KiB at D = 64, L = 1024, in float32), and the
last three inputs of the convolution, 3 D. The position is the length of the cache. Price per token: 12 D^2 (+ 8 D), and
4 D per pair of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, attention_pairs, causal_pairs, linear
from kernels import attention_read, causal_attention, explain, rotary

from .base import MemoryLayer
from .parts import MLP, ShortConv, norm
from .registry import register
from .state import State


@dataclass
class TransformerState(State):
    k: Tensor  # [B, L, H, K], rotated
    v: Tensor  # [B, L, H, K]
    conv: Tensor | None  # [B, W - 1, D]: the last inputs of the convolution


@register("transformer_rope", position="rope", conv=0)
@register("transformer_conv", position="none", conv=4)
@register("transformer_nope", position="none", conv=0)
class Transformer(MemoryLayer):
    """Pre-norm block: convolution (if any), attention, MLP."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Channels of a head; the number of heads is D / head_dim (Table 11)."""
        position: Literal["rope", "none"] = "rope"
        """Rotary positions on q and k, or none."""
        rope_theta: float = 10_000.0
        """Base of the rotary angles."""
        conv: int = 0
        """Width of the short convolution before attention; 0 leaves it out."""
        conv_init_std: float = 0.5
        """Initial standard deviation of all taps: a random filter learns order much faster than identity plus noise."""
        ffn_ratio: float = 1.0
        """Hidden width of the MLP over D."""

        def __post_init__(self):
            if self.position not in ("rope", "none"):
                raise ValueError(f"position={self.position!r}: choose 'rope' or 'none'")
            if self.head_dim < 2 or self.head_dim % 2:
                raise ValueError(f"head_dim={self.head_dim}: rotary pairs need an even head of at least 2")
            if self.conv < 0 or self.conv == 1:
                raise ValueError(f"conv={self.conv}: choose 0 for none, or a width of at least 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        if width % config.head_dim:
            raise ValueError(
                f"width {width} is not divisible by head_dim {config.head_dim}; choose d or head_dim to fit"
            )
        self.heads = width // config.head_dim
        if config.conv:
            self.conv_norm = norm(width)
            self.conv = ShortConv(width, config.conv, activation=None, init_std=config.conv_init_std)
        self.attention_norm = norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = norm(width)
        self.mlp = MLP(width, config.ffn_ratio)

    def initial_state(self, batch: int) -> TransformerState:
        empty = self.out.weight.new_zeros(batch, 0, self.heads, self.config.head_dim)
        conv = self.conv.initial_cache(batch) if self.config.conv else None
        return TransformerState(empty, empty, conv)

    def explain(self) -> str:
        return explain("attention", device=self.out.weight.device.type)

    # ---- the projections, the same for streams and queries -----------------------------------------------------------
    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """The last `parts` of q, k, v, each [B, L, H, K]."""
        weight = self.qkv.weight[-parts * self.width :]
        return F.linear(self.attention_norm(x), weight).unflatten(-1, (parts, self.heads, -1)).unbind(-3)

    def _rotate(self, x: Tensor, first: int, tokens: int) -> Tensor:
        """Rotate [B, tokens, H, K] to the positions from `first`; every query stands at the same one."""
        if self.config.position == "none":
            return x
        positions = torch.arange(first, first + tokens, device=x.device)
        return rotary(x, positions, self.config.rope_theta)

    def _finish(self, x: Tensor, o_BLHK: Tensor) -> Tensor:
        x = x + self.out(o_BLHK.flatten(-2))
        return x + self.mlp(self.mlp_norm(x))

    # ---- write and read ----------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: TransformerState, outputs: bool = True):
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: TransformerState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[TransformerState]]:
        """An earlier state is a shorter cache: the states of all times are views of one."""
        past, L = state.k.shape[1], x_BLD.shape[1]
        if self.config.conv:
            conv_in = self.conv_norm(x_BLD)
            x_BLD = x_BLD + self.conv(conv_in, state.conv)
            conv_in = torch.cat([state.conv, conv_in], 1)
        *q, k, v = self._heads(x_BLD, 3 if outputs else 2)
        k = self._rotate(k, past, L)
        y = None
        if outputs:
            q = self._rotate(q[0], past, L)
            y = self._finish(x_BLD, causal_attention(q, k, v, past=(state.k, state.v) if past else None))
        if past:
            k, v = torch.cat([state.k, k], 1), torch.cat([state.v, v], 1)
        tail = self.config.conv - 1
        return y, [
            TransformerState(k[:, : past + t], v[:, : past + t], conv_in[:, t : t + tail] if self.config.conv else None)
            for t in times
        ]

    def read(self, x_BQD: Tensor, state: TransformerState) -> Tensor:
        """One softmax over the cache and the query's own key; queries never see each other."""
        if self.config.conv:
            x_BQD = x_BQD + self.conv.read(self.conv_norm(x_BQD), state.conv)
        q, k, v = self._heads(x_BQD, 3)
        at = state.k.shape[1]
        q, k = self._rotate(q, at, 1), self._rotate(k, at, 1)
        return self._finish(x_BQD, attention_read(q, k, v, state.k, state.v))

    def step(self, x_BD: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """The cached form with plain products, as priced."""
        x, conv = x_BD[:, None], state.conv
        if self.config.conv:
            conv_in = self.conv_norm(x)
            x, conv = x + self.conv(conv_in, conv), torch.cat([conv[:, 1:], conv_in], 1)
        q, k, v = self._heads(x, 3)
        at = state.k.shape[1]
        q, k = self._rotate(q, at, 1), self._rotate(k, at, 1)
        k, v = torch.cat([state.k, k], 1), torch.cat([state.v, v], 1)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * self.config.head_dim**-0.5  # [B, H, 1, L + 1]
        o = scores.softmax(-1) @ v.transpose(1, 2)
        return self._finish(x, o.transpose(1, 2))[:, 0], TransformerState(k, v, conv)

    def terms(self) -> list[Term]:
        D = self.width
        terms = [linear("q, k, v, output projections", D, D, times=4, status="given"), *self.mlp.terms()]
        if self.config.conv:
            terms.append(self.conv.term("short convolution", status="given"))
        return terms + attention_pairs("causal attention", D, causal_pairs, status="given")
