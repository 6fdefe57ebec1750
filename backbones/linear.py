"""Shell of the layers whose memory is a matrix state per head: an architecture is its projections and gates.

    x <- x + output(recurrence(inputs(norm(x))))
    x <- x + ffn(norm(x))                              if the architecture has one

`inputs` is called for streams and for queries alike, so the two cannot drift apart: what differs between them (where a
convolution finds its last inputs, which position a token has) is behind `tokens`.

Letters: B batch, L stream length (Q queries stand in its place in a read), D width, H heads, K key dim, V value dim,
W convolution width. See `kernels.linear_recurrence` for the recurrence itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from kernels import explain, linear_read, linear_recurrence, linear_state, linear_step

from .base import MemoryLayer
from .parts import ShortConv, norm
from .state import State


@dataclass
class LinearState(State):
    S: Tensor  # [B, H, K, V], float32 or wider
    conv: dict[str, Tensor]  # name -> [B, W - 1, channels]: the last inputs of each short convolution
    position: Tensor | None  # [B] int64: tokens written so far, for the layers that count them


@dataclass
class RecurrenceInputs:
    """What `kernels.linear_recurrence` takes, and what `output` needs beside its result.

    Args:
        q, k: [B, L, H, K], or one head for all, [B, L, 1, K].
        v: [B, L, H, V].
        log_decay: None, [H], [B, L, H] or [B, L, H, K], at most 0.
        erase: None, beta [B, L, H] (delta rule), or (a, b) each [B, L, H, K].
        scale: of the readout.
        gate, skip: passed through to `output`, [B, L, ...].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    erase: Tensor | tuple[Tensor, Tensor] | None = None
    scale: float = 1.0
    gate: Tensor | None = None
    skip: Tensor | None = None

    def between(self, start: int, stop: int) -> RecurrenceInputs:
        """Tokens start..stop - 1; a decay that is constant over time stays whole."""

        def cut(value):
            if isinstance(value, tuple):
                return tuple(cut(item) for item in value)
            return value[:, start:stop] if isinstance(value, Tensor) and value.ndim > 1 else value

        return replace(self, **{field.name: cut(getattr(self, field.name)) for field in fields(self)})


class StreamTokens:
    """The tokens of a stream, following those that the state has seen."""

    def __init__(self, layer: LinearMemoryLayer, state: LinearState, length: int):
        self.layer, self.state, self.length = layer, state, length
        self.seen: dict[str, Tensor] = {}

    def conv(self, name: str, x: Tensor) -> Tensor:
        """The layer's short convolution `name`, with its cache; x unchanged when the layer has none of that name."""
        if name not in self.layer.convs:
            return x
        self.seen[name] = x
        return self.layer.convs[name](x, self.state.conv[name])

    @property
    def positions(self) -> Tensor:
        """[B, L]: the 0-based position of each token."""
        return self.state.position[:, None] + torch.arange(self.length, device=self.state.position.device)

    def state_at(self, t: int, S: Tensor) -> LinearState:
        """The layer's state after t of the tokens, given the matrix state there."""
        conv = {}
        for name, x in self.seen.items():
            cache = self.state.conv[name]
            keep = cache.shape[1]
            # A copy: a slice would keep the whole projected stream in memory for as long as the state lives.
            conv[name] = x[:, t - keep : t].clone() if t >= keep else torch.cat([cache[:, t:], x[:, :t]], 1)
        position = self.state.position
        return LinearState(S, conv, None if position is None else position + t)


class QueryTokens:
    """Queries: each is the next token after the state, on its own."""

    def __init__(self, layer: LinearMemoryLayer, state: LinearState, queries: int):
        self.layer, self.state, self.queries = layer, state, queries

    def conv(self, name: str, x: Tensor) -> Tensor:
        if name not in self.layer.convs:
            return x
        return self.layer.convs[name].read(x, self.state.conv[name])

    @property
    def positions(self) -> Tensor:
        return self.state.position[:, None].expand(-1, self.queries)


class LinearMemoryLayer(MemoryLayer):
    """Subclass it with `inputs` and `output`, and set `heads`, `key_dim` and `value_dim` in `__init__`.

    Optional members: `convs`, short convolutions by name (`self.convs["q"] = ShortConv(...)`); `ffn`, a module with
    `terms()`; `counts_positions = True` to have `tokens.positions`; `min_log_decay`, a floor that the gates promise to
    stay above, which lets the operator choose its fastest form without looking at the data.
    """

    heads: int
    key_dim: int
    value_dim: int
    counts_positions = False
    min_log_decay: float | None = None
    kernel = "auto"

    def __init__(self, width: int, config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.mixer_norm = norm(width)
        self.convs = nn.ModuleDict()
        self.ffn: nn.Module | None = None

    def add_ffn(self, ffn: nn.Module) -> None:
        """Give the layer a second residual branch; `ffn` has `terms()`."""
        self.ffn_norm, self.ffn = norm(self.width), ffn

    def add_conv(self, name: str, channels: int, conv_width: int, **settings) -> None:
        """Give the layer a short convolution, which `inputs` calls as `tokens.conv(name, x)`; none at width 0."""
        if conv_width:
            self.convs[name] = ShortConv(channels, conv_width, **settings)

    # ---- what a subclass supplies ------------------------------------------------------------------------------------
    def inputs(self, x_BLD: Tensor, tokens: StreamTokens | QueryTokens) -> RecurrenceInputs:
        """Project, convolve, gate and normalise the normed input."""
        raise NotImplementedError(f"{type(self).__name__} must define inputs")

    def output(self, o_BLHV: Tensor, r: RecurrenceInputs) -> Tensor:
        """Gate, merge the heads and project: [B, L, D]."""
        raise NotImplementedError(f"{type(self).__name__} must define output")

    @torch.no_grad()
    def explain(self) -> str:
        weight = self.mixer_norm.weight
        r = self.inputs(weight.new_zeros(1, 1, self.width), StreamTokens(self, self.initial_state(1), 1))
        gate = "none" if r.log_decay is None else {1: "constant", 3: "head", 4: "channel"}[r.log_decay.ndim]
        erase = "none" if r.erase is None else "delta" if isinstance(r.erase, Tensor) else "low rank"
        shared = r.k.shape[2] == 1 < self.heads
        sizes = {"key_dim": self.key_dim, "value_dim": self.value_dim}
        device = weight.device.type
        return explain(kernel=self.kernel, device=device, gate=gate, erase=erase, shared_heads=shared, **sizes)

    # ---- the memory --------------------------------------------------------------------------------------------------
    def initial_state(self, batch: int) -> LinearState:
        parameter = self.mixer_norm.weight
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        S = torch.zeros(batch, self.heads, self.key_dim, self.value_dim, device=parameter.device, dtype=dtype)
        conv = {name: conv.initial_cache(batch) for name, conv in self.convs.items()}
        position = torch.zeros(batch, dtype=torch.int64, device=parameter.device) if self.counts_positions else None
        return LinearState(S, conv, position)

    def _finish(self, x: Tensor, o: Tensor, r: RecurrenceInputs) -> Tensor:
        x = x + self.output(o, r)
        return x if self.ffn is None else x + self.ffn(self.ffn_norm(x))

    def write(self, x_BLD: Tensor, state: LinearState, outputs: bool = True) -> tuple[Tensor | None, LinearState]:
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: LinearState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[LinearState]]:
        """Project once; only the recurrence itself is run from time to time."""
        tokens = StreamTokens(self, state, x_BLD.shape[1])
        r = self.inputs(self.mixer_norm(x_BLD), tokens)
        S, start, os, states = state.S, 0, [], []
        options = {"kernel": self.kernel, "min_log_decay": self.min_log_decay}
        for stop in times:
            part = r if (start, stop) == (0, x_BLD.shape[1]) else r.between(start, stop)
            gates = {"log_decay": part.log_decay, "erase": part.erase}
            if outputs:
                o, S = linear_recurrence(part.q, part.k, part.v, **gates, state=S, scale=part.scale, **options)
                os.append(o)
            else:
                S = linear_state(part.k, part.v, **gates, state=S, **options)
            states.append(tokens.state_at(stop, S))
            start = stop
        y = self._finish(x_BLD, torch.cat(os, 1) if len(os) > 1 else os[0], r) if outputs else None
        return y, states

    def read(self, x_BQD: Tensor, state: LinearState) -> Tensor:
        r = self.inputs(self.mixer_norm(x_BQD), QueryTokens(self, state, x_BQD.shape[1]))
        o = linear_read(r.q, r.k, r.v, log_decay=r.log_decay, erase=r.erase, state=state.S, scale=r.scale)
        return self._finish(x_BQD, o, r)

    def step(self, x_BD: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        x = x_BD[:, None]
        tokens = StreamTokens(self, state, 1)
        r = self.inputs(self.mixer_norm(x), tokens)

        def at(value):
            if isinstance(value, tuple):
                return tuple(item[:, 0] for item in value)
            return value[:, 0] if isinstance(value, Tensor) and value.ndim > 1 else value

        o, S = linear_step(
            at(r.q), at(r.k), at(r.v), log_decay=at(r.log_decay), erase=at(r.erase), state=state.S, scale=r.scale
        )
        return self._finish(x, o[:, None], r)[:, 0], tokens.state_at(1, S)
