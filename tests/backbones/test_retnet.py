"""RetNet against a token-by-token reading of flash-linear-attention's layer; its decays and positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, make, tokens


def rotated(x_THK, start=0):
    """Pairs (i, i + 8) turned by the angle position * 10000^(-i/8), as complex numbers."""
    half = x_THK.shape[-1] // 2
    position = torch.arange(start, start + len(x_THK), dtype=x_THK.dtype)
    angle = position[:, None, None] * 10_000.0 ** (-torch.arange(half, dtype=x_THK.dtype) / half)
    turned = torch.complex(x_THK[..., :half], x_THK[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def by_hand(fla, x):
    H = fla.num_heads
    q, k, v = (
        reading.heads(reading.conv_silu(p(x), c.weight), H)
        for p, c in ((fla.q_proj, fla.q_conv1d), (fla.k_proj, fla.k_conv1d), (fla.v_proj, fla.v_conv1d))
    )
    q, k = rotated(q), rotated(k)
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=x.dtype))
    S, ys = torch.zeros(H, 16, 32, dtype=x.dtype), []
    for t in range(len(x)):
        S = gamma[:, None, None] * S + k[t, :, :, None] * v[t, :, None, :]
        o = reading.rms((q[t, :, :, None] / 4 * S).sum(1), fla.g_norm_swish_gate.weight)
        ys.append(fla.o_proj(o.flatten() * F.silu(fla.g_proj(x[t]))))
    return torch.stack(ys)


@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_equals_flash_linear_attention(width):
    from fla.layers import MultiScaleRetention

    layer = make("retnet", width).layers[0]
    gate, q, k, v = layer.project.weight.split([2 * width, width, width, 2 * width])
    fla = MultiScaleRetention(hidden_size=width, num_heads=width // 16, use_short_conv=True)
    ours = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "g_proj.weight": gate,
        "o_proj.weight": layer.out.weight,
        "g_norm_swish_gate.weight": layer.readout_norm.weight,
        **reading.qkv_convs(layer.convs["qkv"].weight, [width, width, 2 * width]),
    }
    reading.load(fla, ours)
    x = tokens(make("retnet", width), 1, 45)
    y, _ = layer.write(x, layer.initial_state(1))
    expected = reading.expected_output(layer, x[0], by_hand(fla, layer.mixer_norm(x[0])))
    assert_close(y[0], expected, 1e-10, "outputs")


def test_slow_heads_keep_decaying_in_bfloat16():
    """1 - 2^-12 is 1 in bf16: the decay must never have been there."""
    log_decay = build("retnet", 128).bfloat16().layers[0].log_decay()
    assert log_decay.dtype == torch.float32
    torch.testing.assert_close(log_decay.exp()[-1].item(), 1 - 2**-12, rtol=1e-7, atol=0)


@torch.no_grad()
def test_positions_continue_beyond_training_lengths():
    """A token after 4096 others is turned by 4096, in a batch of more than one, in pieces and in queries alike."""
    memory = make("retnet", 64)
    layer = memory.layers[0]
    x = tokens(memory, 2, 1)
    state = layer.initial_state(2)
    state.S.normal_()
    late = type(state)(state.S, state.conv, state.position + 4096)
    y, after = layer.write(x, late)
    assert after.position.tolist() == [4097, 4097]
    assert_close(layer.read(x, late), y, 1e-12, "a query at position 4096")
    assert not torch.allclose(layer.read(x, state), y, atol=1e-3)


def test_no_convolution():
    """`conv: 0` is the RetNet that flash-linear-attention's model builds: 32 D less per token and layer."""
    with_conv, without = (build("retnet", 64, conv=conv).price().read(100) for conv in (4, 0))
    assert with_conv - without == 3 * 32 * 64
    y, _ = build("retnet", 64, conv=0).write(torch.randn(1, 5, 64))
    assert torch.isfinite(y).all()
