"""TTT-MLP: the memory is a small network per head that is trained on the stream while it is read.

    x <- x + W_o attention over the last 17 tokens (rotary)
    x <- x + W_o [ gelu(x W_g) * LN(o) ]          o from the fast-weight MLP 16 -> 64 -> 16, see `kernels.ttt`
    x <- x + W_2 GELU(W_1 norm(x))                D -> D -> D

A token's key is the network's input and its value minus its key the target; one gradient step per token, with a
learned rate per token and head, the gradients of a mini-batch all taken at the weights it began with. Within it the
weights a token sees are those weights minus tau_p times the gradients so far, tau_p = max(0, 1 + theta_p) / (p + 1) and
p the token's place in the mini-batch: a running mean. q and k are rotated by p.

Sun et al., "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", 2024, arXiv 2407.04620; ECCBench,
Table 11 (window 16, mini-batch 256 at D = 64 and 128 at D = 128, gate, MLP 1) and Appendix C.2.

No public code has this very block (test-time-training/ttt-lm-pytorch has no window, ttt-video-dit is not causal inside
a mini-batch), so the order above, projections of its own for the fast weights, and a projected gate are assumed;
`gate="tanh"` is the other reading, a free gate per channel. Window keys are stored before rotation and rotated by their
place in the window, which gives the same scores as the position in the stream and needs no counter. Upstream adds theta
to 1/(p + 1) instead; a step of Adam is then as large as tau itself, and within 20 steps at 3e-3 a tenth of the places
had tau clamped at zero, where no gradient can bring it back.

A query right after a full mini-batch is the first token of the next: its own gradient then enters with weight
tau_0 = 1, where a stream token's ends with 1/b. That is the definition, not an accident of the code; train with lengths
that leave many remainders.

State per layer and stream: the weights at the start of the mini-batch (133 D), the gradients since (133 D), the last
16 keys and values (32 D): 298 D floats (75 KiB at D = 64).
Price per token: 22.125 D^2 + 896 D, and 4 D per pair of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, attention_pairs, linear, state_read, state_write, windowed_pairs
from kernels import attention_read, rotary
from kernels.ttt import FastMemory, FastWeights, InnerLoop, ttt_mlp, ttt_mlp_read
from kernels.window_attention import window_attention

from .base import MemoryLayer
from .gates import count_heads, no_decay, wide
from .parts import MLP, norm
from .registry import register
from .state import State

TABLE_11 = 64 * 256
"""Mini-batch times width: 256 at D = 64 and 128 at D = 128."""


@dataclass
class TTTState(State):
    window_k: Tensor  # [B, min(L, W), H, F], before rotation
    window_v: Tensor  # [B, min(L, W), H, F]
    anchor: tuple[Tensor, ...]  # W1 [B, H, F, M], b1 [B, H, M], W2 [B, H, M, F], b2 [B, H, F] of this mini-batch
    total: tuple[Tensor, ...]  # the same shapes: gradients gathered in it
    elapsed: (
        Tensor  # [B, p, 0]: holds nothing; its length p is the place in the mini-batch, known without a device sync
    )

    def memory(self) -> FastMemory:
        return FastMemory(FastWeights(*self.anchor), FastWeights(*self.total), self.elapsed.shape[1])


@register("ttt_mlp")
class TTTMLP(MemoryLayer):
    """Pre-norm block: window attention, fast-weight MLP, MLP."""

    not_matrices: ClassVar = {
        **dict.fromkeys(("W1", "b1", "W2", "b2"), "fast weights before the first token: state"),
        **dict.fromkeys(("inner_norm_weight", "inner_norm_bias"), "one vector per head"),
    }

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """F, channels of a head; the number of heads is D / head_dim (Table 11)."""
        hidden_ratio: int = 4
        """Hidden units of the fast network over F: 16 -> 64 -> 16 (Appendix C.2)."""
        window: int = 16
        """How many tokens back the window attention sees (Table 11)."""
        mini_batch: int | None = None
        """Tokens whose gradients are taken at the same weights; 16384 / D if None: Table 11's 256 and 128."""
        base_lr: float = 1.0
        """Upper limit of a token's inner learning rate, times F."""
        gate: Literal["projection", "tanh"] = "projection"
        """gelu(x W_g) on the output, or a learned tanh(alpha) per channel that starts at 0.1."""
        rope_theta: float = 10_000.0
        """Base of the rotary angles, in the window and in the mini-batch."""
        ffn_ratio: float = 1.0
        """Hidden width of the MLP over D (Table 11)."""

        def __post_init__(self):
            if self.gate not in ("projection", "tanh"):
                raise ValueError(f"gate={self.gate!r}: choose 'projection' or 'tanh'")
            if self.head_dim < 2 or self.head_dim % 2:
                raise ValueError(f"head_dim={self.head_dim}: rotary pairs need an even head of at least 2")
            for name in ("hidden_ratio", "window", "mini_batch"):
                value = getattr(self, name)
                if value is not None and value < 1:
                    raise ValueError(f"{name}={value}: must be at least 1")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, dim = count_heads(width, config.head_dim), config.head_dim
        self.hidden = config.hidden_ratio * dim
        self.mini_batch = config.mini_batch or max(1, TABLE_11 // width)

        self.window_norm = norm(width)
        self.window_qkv = nn.Linear(width, 3 * width, bias=False)
        self.window_out = nn.Linear(width, width, bias=False)

        self.ttt_norm = norm(width)
        self.ttt_qkv = nn.Linear(width, 3 * width, bias=False)
        self.ttt_out = nn.Linear(width, width, bias=False)
        self.post_norm = nn.LayerNorm(width, eps=1e-6)
        if config.gate == "projection":
            self.gate = nn.Linear(width, width, bias=False)
        else:
            self.gate_alpha = nn.Parameter(torch.full((width,), 0.1))
        self.rate = nn.Linear(width, self.heads)
        nn.init.normal_(self.rate.weight, std=0.02)
        nn.init.zeros_(self.rate.bias)
        self.W1 = nn.Parameter(0.02 * torch.randn(self.heads, dim, self.hidden))
        self.b1 = no_decay(nn.Parameter(torch.zeros(self.heads, self.hidden)))
        self.W2 = nn.Parameter(0.02 * torch.randn(self.heads, self.hidden, dim))
        self.b2 = no_decay(nn.Parameter(torch.zeros(self.heads, dim)))
        self.inner_norm_weight = no_decay(nn.Parameter(torch.ones(self.heads, dim)))
        self.inner_norm_bias = no_decay(nn.Parameter(torch.zeros(self.heads, dim)))
        self.theta = no_decay(nn.Parameter(torch.zeros(self.mini_batch)))

        self.mlp_norm = norm(width)
        self.mlp = MLP(width, config.ffn_ratio)

    def initial_state(self, batch: int) -> TTTState:
        weights = tuple(wide(w).expand(batch, *w.shape) for w in (self.W1, self.b1, self.W2, self.b2))
        window = weights[0].new_zeros(batch, 0, self.heads, self.config.head_dim)
        elapsed = window.new_zeros(batch, 0, 0)
        return TTTState(window, window, weights, tuple(torch.zeros_like(w) for w in weights), elapsed)

    # ---- the two memories, the same for streams and queries ----------------------------------------------------------
    def _heads(self, x: Tensor, projection: nn.Linear, parts: int) -> tuple[Tensor, ...]:
        """The last `parts` of q, k, v, each [B, L, H, F], in float32 or wider: what a state holds."""
        y = F.linear(x, projection.weight[-parts * self.width :])
        return wide(y).unflatten(-1, (parts, self.heads, -1)).unbind(-3)

    def _rotate(self, x: Tensor, first: int, tokens: int, period: int | None = None) -> Tensor:
        positions = torch.arange(first, first + tokens, device=x.device)
        return rotary(x, positions if period is None else positions % period, self.config.rope_theta)

    def _fast_inputs(self, x: Tensor, elapsed: int, tokens: int, outputs: bool = True):
        """q (None without outputs), k, v [B, L, H, F] and lr [B, L, H]; `tokens` is 1 where all share one place."""
        *q, k, v = self._heads(x, self.ttt_qkv, 3 if outputs else 2)
        k, *q = (self._rotate(y, elapsed, tokens, self.mini_batch) for y in (k, *q))
        lr = wide(self.rate(x)).sigmoid() * (self.config.base_lr / self.config.head_dim)
        return (q[0] if outputs else None), k, v, lr

    def _inner(self) -> InnerLoop:
        theta = wide(self.theta)
        tau = (1 + theta).clamp_min(0) / torch.arange(1, self.mini_batch + 1, device=theta.device)
        return InnerLoop(tau, wide(self.inner_norm_weight), wide(self.inner_norm_bias))

    def _fast_output(self, x: Tensor, o_BLHF: Tensor) -> Tensor:
        y = self.post_norm(o_BLHF.flatten(-2).to(x.dtype))
        if self.config.gate == "tanh":
            return self.ttt_out(y) * self.gate_alpha.tanh()
        return self.ttt_out(F.gelu(self.gate(x), approximate="tanh") * y)

    def _finish(self, x: Tensor, normed: Tensor, o_BLHF: Tensor) -> Tensor:
        x = x + self._fast_output(normed, o_BLHF)
        return x + self.mlp(self.mlp_norm(x))

    # ---- the memory --------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: TTTState, outputs: bool = True):
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: TTTState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[TTTState]]:
        return self._write(x_BLD, state, times, outputs, "auto")

    def _write(self, x: Tensor, state: TTTState, times: Sequence[int], outputs: bool, kernel: str):
        L, past, window = x.shape[1], state.window_k.shape[1], self.config.window
        q, k, v = self._heads(self.window_norm(x), self.window_qkv, 3)
        o = window_attention(
            self._rotate(q, past, L),
            self._rotate(k, past, L),
            v,
            window,
            past=(self._rotate(state.window_k, 0, past), state.window_v) if past else None,
            kernel=kernel,
        )
        x = x + self.window_out(o.flatten(-2).to(x.dtype))
        normed = self.ttt_norm(x)
        memory = state.memory()
        fast = self._fast_inputs(normed, memory.elapsed, L, outputs)
        o, memories = ttt_mlp(*fast, memory, self._inner(), times=times, kernel=kernel)

        k, v = torch.cat([state.window_k, k], 1), torch.cat([state.window_v, v], 1)
        states = []
        for t, m in zip(times, memories, strict=True):
            kept = slice(max(0, past + t - window), past + t)
            elapsed = state.elapsed.new_zeros(x.shape[0], m.elapsed, 0)
            window_k, window_v = k[:, kept].clone(), v[:, kept].clone()  # a view would keep the whole stream alive
            states.append(TTTState(window_k, window_v, tuple(m.anchor), tuple(m.total), elapsed))
        return (self._finish(x, normed, o) if outputs else None), states

    def read(self, x_BQD: Tensor, state: TTTState) -> Tensor:
        past = state.window_k.shape[1]
        q, k, v = self._heads(self.window_norm(x_BQD), self.window_qkv, 3)
        q, k = self._rotate(q, past, 1), self._rotate(k, past, 1)
        o = attention_read(q, k, v, self._rotate(state.window_k, 0, past), state.window_v)
        x = x_BQD + self.window_out(o.flatten(-2).to(x_BQD.dtype))
        normed = self.ttt_norm(x)
        memory = state.memory()
        fast = self._fast_inputs(normed, memory.elapsed, 1)
        return self._finish(x, normed, ttt_mlp_read(*fast, memory, self._inner()))

    def step(self, x_BD: Tensor, state: TTTState) -> tuple[Tensor, TTTState]:
        """One token with the weights it sees written out: seven passes over a weight matrix per head."""
        y, states = self._write(x_BD[:, None], state, (1,), True, "reference")
        return y[:, 0], states[0]

    def terms(self) -> list[Term]:
        D, H, dim, hidden = self.width, self.heads, self.config.head_dim, self.hidden
        terms = [
            linear("window q, k, v, output projections", D, D, times=4),
            *attention_pairs("window attention", D, windowed_pairs(self.config.window), status="given"),
            linear("fast-weight q, k, v, output projections", D, D, times=4, status="assumed"),
            linear("inner learning rate", D, H, status="assumed"),
            state_read("key through W1 and W2, error back through W2", 3 * H, dim, hidden),
            state_write("gradients of W1 and W2", 2 * H, dim, hidden),
            state_read("query through W1 and W2", 2 * H, dim, hidden),
            *self.mlp.terms(),
        ]
        if self.config.gate == "projection":
            terms.append(linear("gate", D, D, status="assumed"))
        return terms
