"""RWKV-7 "Goose": a matrix state that forgets per channel, takes out what a key held, and writes a key and value.

Each of r, w, k, v, a, g is projected from its own mixture of a token and the one before it:
x_* = x + mu_* (x_{t-1} - x), where x is the normed input.

    r, k, v = W_r x_r, W_k x_k, W_v x_v;      layer 0: v_first = v;   above: v <- lerp(v, v_first, sigmoid(lora_v(x_v)))
    log w = -e^{-1/2} sigmoid(lora_w(x_w));   a = sigmoid(lora_a(x_a));   g = lora_g(x_g)
    kappa = unit(k * k_k) per head;           k <- k (1 + (a - 1) k_a)
    S_t = Diag(w_t) S_{t-1} - (a_t kappa_t) (S_{t-1}^T kappa_t)^T + k_t v_t^T          per head, S in R^{16 x 16}
    o_t = S_t^T r_t
    x <- x + W_o [(GroupNorm(o) + (sum_head r k r_k) v) * g]
    x <- x + W_down relu(W_up (x + mu (x_{t-1} - x)))^2                                channel mix, of the normed x

Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025, arXiv 2503.14456. ECCBench, Table 11 (channel
mix ratio 4, no convolution) and Appendix C.2. Ranks of the low-rank maps and initial values follow
flash-linear-attention's layer and the authors' RWKV-LM; `unit` has its epsilon under the root, so that a zero key has a
finite gradient.

v_first is the value that layer 0 projects from the same token: it travels up the stack as D extra output channels and
is not state. State: S, 16 D floats, and the last normed input of both mixes, 2 D, per layer and stream (4.5 KiB at
D = 64 in float32). Price per token, three layers: 72 D^2 + 384 D + 12 D (r_w + r_a + r_g) + 8 D r_v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, linear, state_read, state_write
from kernels import explain, linear_read, linear_recurrence, linear_state, linear_step

from .base import MemoryLayer
from .gates import count_heads, no_decay, unit, wide
from .registry import register
from .state import State

MAX_DECAY = math.exp(-0.5)
"""-log w stays below this, so a channel keeps at least 0.545 of itself per token."""


def automatic_rank(factor: float, width: int) -> int:
    """Rank of a low-rank map by the rule of flash-linear-attention: factor * sqrt(D), in multiples of 32."""
    return max(32, 32 * round(factor * width**0.5 / 32))


@dataclass
class RWKV7State(State):
    S: Tensor  # [B, H, K, V], float32 or wider
    time_x: Tensor  # [B, D]: last normed input of the time mix
    channel_x: Tensor  # [B, D]: last normed input of the channel mix


@dataclass
class Keys:
    """The writing side of a token: what changes the state."""

    k: Tensor  # [B, L, H, K]
    v: Tensor  # [B, L, H, V]
    log_decay: Tensor  # [B, L, H, K]
    erase: tuple[Tensor, Tensor]  # each [B, L, H, K]
    v_first: Tensor  # [B, L, D]

    def __getitem__(self, index: slice | list[int] | int) -> Keys:
        """Some of the tokens; one token, by its number, has no axis L."""
        tensors = (self.k, self.v, self.log_decay, *self.erase, self.v_first)
        k, v, log_decay, a, b, v_first = (x[:, index] for x in tensors)
        return Keys(k, v, log_decay, (a, b), v_first)

    @property
    def write(self) -> dict:
        """As arguments of the operator."""
        return {"k": self.k, "v": self.v, "log_decay": self.log_decay, "erase": self.erase}


class LowRank(nn.Module):
    """up(activation(down x)) + bias. `down` starts at zero, so at first only the bias speaks."""

    def __init__(self, width: int, rank: int, activation: Callable[[Tensor], Tensor] | None, bias: Tensor | None):
        super().__init__()
        self.rank, self.activation = rank, activation
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=bias is not None)
        nn.init.zeros_(self.down.weight)
        nn.init.orthogonal_(self.up.weight, gain=0.1 * max(1.0, (rank / width) ** 0.5))
        no_decay(self.down.weight), no_decay(self.up.weight)
        if bias is not None:
            with torch.no_grad():
                self.up.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.up(x if self.activation is None else self.activation(x))

    def term(self, label: str) -> Term:
        return linear(f"{label}, low rank {self.rank}", self.up.out_features, self.rank, times=2)


class ReadoutNorm(nn.Module):
    """LayerNorm over each head, with a weight and a bias for every channel: a GroupNorm with H groups."""

    def __init__(self, heads: int, head_dim: int, weight: float):
        super().__init__()
        self.head_dim, self.eps = head_dim, head_dim * 1e-5
        self.weight = nn.Parameter(torch.full((heads * head_dim,), weight))
        self.bias = nn.Parameter(torch.zeros(heads * head_dim))

    def forward(self, o_BLHV: Tensor) -> Tensor:
        """[..., H, V] -> [..., H V]."""
        o = F.layer_norm(wide(o_BLHV), (self.head_dim,), eps=self.eps)
        return torch.addcmul(self.bias, o.flatten(-2), self.weight)


class ChannelMix(nn.Module):
    """W_down relu(W_up x)^2 of a token mixed with the one before it."""

    def __init__(self, width: int, ratio: float, mu: Tensor):
        super().__init__()
        self.mu = no_decay(nn.Parameter(mu))
        self.up = nn.Linear(width, int(ratio * width), bias=False)
        self.down = nn.Linear(int(ratio * width), width, bias=False)
        nn.init.orthogonal_(self.up.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, delta: Tensor) -> Tensor:
        return self.down(F.relu(self.up(torch.addcmul(x, delta, self.mu))).square())


@register("rwkv7")
class RWKV7(MemoryLayer):
    """LayerNorm, time mix, residual, LayerNorm, channel mix, residual; layer 0 has one LayerNorm before everything."""

    kernel = "auto"

    not_matrices: ClassVar = {"mu": "mixtures of a token and the one before it", "r_k": "weights of the bonus"}

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Key and value channels of a head; the number of heads is D / head_dim (Table 11)."""
        decay_rank: int | None = None
        """Rank of lora_w; None for the automatic rule."""
        rate_rank: int | None = None
        """Rank of lora_a; None for the automatic rule."""
        value_rank: int | None = None
        """Rank of lora_v; None for the automatic rule."""
        gate_rank: int | None = None
        """Rank of lora_g; None for the automatic rule."""
        ffn_ratio: float = 4.0
        """Hidden width of the channel mix over D (Table 11)."""

        def __post_init__(self):
            if self.head_dim < 2:
                raise ValueError(f"head_dim={self.head_dim}: the initial decays vary within a head of at least 2")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, self.head_dim = count_heads(width, config.head_dim), config.head_dim
        self.input_norm = nn.LayerNorm(width) if index == 0 else None
        self.time_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)

        below = 1 - index / depth  # 1 at the bottom, towards 0 at the top
        above = index / max(1, depth - 1)  # 0 at the bottom, 1 at the top
        n = torch.arange(width, dtype=torch.get_default_dtype())
        line = n / max(1, width - 1) - 0.5
        zigzag = (n % config.head_dim) * 2 / (config.head_dim - 1) - 1
        zigzag = zigzag * zigzag.abs()

        def mixture(exponent: float) -> Tensor:
            return 1 - (n / width) ** exponent

        mu = [mixture(exponent * below) for exponent in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]
        self.mu = no_decay(nn.Parameter(torch.stack(mu)))  # rows r, w, k, v, a, g
        self.receptance, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        nn.init.orthogonal_(self.receptance.weight)
        nn.init.orthogonal_(self.key.weight, gain=0.1)
        nn.init.orthogonal_(self.value.weight)
        nn.init.zeros_(self.out.weight)

        factor = config.head_dim / 64
        decay_bias = -6 + 6 * (line + 0.5) ** (1 + above**0.3) + 0.5 + 2.5 * zigzag
        decay_rank = config.decay_rank or automatic_rank(2.5 * factor, width)
        rate_rank = config.rate_rank or automatic_rank(2.5 * factor, width)
        self.decay = LowRank(width, decay_rank, torch.tanh, decay_bias)
        self.rate = LowRank(width, rate_rank, None, -0.19 + 0.3 * zigzag + 0.4 * line)
        self.gate = LowRank(width, config.gate_rank or automatic_rank(5.0, width), torch.sigmoid, None)
        value_rank = config.value_rank or automatic_rank(1.7 * factor, width)
        self.value_mix = LowRank(width, value_rank, None, 0.73 - 0.4 * line) if index else None

        self.k_k = nn.Parameter(0.71 - 0.1 * line)
        self.k_a = nn.Parameter(torch.full((width,), 1.02))
        self.r_k = no_decay(nn.Parameter(torch.full((self.heads, config.head_dim), -0.04)))
        self.readout_norm = ReadoutNorm(self.heads, config.head_dim, ((index + 1) / depth) ** 0.7)
        self.channel_mix = ChannelMix(width, config.ffn_ratio, mixture(below**4))

    @property
    def output_width(self) -> int:
        """D, and D more for v_first below the top layer."""
        return self.width if self.index == self.depth - 1 else 2 * self.width

    def explain(self) -> str:
        sizes = {"key_dim": self.head_dim, "value_dim": self.head_dim}
        return explain(kernel=self.kernel, device=self.mu.device.type, gate="channel", erase="low rank", **sizes)

    def initial_state(self, batch: int) -> RWKV7State:
        weight = self.out.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        S = torch.zeros(batch, self.heads, self.head_dim, self.head_dim, device=weight.device, dtype=dtype)
        return RWKV7State(S, weight.new_zeros(batch, self.width), weight.new_zeros(batch, self.width))

    # ---- one token, or many at once ----------------------------------------------------------------------------------
    def _enter(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The residual stream, its norm, and v_first where it comes from below."""
        x, v_first = x[..., : self.width], x[..., self.width :]
        if self.input_norm is not None:
            x, v_first = self.input_norm(x), None
        return x, self.time_norm(x), v_first

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_dim))

    def _keys(self, x: Tensor, delta: Tensor, v_first: Tensor | None) -> Keys:
        """The writing side, from the normed input and its difference to the token before, [..., D]."""
        x_w, x_k, x_v, x_a = (torch.addcmul(x, delta, mu) for mu in self.mu[1:5])
        log_decay = -MAX_DECAY * wide(self.decay(x_w)).sigmoid()
        k, v, a = self.key(x_k), self.value(x_v), wide(self.rate(x_a)).sigmoid()
        if v_first is None:
            v_first = v
        else:
            v = torch.lerp(v, v_first.to(v.dtype), self.value_mix(x_v).sigmoid())
        kappa = unit(self._heads(k * self.k_k))
        k = k * (1 + (a - 1) * self.k_a)
        heads = self._heads
        return Keys(heads(k), heads(v), heads(log_decay), (kappa * heads(a), -kappa), v_first)

    def _receptance(self, x: Tensor, delta: Tensor) -> Tensor:
        return self._heads(self.receptance(torch.addcmul(x, delta, self.mu[0])))

    def _time_mix(self, o: Tensor, r: Tensor, keys: Keys, x: Tensor, delta: Tensor) -> Tensor:
        """What the time mix adds to the residual stream, from the readout o [..., H, V]."""
        bonus = (wide(r) * wide(keys.k) * self.r_k).sum(-1, keepdim=True) * keys.v
        gate = self.gate(torch.addcmul(x, delta, self.mu[5]))
        return self.out(((self.readout_norm(o) + bonus.flatten(-2)) * gate).to(self.out.weight.dtype))

    def _leave(self, y: Tensor, keys: Keys) -> Tensor:
        return y if self.output_width == self.width else torch.cat([y, keys.v_first.to(y.dtype)], -1)

    # ---- the memory --------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: RWKV7State, outputs: bool = True) -> tuple[Tensor | None, RWKV7State]:
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: RWKV7State, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[RWKV7State]]:
        """Without outputs, only the tokens just before a time go through the readout: the shift of the channel mix is
        all that needs it."""
        residual, x, v_first = self._enter(x_BLD)
        delta = torch.cat([state.time_x[:, None], x[:, :-1]], 1) - x
        keys = self._keys(x, delta, v_first)
        options = {"kernel": self.kernel, "min_log_decay": -MAX_DECAY}
        S, start, o, S_at, last = state.S, 0, [], [], [t - 1 for t in times]
        if outputs:
            r = self._receptance(x, delta)
            for stop in times:
                part = slice(start, stop)
                o_part, S = linear_recurrence(r[:, part], **keys[part].write, state=S, **options)
                o.append(o_part)
                S_at.append(S)
                start = stop
        else:
            residual, x, delta, ends = residual[:, last], x[:, last], delta[:, last], keys[last]
            r = self._receptance(x, delta)
            for i, t in enumerate(last):
                if t > start:
                    S = linear_state(**keys[start:t].write, state=S, **options)
                o_part, S = linear_step(r[:, i], **ends[i].write, state=S)
                o.append(o_part[:, None])
                S_at.append(S)
                start = t + 1
            keys = ends
        y = residual + self._time_mix(torch.cat(o, 1), r, keys, x, delta)
        c = self.channel_norm(y)
        x_at, c_at = (x[:, last], c[:, last]) if outputs else (x, c)
        states = [RWKV7State(S, x_at[:, i], c_at[:, i]) for i, S in enumerate(S_at)]
        if not outputs:
            return None, states
        y = y + self.channel_mix(c, torch.cat([state.channel_x[:, None], c[:, :-1]], 1) - c)
        return self._leave(y, keys), states

    def _next(self, x: Tensor, state: RWKV7State, readout: Callable) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens that each follow the state directly: [B, Q, D], or [B, D] with a state without the query axis."""
        residual, x, v_first = self._enter(x)
        delta = state.time_x - x
        keys, r = self._keys(x, delta, v_first), self._receptance(x, delta)
        y = residual + self._time_mix(readout(r, **keys.write), r, keys, x, delta)
        c = self.channel_norm(y)
        return self._leave(y + self.channel_mix(c, state.channel_x - c), keys), x, c

    def read(self, x_BQD: Tensor, state: RWKV7State) -> Tensor:
        def readout(r, **write):
            return linear_read(r, **write, state=state.S)

        shared = RWKV7State(state.S, state.time_x[:, None], state.channel_x[:, None])
        return self._next(x_BQD, shared, readout)[0]

    def step(self, x_BD: Tensor, state: RWKV7State) -> tuple[Tensor, RWKV7State]:
        new = []

        def readout(r, **write):
            o, S = linear_step(r, **write, state=state.S)
            new.append(S)
            return o

        y, x, c = self._next(x_BD, state, readout)
        return y, RWKV7State(new[0], x, c)

    def terms(self) -> list[Term]:
        D, sizes = self.width, (self.heads, self.head_dim, self.head_dim, "given")
        terms = [
            linear("r, k, v, output projections", D, D, times=4),
            self.decay.term("decay"),
            self.rate.term("in-context rate"),
            self.gate.term("gate"),
            state_read("removal read", *sizes),
            state_write("removal write", *sizes),
            state_write("state write", *sizes),
            state_read("state read", *sizes),
            linear("channel mix", D, self.channel_mix.up.out_features, times=2),
        ]
        return terms + ([self.value_mix.term("value residual")] if self.value_mix else [])
