"""The memory abstraction: a layer writes a stream into a state and reads queries off it, and a backbone stacks layers.

    state = memory.write(stream, state)      parallel over the stream; continues from any state
    answer = memory.read(queries, state)     every query is the NEXT token, read off the same state on its own

Three identities define a correct layer, and the contract tests hold every registered backbone to them:

    read      read(q, write(x)) = last output over the L + 1 tokens x + [q]
    pieces    write(x + y) = write(y, write(x))
    causal    changing token t leaves the outputs before t alone

Letters: B batch, L stream length, Q queries, D width. A layer is one whole layer of the stack: norms, mixer, residuals
and feed-forward. Source: ECCBench (arXiv 2609.00103), section 3, equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from flops import Price, Term, stack

from .state import StackState, State


class MemoryLayer(nn.Module):
    """One layer of a memory. Subclass it in one file and register it under a name.

    A subclass supplies `Config`, `initial_state`, `step` and `terms`; everything else then works, slowly. `write` and
    `read` are overridden for speed, `write_at` where a state at an earlier time comes for less than a second write.

    Args:
        width: D.
        config: an instance of the subclass's `Config`, a frozen dataclass that checks itself.
        index: the layer's place in the stack, 0 at the bottom.
        depth: layers in the stack.
    """

    @dataclass(frozen=True)
    class Config:
        """No fields: a layer without settings."""

    config: Config

    not_able: ClassVar[dict[str, str]] = {}
    """Contract tests that this layer cannot pass, each with the reason; the suite prints them."""

    not_matrices: ClassVar[dict[str, str]] = {}
    """Parameters with several axes that are no matrix of a weight term, each with what it is instead."""

    charged_anyway: ClassVar[dict[str, str]] = {}
    """Labels of terms that the paper charges where `step` executes nothing, each with the reason."""

    free_products: ClassVar[dict[str, str]] = {}
    """Products that `flops.count`'s lint finds and the convention leaves free, each with the reason."""

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__()
        self.width, self.config, self.index, self.depth = width, config, index, depth

    @classmethod
    def stack(cls, width: int, config: Config, depth: int) -> list[MemoryLayer]:
        """The layers of a backbone, bottom first. Override it where layers share a parameter."""
        return [cls(width, config, index, depth) for index in range(depth)]

    @property
    def output_width(self) -> int:
        """Channels of an output. More than D where a layer hands token-wise side information to the next one."""
        return self.width

    # ---- what a subclass supplies ------------------------------------------------------------------------------------
    def initial_state(self, batch: int) -> State:
        """The state of `batch` streams before their first token, on the device and in the dtype of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define initial_state")

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """One token: the definition of the layer, slow and obvious. The FLOPs count runs on it.

        Returns the output [B, output_width] and the state after the token.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def terms(self) -> list[Term]:
        """The matrix products of `step`, one line each, written from the paper and not from the code."""
        raise NotImplementedError(f"{type(self).__name__} declares no price")

    def explain(self) -> str | None:
        """Which form of which operator will run, and why, in one line; None where there is no choice."""
        return None

    # ---- what it gets ------------------------------------------------------------------------------------------------
    def write(self, x_BLD: Tensor, state: State, outputs: bool = True) -> tuple[Tensor | None, State]:
        """Fold a stream into the state.

        Args:
            x_BLD: [B, L, D], L >= 1.
            state: where to continue from; left as it is.
            outputs: False when nobody reads the outputs, as in the top layer: they need not be computed.

        Returns:
            Outputs [B, L, output_width] (None without `outputs`) and the new state.
        """
        ys = []
        for x_BD in x_BLD.unbind(1):
            y_BD, state = self.step(x_BD, state)
            ys.append(y_BD)
        return (torch.stack(ys, 1) if outputs else None), state

    def write_at(
        self, x_BLD: Tensor, state: State, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[State]]:
        """As `write`, with the state after the first t tokens for every t of `times` (increasing, at most L)."""
        ys, states, start = [], [], 0
        for stop in times:
            y, state = self.write(x_BLD[:, start:stop], state, outputs)
            ys.append(y)
            states.append(state)
            start = stop
        return (torch.cat(ys, 1) if outputs else None), states

    def read(self, x_BQD: Tensor, state: State) -> Tensor:
        """Q independent next tokens off one state, which stays as it is. Returns [B, Q, output_width]."""
        B, Q, _ = x_BQD.shape
        y_BD, _ = self.step(x_BQD.flatten(0, 1), state.repeat_interleave(Q))
        return y_BD.view(B, Q, -1)

    def read_at(self, x_BQD: Tensor, states: Sequence[State]) -> Tensor:
        """Queries at several times: Q splits evenly over the states, in order."""
        return torch.cat([self.read(x, s) for x, s in zip(x_BQD.chunk(len(states), 1), states, strict=True)], 1)


class MemoryBackbone(nn.Module):
    """Layers on top of each other, without embeddings or head.

    Args:
        layers: bottom first.
        name: the registered name, for messages.
    """

    def __init__(self, layers: Sequence[MemoryLayer], name: str):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.name = name
        self.width = layers[0].width

    def initial_state(self, batch: int) -> StackState:
        return StackState(tuple(layer.initial_state(batch) for layer in self.layers))

    def write(
        self, x_BLD: Tensor, state: StackState | None = None, outputs: bool = True
    ) -> tuple[Tensor | None, StackState]:
        """Fold a stream into the state; a new state when none is given.

        Without `outputs` the top layer computes its state only, which is all that a read needs; FLOPs reports charge
        the full causal pass all the same.

        Returns:
            Outputs [B, L, D] (None without `outputs`) and the new state.

        Raises:
            ValueError: when the shape is not [B, L, D] with L >= 1.
        """
        y, states = self.write_at(x_BLD, (x_BLD.shape[1],), state, outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, times: Sequence[int], state: StackState | None = None, outputs: bool = True
    ) -> tuple[Tensor | None, list[StackState]]:
        """As `write`, with one state for every t of `times`: what a memory knows after its first t tokens.

        The stream is written once, layer by layer. Tokens after the last time are not written.
        """
        self._check(x_BLD, "stream")
        B, L, _ = x_BLD.shape
        if L < 1:
            raise ValueError("a stream of length 0 holds nothing to write; read off initial_state(batch) instead")
        times = tuple(times)
        if not times or times[0] < 1 or times[-1] > L or any(a >= b for a, b in pairwise(times)):
            raise ValueError(f"query times {times} must increase within 1..{L}, the length of the stream")
        state = self.initial_state(B) if state is None else state
        x, per_layer = x_BLD[:, : times[-1]], []
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            wanted = outputs or layer is not self.layers[-1]
            x, states = layer.write_at(x, layer_state, times, wanted)
            per_layer.append(states)
        y = x[..., : self.width] if outputs else None
        return y, [StackState(layers) for layers in zip(*per_layer, strict=True)]

    def read(self, x_BQD: Tensor, state: StackState) -> Tensor:
        """Q independent next tokens off one state. Returns [B, Q, D]; the state is left as it was."""
        return self.read_at(x_BQD, [state])

    def read_at(self, x_BQD: Tensor, states: Sequence[StackState]) -> Tensor:
        """As `read` at several times: the Q queries split evenly over the states, in order."""
        self._check(x_BQD, "queries")
        if x_BQD.shape[1] % len(states):
            raise ValueError(f"{x_BQD.shape[1]} queries do not split evenly over {len(states)} query times")
        for layer, layer_states in zip(self.layers, zip(*(s.layers for s in states), strict=True), strict=True):
            x_BQD = layer.read(x_BQD, layer_states[0]) if len(states) == 1 else layer.read_at(x_BQD, layer_states)
        return x_BQD[..., : self.width]

    def step(self, x_BD: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """One token through the step form of every layer: the oracle of `write` and `read`."""
        states = []
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x_BD, layer_state = layer.step(x_BD, layer_state)
            states.append(layer_state)
        return x_BD[..., : self.width], StackState(tuple(states))

    def price(self) -> Price:
        """The closed form of this very configuration; a count of its step where a layer declares no terms.

        Raises:
            NotImplementedError: no terms, and parameters on the meta device, where nothing can be counted.
        """
        try:
            return stack(layer.terms() for layer in self.layers)
        except NotImplementedError:
            if next(self.parameters()).is_meta:
                raise
            from flops.count import counted_price

            return counted_price(self)

    def state_bytes(self, length: int) -> int:
        """Bytes of state that one stream of `length` tokens leaves behind."""
        with torch.no_grad():
            x = next(self.parameters()).new_zeros(1, length, self.width)
            return self.write(x, outputs=False)[1].nbytes

    def _check(self, x: Tensor, what: str) -> None:
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ValueError(f"{what} of {self.name}: expected [batch, tokens, {self.width}], found {tuple(x.shape)}")
