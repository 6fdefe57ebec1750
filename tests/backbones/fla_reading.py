"""Pieces of flash-linear-attention's layers as a reader of their definition would do them by hand, token by token.

FLA's layers build on a CPU but do not run there. So our weights are loaded into one (its names and shapes must fit),
and a loop in the test, written from its `forward`, runs on them in float64.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("fla", reason="flash-linear-attention is the oracle: pip install 'ecclab[test]'")


def load(theirs: torch.nn.Module, ours: dict[str, Tensor]) -> torch.nn.Module:
    """Their layer with our weights, in float64. Every parameter must be given, with its shape."""
    theirs.double().load_state_dict({name: weight.detach() for name, weight in ours.items()}, strict=True)
    return theirs


def qkv_convs(conv_weight: Tensor, widths: list[int]) -> dict[str, Tensor]:
    """Our one convolution over q, k, v as their three."""
    parts = conv_weight[:, None].split(widths)
    return {f"{n}_conv1d.weight": part for n, part in zip("qkv", parts, strict=True)}


def conv_silu(x_TC: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution of one stream by its definition, then SiLU. weight: [C, 1, 4]."""
    y = torch.zeros_like(x_TC)
    for t in range(len(x_TC)):
        for j in range(4):
            if t - 3 + j >= 0:
                y[t] += weight[:, 0, j] * x_TC[t - 3 + j]
    return F.silu(y)


def heads(x_TC: Tensor, count: int) -> Tensor:
    return x_TC.reshape(len(x_TC), count, -1)


def normalised(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def expected_output(layer, x_TD: Tensor, mixed_TD: Tensor) -> Tensor:
    """The block around a mixer: two residual branches."""
    h = x_TD + mixed_TD
    gate, up = (layer.ffn_norm(h) @ layer.ffn.gate_up.weight.T).chunk(2, -1)
    return h + (F.silu(gate) * up) @ layer.ffn.down.weight.T
