"""Compressive Transformer: attention over the current block and a past that is squeezed harder the older it is.

    x <- GRU(input = W_o attention(LN(x)), hidden = x)         a gated residual
    x <- GRU(input = W_2 GELU(W_1 LN(x)), hidden = x)          D -> 4 D -> D

The stream is cut into blocks of 128. A token attends to its block up to itself and to memory slots, oldest first:

    long-term 1 slot | level 2: 32 slots of 32 tokens | level 1: 32 slots of 8 tokens | the previous block, 128 | block

A slot holds a normed layer input or a compression of some, and its key and value by the layer's own projection. When a
block is full, it becomes the previous block, and what no longer fits moves left: the block before it, eight tokens to a
slot; the 16 oldest of level 1, four slots to one; the 4 oldest of level 2, into the long-term slot:

    u = softmax(c^T W_k e / sqrt D) W_v e,     long-term <- u at first, then GRU(input = u, hidden = long-term)

so a token meets 0, 128, 144, 160, 164, .., 192, 193, 193, .. slots in the first, second, .. block. Nothing in memory
depends on the block's attention: within a layer all blocks are independent given the layer below.

Rae et al., "Compressive Transformers for Long-Range Sequence Modelling", 2019, arXiv 1911.05507; ECCBench, Table 11 and
Appendix C.2, whose figures are those of lbaermann/qaego4d `model/external/compressive_transformer.py`. Scores add a
learned vector per head and distance, (q_i . k_j + q_i . p[distance]) / 4, one table for all layers, zero at first.

Positions differ from upstream, where a distance moves through the table as the memory grows: past the training length
the nearest 13 positions would be entries never trained, and level 2 sits between level 1 and the previous block. Here
slots are in order of age and a distance, counted in slots, has one entry. `positions="upstream"` is for comparison.

Compressions learn as upstream: the main loss sees them with fixed weights (it reaches the tokens behind a slot, not the
compression), and a loss of their own, "reconstruction" in `backbones.auxiliary`, asks that a block's queries find in
the compressed slots what they find in those evicted. `compress_grad="end_to_end"` has the main loss train them instead.
The long-term slot first exists after 12 blocks: streams up to 1535 tokens leave its parameters untrained, as in the
paper.

State per layer and stream: an input, a key and a value for each of m <= 193 slots and r < 128 tokens of the open block:
3 D (m + r) floats, at most 240 KiB at D = 64. Lengths are the shapes of these tensors: there is no counter.
Price per token: 48 D^2, 6 D per pair, and upkeep at the end of a block (see `terms`). The paper's count, which is ours,
charges the long-term GRU, 12 D^2, for the first update too; like upstream, the code needs none there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, linear
from kernels import attention_read

from .auxiliary import add_auxiliary_loss, wants_auxiliary_losses
from .base import MemoryLayer
from .compressive_memory import CompressiveState, History, Layout, Slots
from .gates import count_heads, no_decay, wide
from .registry import register


class GRUGate(nn.Module):
    """A GRU cell as a residual: how much of `h` stays, and what of `x` comes in.

    Args:
        width: D.
        bias: have biases.
        keep_bias: added to the initial bias of the gate that keeps `h`.
    """

    def __init__(self, width: int, bias: bool = True, keep_bias: float = 0.0):
        super().__init__()
        self.input = nn.Linear(width, 3 * width, bias=bias)
        self.hidden = nn.Linear(width, 3 * width, bias=bias)
        if bias:
            with torch.no_grad():
                self.hidden.bias[width : 2 * width] += keep_bias

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        reset_x, keep_x, new_x = self.input(x).chunk(3, -1)
        reset_h, keep_h, new_h = self.hidden(h).chunk(3, -1)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        return torch.lerp(new.to(h.dtype), h, torch.sigmoid(keep_x + keep_h).to(h.dtype))


class Compression(nn.Linear):
    """A convolution whose width is its stride: every `ratio` slots become one."""

    def __init__(self, width: int, ratio: int):
        super().__init__(ratio * width, width)
        self.ratio = ratio

    def forward(self, x_BSD: Tensor, trained: bool = True) -> Tensor:
        """[B, S, D] -> [B, S / ratio, D]; without `trained`, no gradient reaches the weights."""
        weight, bias = (self.weight, self.bias) if trained else (self.weight.detach(), self.bias.detach())
        return wide(F.linear(x_BSD.unflatten(1, (-1, self.ratio)).flatten(2), weight, bias))


@register("compressive_transformer")
class CompressiveTransformer(MemoryLayer):
    """Attention over memory and block, then a feed-forward layer, both gated."""

    not_matrices: ClassVar = {"positions": "a vector per distance, read once per pair"}

    charged_anyway: ClassVar = {
        "long-term: gated update": "the first one only stores, the paper charges it like the rest"
    }

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Channels of a head; the number of heads is D / head_dim (Table 11)."""
        block: int = 128
        """Tokens of a block, and of the memory of the previous one (Table 11)."""
        ratios: tuple[int, int] = (8, 4)
        """Tokens to a slot of level 1, and slots of level 1 to one of level 2 (Table 11)."""
        slots: tuple[int, int] = (32, 32)
        """Slots of each level (Table 11)."""
        ffn_ratio: float = 4.0
        """Hidden width of the feed-forward layer over D."""
        positions: Literal["distance", "upstream"] = "distance"
        """One table entry per distance and slots by age, or upstream's index and order, which shift with the memory."""
        compress_grad: Literal["auxiliary", "end_to_end"] = "auxiliary"
        """What trains the compressions: the reconstruction loss alone, or the main loss alone."""
        keep_bias: float = 0.0
        """Added to the initial bias of the gates that keep the residual: above 0 a layer starts nearer the identity."""
        long_term_init: Literal["random", "mean"] = "random"
        """Start of the long-term value map: random as upstream, or the identity, a plain mean of what was evicted."""

        def __post_init__(self):
            (r1, r2), (s1, s2) = self.ratios, self.slots
            if min(self.head_dim, self.block, r1, r2, s1, s2) < 1:
                raise ValueError(f"{self}: head_dim, block, ratios and slots must be at least 1")
            if self.block % (r1 * r2):
                raise ValueError(f"block={self.block} is not divisible by the ratios {r1} x {r2}")
            level1, level2 = self.block // r1, self.block // (r1 * r2)
            if s1 % level1 or s2 % level2:
                raise ValueError(
                    f"slots={self.slots}: a block becomes {level1} slots of level 1 and then {level2} of level 2; "
                    "each level must hold a multiple of that"
                )
            for name, known in (
                ("positions", ("distance", "upstream")),
                ("compress_grad", ("auxiliary", "end_to_end")),
                ("long_term_init", ("random", "mean")),
            ):
                if getattr(self, name) not in known:
                    raise ValueError(f"{name}={getattr(self, name)!r}: choose {known[0]!r} or {known[1]!r}")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads = count_heads(width, config.head_dim)
        self.layout = Layout(config.block, tuple(config.ratios), tuple(config.slots))
        self.chronological = config.positions == "distance"

        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.positions = no_decay(nn.Parameter(torch.zeros(self.heads, self.layout.positions, config.head_dim)))
        self.attention_gate = GRUGate(width, keep_bias=config.keep_bias)

        self.ffn_norm = nn.LayerNorm(width)
        hidden = int(config.ffn_ratio * width)
        self.ffn = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.ffn_gate = GRUGate(width, keep_bias=config.keep_bias)

        self.compress1, self.compress2 = (Compression(width, ratio) for ratio in config.ratios)
        self.long_term_query = nn.Parameter(torch.zeros(width))
        self.long_term_key = nn.Linear(width, width, bias=False)
        self.long_term_value = nn.Linear(width, width, bias=False)
        self.long_term_gru = GRUGate(width, bias=False)
        if config.long_term_init == "mean":
            nn.init.eye_(self.long_term_value.weight)

    @classmethod
    def stack(cls, width: int, config: Config, depth: int) -> list[CompressiveTransformer]:
        """One table of positions for all layers."""
        layers = super().stack(width, config, depth)
        for layer in layers[1:]:
            layer.positions = layers[0].positions
        return layers

    def initial_state(self, batch: int) -> CompressiveState:
        x = wide(self.query.weight.new_zeros(batch, 0, self.width))
        nothing = Slots(x, x.new_zeros(batch, 0, 2 * self.width))
        return CompressiveState(nothing, nothing, nothing, nothing, nothing)

    # ---- projections -------------------------------------------------------------------------------------------------
    def _slots(self, x: Tensor) -> Slots:
        return Slots(x, wide(self.key_value(x)))

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, H, L, K]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _keys_values(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, 2 D] -> two of [B, H, S, K]."""
        return tuple(self._heads(y) for y in kv.chunk(2, -1))

    def _seen_positions(self, seen: int, past: int) -> Tensor:
        """Position vectors [H, seen, K] of the slots that the newest of `seen` sees, itself last; `past` are memory."""
        end = self.layout.positions if self.chronological else self.layout.block + past
        return self.positions[:, end - seen : end]

    def _finish(self, x: Tensor, o_BLD: Tensor) -> Tensor:
        x = self.attention_gate(self.out(o_BLD.to(x.dtype)), x)
        return self.ffn_gate(self.ffn(self.ffn_norm(x)), x)

    # ---- one token: the definition -----------------------------------------------------------------------------------
    def step(self, x_BD: Tensor, state: CompressiveState) -> tuple[Tensor, CompressiveState]:
        normed = wide(self.attention_norm(x_BD[:, None]))
        block = state.block + self._slots(normed)
        kv = torch.cat([slots.kv for slots in [*state.past(self.chronological), block]], 1)
        (k, v), q = self._keys_values(kv), self._heads(wide(self.query(normed)))
        positions = self._seen_positions(kv.shape[1], kv.shape[1] - len(block))
        scores = q @ k.transpose(-1, -2) + q @ positions.transpose(-1, -2)  # [B, H, 1, slots]
        o = (scores * self.config.head_dim**-0.5).softmax(-1) @ v
        y = self._finish(x_BD, o.transpose(1, 2).flatten(1))
        if len(block) < self.layout.block:
            return y, CompressiveState(state.long_term, state.level2, state.level1, state.recent, block)
        return y, self._close(state, block)

    def _close(self, state: CompressiveState, block: Slots) -> CompressiveState:
        """A block is full: every level passes on what no longer fits."""
        level1, level2, long_term = state.level1, state.level2, state.long_term
        trained = self.config.compress_grad == "end_to_end"
        if len(state.recent):
            level1 = level1 + self._slots(self.compress1(state.recent.x, trained))
        if (over := len(level1) - self.layout.slots[0]) > 0:
            level2 = level2 + self._slots(self.compress2(level1[:over].x, trained))
            level1 = level1[over:]
        if (over := len(level2) - self.layout.slots[1]) > 0:
            update = self._pool(level2[:over].x)[:, None]
            long_term = self._slots(self.long_term_gru(update, long_term.x) if len(long_term) else update)
            level2 = level2[over:]
        return CompressiveState(long_term, level2, level1, block, block[:0])

    def _pool(self, x: Tensor) -> Tensor:
        """What the long-term slot's one query finds in evicted slots: [..., S, D] -> [..., D]."""
        scores = wide(self.long_term_key(x)) @ wide(self.long_term_query)[:, None]  # [..., S, 1]
        weights = (scores * self.width**-0.5).softmax(-2)
        return (weights.transpose(-1, -2) @ wide(self.long_term_value(x))).squeeze(-2)

    # ---- write and read ----------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: CompressiveState, outputs: bool = True):
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: CompressiveState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[CompressiveState]]:
        """All slots of the layer first, then attention block by block: fewer, larger products than one block at a time,
        and faster on a CPU than all blocks at once, whose early ones would be padded from 0 to 193 slots."""
        normed = wide(self.attention_norm(x_BLD))
        history = self._remember(normed, state)
        collect = self._collects_loss(history)
        y = None
        if outputs or collect:
            q = self.query(normed)
            if collect:
                self._add_reconstruction_loss(q.detach(), history)
            if outputs:
                o = [self._attend(q[:, rows], seen) for rows, seen in history.blocks()]
                y = self._finish(x_BLD, torch.cat(o, 1))
        return y, [history.state(t) for t in times]

    def _remember(self, normed: Tensor, state: CompressiveState) -> History:
        """Every slot that the new tokens lead to."""
        layout, trained = self.layout, self.config.compress_grad == "end_to_end"
        tokens = state.recent + state.block + self._slots(normed)
        level1, level2, long_term = state.level1, state.level2, state.long_term
        if compressed := max(0, len(tokens) // layout.block - 1) * layout.block:
            level1 = level1 + self._slots(self.compress1(tokens.x[:, :compressed], trained))
        if (over := len(level1) - layout.slots[0]) > 0:
            level2 = level2 + self._slots(self.compress2(level1.x[:, :over], trained))
        if (over := len(level2) - layout.slots[1]) > 0:
            slots, made = long_term.x, []
            groups = level2.x[:, :over].unflatten(1, (-1, layout.groups[1]))
            for update in self._pool(groups).split(1, 1):
                slots = self.long_term_gru(update, slots) if slots.shape[1] else update
                made.append(slots)
            long_term = long_term + self._slots(torch.cat(made, 1))
        return History(layout, state, tokens, level1, level2, long_term)

    def _attend(self, q_BnD: Tensor, seen: CompressiveState) -> Tensor:
        """Attention [B, n, D] of the last n tokens of the open block of `seen`."""
        n = q_BnD.shape[1]
        kv = torch.cat([slots.kv for slots in [*seen.past(self.chronological), seen.block]], 1)
        q, (k, v), S = self._heads(q_BnD) * self.config.head_dim**-0.5, self._keys_values(kv), kv.shape[1]
        # Row i needs the vector of column j at place n - 1 - i + j of the table. With one empty vector behind the
        # table, rows are S + 1 long, and reading them S at a time from n - 1 on is that very shift.
        table = F.pad(self._seen_positions(S, S - len(seen.block)), (0, 0, 0, 1))
        shifted = (q @ table.transpose(-1, -2)).flatten(2)[..., n - 1 : n - 1 + n * S].unflatten(2, (n, S))
        hidden = torch.ones(n, S, dtype=torch.bool, device=q.device).triu(S - n + 1)
        scores = (shifted + q @ k.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def read(self, x_BQD: Tensor, state: CompressiveState) -> Tensor:
        """A query is the next token of the open block, alone in it: upkeep is never run. All queries stand at the same
        distance from a slot, so its position vector is added to its key once."""
        normed = wide(self.attention_norm(x_BQD))
        kv = torch.cat([slots.kv for slots in [*state.past(self.chronological), state.block]], 1)

        def heads(y: Tensor) -> tuple[Tensor, ...]:
            return y.unflatten(-1, (-1, self.heads, self.config.head_dim)).unbind(2)

        (k, v), (own_k, own_v) = heads(kv), heads(wide(self.key_value(normed)))
        (q,) = heads(wide(self.query(normed)))
        table = wide(self._seen_positions(kv.shape[1] + 1, kv.shape[1] - len(state.block))).transpose(0, 1)
        o = attention_read(q, own_k + table[-1], own_v, k + table[:-1], v)
        return self._finish(x_BQD, o.flatten(2))

    # ---- the reconstruction loss -------------------------------------------------------------------------------------
    def _collects_loss(self, history: History) -> bool:
        """Whether this write compresses something and somebody adds up the loss that the compressions learn from."""
        if self.config.compress_grad != "auxiliary" or len(history.tokens) < 2 * self.layout.block:
            return False
        if wants_auxiliary_losses():
            return True
        if self.training and torch.is_grad_enabled():
            warnings.warn(
                "compressive_transformer: nobody collects the reconstruction loss, the only one that trains the "
                "compressions; call the model inside backbones.auxiliary.auxiliary_losses() and add what it yields, "
                "or set compress_grad=end_to_end",
                stacklevel=2,
            )
        return False

    def _add_reconstruction_loss(self, q_BLD: Tensor, history: History) -> None:
        """Mean squared difference between what a block's queries find in evicted slots and in their compressions, with
        everything but the compressions held fixed: summed over levels, averaged over blocks and layers."""
        losses, blocks = [], 0
        for rows, evicted in history.evictions():
            q = self._heads(q_BLD[:, rows])
            for slots, compress in zip(evicted, (self.compress1, self.compress2), strict=True):
                if len(slots):
                    compressed = F.linear(compress(slots.x.detach()), self.key_value.weight.detach())
                    expected = F.scaled_dot_product_attention(q, *self._keys_values(slots.kv.detach().to(q.dtype)))
                    found = F.scaled_dot_product_attention(q, *self._keys_values(compressed.to(q.dtype)))
                    losses.append(F.mse_loss(found.float(), expected.float()))
            blocks += bool(len(evicted[0]))
        add_auxiliary_loss("reconstruction", torch.stack(losses).sum() / (blocks * self.depth))

    def terms(self) -> list[Term]:
        D, layout = self.width, self.layout
        hidden = int(self.config.ffn_ratio * D)
        r1, r2 = layout.ratios

        def made(level: int, each: int = 1):
            return lambda T: each * layout.made(T // layout.block)[level]

        def pair(label: str, shape: tuple[int, int, int]) -> Term:
            return Term(f"attention: {label}", "pair", shape, 1, layout.pairs, "given")

        given, per_update = {"status": "given"}, layout.groups[1]
        return [
            linear("q, k, v, output projections", D, D, times=4, **given),
            linear("feed-forward up", D, hidden, **given),
            linear("feed-forward down", hidden, D, **given),
            linear("gates of the two residuals", D, D, times=12, **given),
            pair("scores", (1, D, 1)),
            pair("positions", (1, D, 1)),
            pair("values", (1, 1, D)),
            linear("level 1: compression", r1 * D, D, count=made(0), **given),
            linear("level 1: keys and values", D, 2 * D, kind="rerun", count=made(0), **given),
            linear("level 2: compression", r2 * D, D, count=made(1), **given),
            linear("level 2: keys and values", D, 2 * D, kind="rerun", count=made(1), **given),
            linear("long-term: keys and values of what is evicted", D, 2 * D, count=made(2, per_update), **given),
            Term("long-term: scores", "pair", (1, D, 1), 1, made(2, per_update), "given"),
            Term("long-term: values", "pair", (1, 1, D), 1, made(2, per_update), "given"),
            linear("long-term: gated update", D, D, times=6, count=made(2), **given),
            linear("long-term: keys and values", D, 2 * D, kind="rerun", count=made(2), **given),
        ]
