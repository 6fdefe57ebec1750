"""DeltaFormer against a dense reading of its equations, and its settings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from tests.backbones.contract import assert_close, make, tokens


def turn(x):
    """Rotary positions by complex numbers: channel pairs (i, i + 8) of [T, H, 16], theta 10^4."""
    z = torch.complex(x[..., :8], x[..., 8:])
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * 1e4 ** (-torch.arange(8, dtype=torch.float64) / 8)
    z = z * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([z.real, z.imag], -1)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def by_hand(layer, x):
    """A layer over one stream [T, D]: U from a dense solve, both softmaxes written out."""
    T, D = x.shape
    h = rms(x, layer.attention_norm.weight)
    q, k, v = (h @ layer.qkv.weight[i * D : (i + 1) * D].T for i in range(3))
    q, k, v = (y.view(T, -1, 16) for y in (q, k, v))
    q, k = turn(rms(q, layer.q_norm.weight)), turn(rms(k, layer.k_norm.weight))
    beta = h @ layer.beta.weight.T + layer.beta.bias
    beta = beta.sigmoid() if layer.config.beta_act == "sigmoid" else beta
    address = q if layer.config.stage1 == "qk" else k
    o = []
    for head in range(D // 16):
        scores = address[:, head] @ k[:, head].T / 4
        p = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(), -torch.inf).softmax(-1)
        p = torch.cat([torch.zeros(1, T, dtype=p.dtype), p[1:]])  # the first token sees nothing
        u = torch.linalg.solve(torch.eye(T, dtype=p.dtype) + beta[:, head, None] * p, v[:, head])
        scores = q[:, head] @ k[:, head].T / 4
        o.append(scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ u)
    x = x + torch.cat(o, -1) @ layer.out.weight.T
    gate, up = (rms(x, layer.ffn_norm.weight) @ layer.ffn.gate_up.weight.T).chunk(2, -1)
    return x + (F.silu(gate) * up) @ layer.ffn.down.weight.T


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("settings", [{}, {"stage1": "kk"}, {"beta_act": "sigmoid"}], ids=str)
def test_equals_the_dense_equations(width, settings):
    memory = build("deltaformer", width=width, **settings).double()
    x = tokens(memory, 1, 130)
    expected = x[0]
    for layer in memory.layers:
        expected = by_hand(layer, expected)
    y, state = memory.write(x[:, :129])
    assert_close(y[0], expected[:129], 1e-12, "outputs")
    assert_close(memory.read(x[:, 129:], state)[0], expected[129:], 1e-12, "the last token as a query")


@torch.no_grad()
def test_without_correction_it_is_a_transformer():
    """beta = 0: the cache holds plain values."""
    memory = make("deltaformer", 64)
    layer = memory.layers[0]
    layer.beta.weight.zero_()
    layer.beta.bias.zero_()
    x = tokens(memory, 2, 40)
    v = F.linear(layer.attention_norm(x), layer.qkv.weight[-64:]).view(2, 40, 4, 16)
    assert_close(memory.write(x)[1].layers[0].u, v, 1e-14, "values")


def test_settings_are_checked():
    for settings in ({"stage1": "vv"}, {"beta_act": "tanh"}, {"head_dim": 7}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            build("deltaformer", **settings)
