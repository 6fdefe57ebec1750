"""Memory Mosaic: associative memories of the context and of the training set, addressed by leaky averages of the past.

    x <- x + W_o ctx(LN(x))                                              context memory
    x <- x + W_o' per(LN(x))                                             persistent memory

    key_t = e^s n( a_t ),     a_t = x_t W_k + lambda a_{t-1}          n normalises a head, lambda = exp(-|10 theta|)
    val_t = e^z n( c v_t + (1 - c) v_{t+1} ),     v = x W_v              the value looks one token ahead
    ctx_t = sum_{j < t} softmax_{j < t}(key_t . key_j) val_j             keys are the queries; ctx_1 = 0
    per_t = e^z' mean over six memories of softmax(key'_t P^T) V         own keys, scaled e^{2 s'}; P, V of 2 D entries

The look-ahead stays causal: a token reads values of earlier tokens only, the latest of which ends with itself. There is
no feed-forward and there are no positions; the memory lengths start between 2 tokens and a fifth of one.

Zhang et al., "Memory Mosaics", 2024, arXiv 2405.06394; code: facebookresearch/MemoryMosaics, `nanoMosaics`. ECCBench,
Table 11 (six persistent memories of 128 / 256, block size 256) and Appendix C.2.

Block size: upstream's is the longest stream that the model accepts, because its leaky average is a T x T table. At 256
streams of 1024 could not be trained on, and a window it cannot be either: Appendix C.2 counts all T(T - 1)/2 pairs at
every length. Here the average is a scan and attention stores no table: there is no block size, no length is special.

What differs from upstream: a zero vector is normalised with eps 1e-6 inside the root (upstream divides by |a| + 1e-10,
whose gradient at 0 is 1e10), exponents are clamped at 5 as in upstream's library (e^22 overflows half precision),
linear maps have no biases and PyTorch's initialisation.

State per layer and stream: keys (D L), values up to the last but one ((L - 1) D), the last token's v, which waits for
its successor (D), two leaky accumulators (2 D): 2 D L + 2 D floats (512 KiB at D = 64, L = 1024).
Price per token: 58 D^2, of which 48 D^2 for the persistent memories, and 4 D per pair of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, attention_pairs, linear, strict_pairs
from kernels import attention_read, causal_attention, leaky_average, leaky_average_read

from .base import MemoryLayer
from .gates import count_heads, no_decay, unit, wide
from .registry import register
from .state import State

EXPONENT = 10.0
"""Scalars behind an exponential are stored divided by this, so that they move ten times faster than a weight."""
LARGEST = 5.0
"""Limit of the exponent of a key's scale."""


@dataclass
class MosaicState(State):
    keys: Tensor  # [B, L, H, K], scaled
    values: Tensor  # [B, L - 1, H, K], scaled; the last token's is not known yet
    pending: Tensor  # [B, 1, H, K]: the last token's v (zero before the first)
    context: Tensor  # [B, H, K]: leaky average of the context memory
    persistent: Tensor  # [B, H, K]: leaky average of the persistent memory


class LeakyKeys(nn.Module):
    """Keys of a memory: project, average with a leak, normalise, scale.

    Args:
        width, heads: D and H.
        power: the scale is e^{power s}; 2 where the other side of the product has no scale of its own.
    """

    def __init__(self, width: int, heads: int, power: int):
        super().__init__()
        self.heads, self.power = heads, power
        self.project = nn.Linear(width, width, bias=False)
        self.leak = no_decay(nn.Parameter(torch.linspace(0.5, 5.0, heads) / EXPONENT))
        self.scale = no_decay(nn.Parameter(torch.full((heads,), 1.0 / EXPONENT)))

    def _project(self, x: Tensor) -> Tensor:
        return wide(self.project(x)).unflatten(-1, (self.heads, -1))

    def _log_decay(self) -> Tensor:
        return -(EXPONENT * self.leak).abs()

    def _finish(self, average: Tensor) -> Tensor:
        exponent = self.power * (EXPONENT * wide(self.scale)).clamp_max(LARGEST)
        return unit(average) * exponent.exp()[:, None]

    def write(self, x: Tensor, state: Tensor, kernel: str = "auto") -> tuple[Tensor, Tensor]:
        """Keys [B, L, H, K] of a stream and the averages [B, L, H, K] behind them, the last of which is the state."""
        average, _ = leaky_average(self._project(x), self._log_decay(), state, kernel=kernel)
        return self._finish(average), average

    def read(self, x: Tensor, state: Tensor) -> Tensor:
        return self._finish(leaky_average_read(self._project(x), self._log_decay(), state))


@register("memory_mosaic")
class MemoryMosaic(MemoryLayer):
    """Context memory, then persistent memories, each in its own residual branch."""

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """K, channels of a head; the number of heads is D / head_dim (Table 11)."""
        memories: int = 6
        """Persistent memories whose answers are averaged (Table 11)."""
        slots_ratio: int = 2
        """Entries of a persistent memory and head over D: 128 and 256 (Table 11)."""

        def __post_init__(self):
            for name in ("head_dim", "memories", "slots_ratio"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        heads = self.heads = count_heads(width, config.head_dim)
        self.slots = config.slots_ratio * width

        self.context_norm = nn.LayerNorm(width)
        self.context_keys = LeakyKeys(width, heads, power=1)
        self.value = nn.Linear(width, width, bias=False)
        self.value_mix = no_decay(nn.Parameter(torch.rand(heads)))
        self.value_scale = no_decay(nn.Parameter(torch.full((heads,), -0.5 / EXPONENT)))
        self.context_out = nn.Linear(width, width, bias=False)

        self.persistent_norm = nn.LayerNorm(width)
        self.persistent_keys = LeakyKeys(width, heads, power=2)
        entries = (config.memories, heads, self.slots, config.head_dim)
        self.entry_keys = nn.Parameter(torch.randn(entries) * config.head_dim**-0.5)
        self.entry_values = nn.Parameter(torch.randn(entries) * config.head_dim**-0.5)
        self.persistent_scale = no_decay(nn.Parameter(torch.full((heads,), -0.5 / EXPONENT)))
        self.persistent_out = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> MosaicState:
        nothing = wide(self.value.weight.new_zeros(batch, 0, self.heads, self.config.head_dim))
        zero = nothing.new_zeros(batch, self.heads, self.config.head_dim)
        return MosaicState(nothing, nothing, zero[:, None], zero, zero)

    # ---- the same for streams and queries ----------------------------------------------------------------------------
    def _values(self, v: Tensor, following: Tensor) -> Tensor:
        """Finished values from v and the v of the next token."""
        mix, scale = wide(self.value_mix)[:, None], (EXPONENT * wide(self.value_scale)).exp()[:, None]
        return scale * unit(torch.lerp(following, v, mix))

    def _project_values(self, x: Tensor) -> Tensor:
        return wide(self.value(x)).unflatten(-1, (self.heads, -1))

    def _merge(self, x: Tensor, o_BLHK: Tensor, out: nn.Linear) -> Tensor:
        return x + out(o_BLHK.flatten(-2).to(x.dtype))

    def _persistent(self, x: Tensor, keys_BLHK: Tensor) -> Tensor:
        """The second residual branch, given its keys. One attention call for all memories: no scores are stored."""
        B, L = keys_BLHK.shape[:2]
        queries = keys_BLHK.movedim(2, 0).flatten(1, 2).expand(self.config.memories, -1, -1, -1)  # [6, H, B L, K]
        entries = (wide(self.entry_keys), wide(self.entry_values))
        o = F.scaled_dot_product_attention(queries, *entries, scale=1.0).mean(0).unflatten(1, (B, L))
        return self._persistent_output(x, o.movedim(0, 2))

    def _persistent_output(self, x: Tensor, mean_BLHK: Tensor) -> Tensor:
        scale = (EXPONENT * wide(self.persistent_scale)).exp()[:, None]
        return self._merge(x, scale * mean_BLHK, self.persistent_out)

    # ---- the memory --------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: MosaicState, outputs: bool = True):
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: MosaicState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[MosaicState]]:
        """An earlier state is a shorter cache. Without outputs the persistent memories are not read, but their leaky
        average, which takes the context memory's output, is kept."""
        past = state.keys.shape[1]
        normed = self.context_norm(x_BLD)
        keys, context = self.context_keys.write(normed, state.context)
        v = self._project_values(normed)
        before = state.pending if past else v[:, :0]
        v_all = torch.cat([before, v], 1)
        finished = self._values(v_all[:, :-1], v_all[:, 1:])  # of the tokens up to the last but one
        values = torch.cat([state.values, finished], 1)
        # Row t of a strict attention ends at value t - 1; the unfinished last value is there for its length only.
        unread = torch.zeros_like(keys[:, :1])
        o = causal_attention(
            keys,
            keys,
            torch.cat([values[:, past:], unread], 1),
            past=(state.keys, values[:, :past]) if past else None,
            strict=True,
            scale=1.0,
        )
        x = self._merge(x_BLD, o, self.context_out)
        persistent_keys, persistent = self.persistent_keys.write(self.persistent_norm(x), state.persistent)
        all_keys = torch.cat([state.keys, keys], 1) if past else keys
        states = []
        for t in times:
            last = [y.clone() for y in (v[:, t - 1 : t], context[:, t - 1], persistent[:, t - 1])]
            states.append(MosaicState(all_keys[:, : past + t], values[:, : past + t - 1], *last))
        return (self._persistent(x, persistent_keys) if outputs else None), states

    def read(self, x_BQD: Tensor, state: MosaicState) -> Tensor:
        """The last stored value is finished by each query's own v, so it is each query's own."""
        normed = self.context_norm(x_BQD)
        key = self.context_keys.read(normed, state.context)
        if state.keys.shape[1]:
            last_key = state.keys[:, -1:].expand_as(key)
            last_value = self._values(state.pending, self._project_values(normed))
            o = attention_read(key, last_key, last_value, state.keys[:, :-1], state.values, scale=1.0)
        else:
            o = torch.zeros_like(key)
        x = self._merge(x_BQD, o, self.context_out)
        return self._persistent(x, self.persistent_keys.read(self.persistent_norm(x), state.persistent))

    def step(self, x_BD: Tensor, state: MosaicState) -> tuple[Tensor, MosaicState]:
        """One token over the cache with every product written out."""
        x = x_BD[:, None]
        normed = self.context_norm(x)
        key, context = self.context_keys.write(normed, state.context, "reference")
        v, values, o = self._project_values(normed), state.values, torch.zeros_like(key)
        if state.keys.shape[1]:  # the token completes the value of the one before it, and reads it
            values = torch.cat([values, self._values(state.pending, v)], 1)
            scores = key.transpose(1, 2) @ state.keys.permute(0, 2, 3, 1)  # [B, H, 1, L]
            o = (scores.softmax(-1) @ values.transpose(1, 2)).transpose(1, 2)
        x = self._merge(x, o, self.context_out)

        query, persistent = self.persistent_keys.write(self.persistent_norm(x), state.persistent, "reference")
        scores = query.transpose(1, 2) @ wide(self.entry_keys).unsqueeze(1).transpose(-1, -2)  # [6, B, H, 1, slots]
        mean = (scores.softmax(-1) @ wide(self.entry_values).unsqueeze(1)).mean(0)
        y = self._persistent_output(x, mean.transpose(1, 2))[:, 0]
        return y, MosaicState(torch.cat([state.keys, key], 1), values, v, context[:, 0], persistent[:, 0])

    def terms(self) -> list[Term]:
        D, dim = self.width, self.config.head_dim
        read = dict(times=self.config.memories * self.heads, status="given")
        return [
            linear("context key, value, output projections", D, D, times=3, status="given"),
            *attention_pairs("context attention", D, strict_pairs, status="given"),
            linear("persistent key and output projections", D, D, times=2, status="given"),
            linear("persistent memories: scores", dim, self.slots, **read),
            linear("persistent memories: values", self.slots, dim, **read),
        ]
