"""Mixture of memories: each token is written into 3 of 16 Gated DeltaNet states and into one that all tokens share.

    s = softmax(W_router x);   the 3 largest choose the memories, w = those three over their sum
    q, k, v = W x;   beta = sigmoid(W_b x);   g = -exp(A_log) softplus(W_a x + dt_bias)       computed once per token
    for each chosen memory m, and the shared one, over the tokens that m RECEIVES:
        q_m, k_m, v_m = SiLU(conv4(q, k, v)),  q_m, k_m of unit length per head
        S_m <- e^g S_m + beta k_m (v_m - e^g S_m^T k_m)^T,    o_m = 16^-1/2 S_m^T q_m      S_m in R^{16 x 16} per head
    x <- x + W_o (RMSNorm_head(sum_m w_m o_m + o_shared) * SiLU(W_g x));    x <- x + SwiGLU(norm(x))

Time inside a memory is its own count of tokens: a memory that is not chosen neither decays nor moves its convolution.
The weights of the convolution are shared by the memories, its inputs are not. The router learns through the outputs.

Du et al., "MoM: Linear Sequence Modeling with Mixture-of-Memories", 2025, arXiv 2502.13685. ECCBench, Table 11
(16 memories, top-k 3, Gated DeltaNet experts) and Appendix C.2 (weights shared, computed once). Its capacity of 1.5
drops nothing: a memory can receive at most L tokens, and the authors' capacity is 1.5 L. So routing here is exact, and
training and reading agree. Where the paper is silent: output gate and SwiGLU of ratio 4, as in flash-linear-attention.

How a stream is written: the tokens of each memory are packed, in order, into one row per stream and memory, and the
Gated DeltaNet recurrence runs over all rows at once; a row's padding has beta = 0 and g = 0 and leaves its state alone.
Running every memory over the whole stream under a mask instead would cost 17 passes in place of about 5.

State: 17 memories of 16 D floats and the last three inputs of a convolution, 9 D: 425 D per layer and stream (106 KiB
at D = 64 in float32). Price per token and layer: 10.25 D^2 + 512 D + 6 D I with I = 256 (D = 64) or 512 (D = 128).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flops import Term, linear, state_read, state_write
from kernels import explain, linear_read, linear_recurrence, linear_state, linear_step

from .auxiliary import add_auxiliary_loss, wants_auxiliary_losses
from .base import MemoryLayer
from .gates import HeadDecay, HeadNorm, count_heads, unit, wide
from .parts import ShortConv, SwiGLU, norm
from .registry import register
from .state import State

PIECE = 8192
"""Tokens that are packed at once: bounds the memory of a long write."""


@dataclass
class MoMState(State):
    S: Tensor  # [B, M + 1, H, K, V], float32 or wider; the shared memory is the last
    conv: Tensor  # [B, M + 1, W - 1, 3 D]: the last inputs of each memory's convolution


@dataclass
class Tokens:
    """What the memories receive of each token, [B, L, *]."""

    qkv: Tensor  # 3 D, before the convolution
    gates: Tensor  # 2 H: beta, log-decay

    def between(self, start: int, stop: int) -> Tokens:
        return Tokens(self.qkv[:, start:stop], self.gates[:, start:stop])


class Packing:
    """Tokens [B, L] in rows [B M, load], one row for each stream and memory, in the order of the stream.

    The place of a token is its rank among the tokens of its memory, counted from the choices themselves, so neither
    ties in a sort nor a weight that underflows to 0 can misplace it. No cell is written twice: nothing depends on the
    order in which a GPU executes.
    """

    def __init__(self, choice_BLk: Tensor, memories: int):
        B, L, self.chosen = choice_BLk.shape
        ones = torch.ones_like(choice_BLk)
        received = torch.zeros(B, L, memories, dtype=torch.int64, device=choice_BLk.device).scatter_(
            -1, choice_BLk, ones
        )
        upto = received.cumsum(1)
        self.count = upto[:, -1].flatten()  # [B M]
        self.load = int(self.count.max())
        row = torch.arange(B, device=choice_BLk.device)[:, None, None] * memories + choice_BLk
        self.cell = (row * self.load + upto.gather(-1, choice_BLk) - 1).flatten()  # [B L k]
        self.shape = (B, L, self.chosen)

    def pack(self, x_BLC: Tensor) -> Tensor:
        """[B, L, C] -> [B M, load, C], zeros where a row ends."""
        rows = x_BLC.new_zeros(len(self.count) * self.load, x_BLC.shape[-1])
        copies = x_BLC.unsqueeze(2).expand(*self.shape, -1).flatten(0, 2)
        return rows.index_copy(0, self.cell, copies).unflatten(0, (-1, self.load))

    def unpack(self, rows: Tensor) -> Tensor:
        """[B M, load, ...] -> [B, L, k, ...]."""
        return rows.flatten(0, 1).index_select(0, self.cell).unflatten(0, self.shape)

    def tail(self, rows: Tensor, cache: Tensor) -> Tensor:
        """The last tokens of each row, [B M, W - 1, C], reaching back into `cache` where the row is shorter."""
        keep = cache.shape[1]
        place = (self.count[:, None] - keep + torch.arange(keep, device=rows.device))[..., None]
        new = rows.gather(1, place.clamp_min(0).expand(-1, -1, rows.shape[-1]))
        old = cache.gather(1, (place + keep).clamp_max(keep - 1).expand(-1, -1, rows.shape[-1]))
        return torch.where(place < 0, old, new)


@register("mom")
class MoM(MemoryLayer):
    """Pre-norm mixture of Gated DeltaNet memories, then SwiGLU."""

    kernel = "auto"

    @dataclass(frozen=True)
    class Config:
        head_dim: int = 16
        """Key and value channels of a head; the number of heads is D / head_dim (Table 11)."""
        memories: int = 16
        """Memories to choose from, beside the shared one (Table 11)."""
        chosen: int = 3
        """Memories that each token is written to and read from (Table 11, top-k)."""
        conv: int = 4
        """Width of the convolution over what a memory receives (Table 11: Gated DeltaNet experts)."""
        balance: float = 0.01
        """Weight of the loss that keeps the loads of the memories even; 0 leaves it out."""
        router_std: float = 0.02
        """Initial standard deviation of the router: small, so that loads start even."""
        a_min: float = 0.0
        """Initial decay rates A are uniform from here (floored at 1e-3) ..."""
        a_max: float = 16.0
        """... to here."""
        dt_min: float = 1e-3
        """Initial step sizes dt are log-uniform from here ..."""
        dt_max: float = 0.1
        """... to here."""
        ffn_ratio: float = 4.0
        """SwiGLU ratio."""

        def __post_init__(self):
            if not 1 <= self.chosen <= self.memories:
                raise ValueError(f"chosen={self.chosen} of memories={self.memories}: choose at least 1 and at most all")

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.heads, self.head_dim = count_heads(width, config.head_dim), config.head_dim
        self.free_products = {f"contraction over {config.chosen}": "the weighted sum of the readouts, a gate"}
        self.mixer_norm = norm(width)
        self.sizes = [width, 3 * width, self.heads, self.heads]  # output gate; q, k, v; beta; decay
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.router = nn.Linear(width, config.memories, bias=False)
        nn.init.normal_(self.router.weight, std=config.router_std)
        self.conv = ShortConv(3 * width, config.conv)
        self.decay = HeadDecay(self.heads, config.a_min, config.a_max, config.dt_min, config.dt_max)
        self.readout_norm = HeadNorm(self.head_dim)
        self.out = nn.Linear(width, width, bias=False)
        self.ffn_norm = norm(width)
        self.ffn = SwiGLU(width, config.ffn_ratio, status="assumed")

    def explain(self) -> str:
        sizes = {"key_dim": self.head_dim, "value_dim": self.head_dim}
        return explain(kernel=self.kernel, device=self.out.weight.device.type, gate="head", erase="delta", **sizes)

    def initial_state(self, batch: int) -> MoMState:
        weight, memories = self.out.weight, self.config.memories + 1
        dtype = torch.promote_types(weight.dtype, torch.float32)
        S = torch.zeros(batch, memories, self.heads, self.head_dim, self.head_dim, device=weight.device, dtype=dtype)
        return MoMState(S, weight.new_zeros(batch, memories, self.config.conv - 1, 3 * self.width))

    # ---- what a token brings, and what becomes of it -----------------------------------------------------------------
    def _project(self, x_BLD: Tensor) -> tuple[Tensor, Tokens]:
        gate, qkv, beta, decay = self.project(x_BLD).split(self.sizes, -1)
        return gate, Tokens(qkv, torch.cat([wide(beta).sigmoid(), self.decay(decay)[0]], -1))

    def _route(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities [B, L, M]; choices [B, L, k] and their weights. Not in half precision: ties would multiply."""
        with torch.autocast(x_BLD.device.type, enabled=False):
            probability = nn.functional.linear(wide(x_BLD), wide(self.router.weight)).softmax(-1)
        weight, choice = probability.topk(self.config.chosen, -1)
        return probability, choice, weight / weight.sum(-1, keepdim=True)

    def _add_balance_loss(self, probability: Tensor, choice: Tensor) -> None:
        """memories * sum_m (share of tokens that chose m) (mean probability of m): `chosen` when all loads are even."""
        if self.config.balance and wants_auxiliary_losses():
            tokens = choice.shape[0] * choice.shape[1]
            share = torch.bincount(choice.flatten(), minlength=self.config.memories) / tokens
            loss = self.config.memories * (share * probability.mean((0, 1))).sum()
            add_auxiliary_loss("memory balance", self.config.balance * loss)

    def _recurrence(self, qkv: Tensor, gates: Tensor) -> tuple[Tensor, dict]:
        """The operator's q, and the rest of its arguments, from what the convolution returns: [N, T, 3 D]."""
        qk, v = qkv.split([2 * self.width, self.width], -1)
        q, k = unit(qk.unflatten(-1, (2 * self.heads, self.head_dim))).chunk(2, -2)
        beta, log_decay = gates.chunk(2, -1)
        return q, {"k": k, "v": v.unflatten(-1, (self.heads, self.head_dim)), "log_decay": log_decay, "erase": beta}

    def _finish(self, x: Tensor, o: Tensor, gate: Tensor) -> Tensor:
        x = x + self.out(self.readout_norm(o, gate))
        return x + self.ffn(self.ffn_norm(x))

    @property
    def _scale(self) -> float:
        return self.head_dim**-0.5

    def _mix(self, o_BLkHV: Tensor, weight_BLk: Tensor, o_shared: Tensor) -> Tensor:
        return sum((wide(o_BLkHV) * weight_BLk[..., None, None]).unbind(-3), start=o_shared)

    # ---- the memory --------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: MoMState, outputs: bool = True) -> tuple[Tensor | None, MoMState]:
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: MoMState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[MoMState]]:
        x = self.mixer_norm(x_BLD)
        gate, tokens = self._project(x)
        probability, choice, weight = self._route(x)
        self._add_balance_loss(probability, choice)
        start, o, states = 0, [], []
        for stop in sorted({*times, *range(PIECE, times[-1], PIECE)}):
            part = slice(start, stop)
            o_part, state = self._write_part(
                tokens.between(start, stop), choice[:, part], weight[:, part], state, outputs
            )
            o.append(o_part)
            if stop in times:
                states.append(state)
            start = stop
        return (self._finish(x_BLD, torch.cat(o, 1), gate) if outputs else None), states

    def _write_part(
        self, tokens: Tokens, choice: Tensor, weight: Tensor, state: MoMState, outputs: bool
    ) -> tuple[Tensor | None, MoMState]:
        packing = Packing(choice, self.config.memories)
        rows, gates = packing.pack(tokens.qkv), packing.pack(tokens.gates)
        conv, conv_shared = state.conv[:, :-1].flatten(0, 1), state.conv[:, -1]
        o, S = self._run(rows, gates, conv, state.S[:, :-1].flatten(0, 1), outputs)
        o_shared, S_shared = self._run(tokens.qkv, tokens.gates, conv_shared, state.S[:, -1], outputs)
        tail = packing.tail(rows, conv)
        tail_shared = torch.cat([conv_shared, tokens.qkv[:, -conv_shared.shape[1] :]], 1)[:, -conv_shared.shape[1] :]
        memories = (-1, self.config.memories)
        new = MoMState(
            torch.cat([S.unflatten(0, memories), S_shared[:, None]], 1),
            torch.cat([tail.unflatten(0, memories), tail_shared[:, None]], 1),
        )
        return (self._mix(packing.unpack(o), weight, o_shared) if outputs else None), new

    def _run(self, qkv: Tensor, gates: Tensor, conv: Tensor, S: Tensor, outputs: bool) -> tuple[Tensor | None, Tensor]:
        q, write = self._recurrence(self.conv(qkv, conv), gates)
        if not outputs:
            return None, linear_state(**write, state=S, kernel=self.kernel)
        return linear_recurrence(q, **write, state=S, scale=self._scale, kernel=self.kernel)

    def read(self, x_BQD: Tensor, state: MoMState) -> Tensor:
        """Queries are packed by memory as a stream is; each is read off its memory as the next token on its own."""
        x = self.mixer_norm(x_BQD)
        gate, tokens = self._project(x)
        _, choice, weight = self._route(x)
        packing = Packing(choice, self.config.memories)

        def look(qkv: Tensor, gates: Tensor, conv: Tensor, S: Tensor) -> Tensor:
            q, write = self._recurrence(self.conv.read(qkv, conv), gates)
            return linear_read(q, **write, state=S, scale=self._scale)

        rows, gates = packing.pack(tokens.qkv), packing.pack(tokens.gates)
        o = look(rows, gates, state.conv[:, :-1].flatten(0, 1), state.S[:, :-1].flatten(0, 1))
        o_shared = look(tokens.qkv, tokens.gates, state.conv[:, -1], state.S[:, -1])
        return self._finish(x_BQD, self._mix(packing.unpack(o), weight, o_shared), gate)

    def step(self, x_BD: Tensor, state: MoMState) -> tuple[Tensor, MoMState]:
        """The chosen memories and the shared one, picked out, stepped and put back."""
        x = self.mixer_norm(x_BD)
        gate, tokens = self._project(x)
        _, choice, weight = self._route(x)
        B, used = len(x), self.config.chosen + 1
        pick = torch.cat([choice, choice.new_full((B, 1), self.config.memories)], 1)  # [B, k + 1]
        stream = torch.arange(B, device=x.device)[:, None]
        qkv, gates = (t.repeat_interleave(used, 0)[:, None] for t in (tokens.qkv, tokens.gates))  # [B (k + 1), 1, *]
        conv, S = state.conv[stream, pick].flatten(0, 1), state.S[stream, pick].flatten(0, 1)
        q, write = self._recurrence(self.conv(qkv, conv), gates)
        o, S = linear_step(q[:, 0], **{name: t[:, 0] for name, t in write.items()}, state=S, scale=self._scale)
        conv = torch.cat([conv[:, 1:], qkv.to(conv.dtype)], 1)
        new = MoMState(
            state.S.index_put((stream, pick), S.unflatten(0, (B, used))),
            state.conv.index_put((stream, pick), conv.unflatten(0, (B, used))),
        )
        o = o.unflatten(0, (B, used))
        return self._finish(x_BD, self._mix(o[:, :-1], weight, o[:, -1]), gate), new

    def terms(self) -> list[Term]:
        D, used = self.width, self.config.chosen + 1
        sizes = (used * self.heads, self.head_dim, self.head_dim)
        return [
            linear("router", D, self.config.memories),
            linear("q, k, v projections", D, D, times=3),
            linear("beta and decay projections", D, self.heads, times=2),
            self.conv.term("short convolution over q, k, v"),
            self.conv.term("short convolution in the other memories", times=used - 1, kind="rerun"),
            state_read("old value read", *sizes),
            state_write("correction write", *sizes),
            state_read("state read", *sizes),
            linear("output gate projection", D, D, status="assumed"),
            linear("output projection", D, D),
            *self.ffn.terms(),
        ]
