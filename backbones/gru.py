"""Gated recurrent unit: a vector state, one fused cell step per token.

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)        reset gate
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)        update gate
    n = tanh(W_in x + b_in + r * (W_hn h + b_hn))     candidate
    h = (1 - z) * n + z * h

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation", 2014,
arXiv 1406.1078; ECCBench, Appendix C.2: hidden width = D, three layers, no feed-forward.

Where the paper is silent: a plain stack without residuals, PyTorch's initialisation and both biases; `residual` wraps
each layer in a pre-norm residual. State: h, D floats per layer and stream (256 bytes at D = 64 in float32).
Price per token and layer: 12 D^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flops import Term, linear

from .base import MemoryLayer
from .parts import norm
from .registry import register
from .state import State


@dataclass
class GRUState(State):
    h: Tensor  # [B, D]


@register("gru")
class GRU(MemoryLayer):
    """One `torch.nn.GRU` layer: cuDNN on a GPU, the fused CPU kernel elsewhere."""

    @dataclass(frozen=True)
    class Config:
        residual: bool = False
        """Wrap the layer as x + GRU(norm(x))."""
        update_bias: float = 0.0
        """Added to the initial bias of the update gate: above 0 a state is kept longer at the start of training."""

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.norm = norm(width) if config.residual else nn.Identity()
        self.rnn = nn.GRU(width, width, batch_first=True)
        with torch.no_grad():
            self.rnn.bias_hh_l0[width : 2 * width] += config.update_bias

    def initial_state(self, batch: int) -> GRUState:
        return GRUState(self.rnn.weight_hh_l0.new_zeros(batch, self.width))

    def _cell(self, gates_x: Tensor, gates_h: Tensor, h: Tensor) -> Tensor:
        """The new h from W_i x + b_i and W_h h + b_h, both [..., 3 D] in PyTorch's order r, z, n."""
        rx, zx, nx = gates_x.chunk(3, -1)
        rh, zh, nh = gates_h.chunk(3, -1)
        z = torch.sigmoid(zx + zh)
        n = torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
        return (1 - z) * n + z * h

    def _gates_h(self, h: Tensor) -> Tensor:
        return nn.functional.linear(h, self.rnn.weight_hh_l0, self.rnn.bias_hh_l0)

    def _gates_x(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(x), self.rnn.weight_ih_l0, self.rnn.bias_ih_l0)

    def _output(self, x: Tensor, h: Tensor) -> Tensor:
        return x + h if self.config.residual else h

    def step(self, x_BD: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        h = self._cell(self._gates_x(x_BD), self._gates_h(state.h), state.h)
        return self._output(x_BD, h), GRUState(h)

    def write(self, x_BLD: Tensor, state: GRUState, outputs: bool = True) -> tuple[Tensor | None, GRUState]:
        y, states = self.write_at(x_BLD, state, (x_BLD.shape[1],), outputs)
        return y, states[0]

    def write_at(
        self, x_BLD: Tensor, state: GRUState, times: Sequence[int], outputs: bool = True
    ) -> tuple[Tensor | None, list[GRUState]]:
        with torch.autocast(x_BLD.device.type, enabled=False):  # cuDNN has no bf16 GRU before 9.13
            x = self.norm(x_BLD).to(state.h.dtype)
            h_BLD, _ = self.rnn(x, state.h[None].contiguous())
        return (self._output(x_BLD, h_BLD) if outputs else None), [GRUState(h_BLD[:, t - 1].clone()) for t in times]

    def read(self, x_BQD: Tensor, state: GRUState) -> Tensor:
        """W_h h is shared by all queries of a stream, so it is computed once."""
        h = self._cell(self._gates_x(x_BQD), self._gates_h(state.h)[:, None], state.h[:, None])
        return self._output(x_BQD, h)

    def terms(self) -> list[Term]:
        return [
            linear("input gates", self.width, self.width, times=3, status="given"),
            linear("recurrent gates", self.width, self.width, times=3, status="given"),
        ]
