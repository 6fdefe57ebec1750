"""Gated DeltaNet against a token-by-token reading of flash-linear-attention's layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, make, tokens


def by_hand(fla, x):
    H = fla.num_heads
    q, k, v = (
        reading.heads(reading.conv_silu(p(x), c.weight), H)
        for p, c in ((fla.q_proj, fla.q_conv1d), (fla.k_proj, fla.k_conv1d), (fla.v_proj, fla.v_conv1d))
    )
    q, k, beta = reading.normalised(q), reading.normalised(k), torch.sigmoid(fla.b_proj(x))
    decay = torch.exp(-fla.A_log.exp() * F.softplus(fla.a_proj(x) + fla.dt_bias))
    S, ys = torch.zeros(H, 16, 32, dtype=x.dtype), []
    for t in range(len(x)):
        S = decay[t, :, None, None] * S
        old = (k[t, :, :, None] * S).sum(1)
        S = S + k[t, :, :, None] * (beta[t, :, None] * (v[t] - old))[:, None, :]
        o = reading.rms((q[t, :, :, None] / 4 * S).sum(1), fla.o_norm.weight)
        ys.append(fla.o_proj(o.flatten() * F.silu(fla.g_proj(x[t]))))
    return torch.stack(ys)


@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_equals_flash_linear_attention(width):
    from fla.layers import GatedDeltaNet

    layer = make("gated_deltanet", width).layers[0]
    H = width // 16
    gate, q, k, v, beta, decay = layer.project.weight.split([2 * width, width, width, 2 * width, H, H])
    fla = GatedDeltaNet(hidden_size=width, head_dim=16, num_heads=H, expand_v=2)
    ours = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "g_proj.weight": gate,
        "b_proj.weight": beta,
        "a_proj.weight": decay,
        "A_log": layer.decay.A_log,
        "dt_bias": layer.decay.dt_bias,
        "o_proj.weight": layer.out.weight,
        "o_norm.weight": layer.readout_norm.weight,
        **reading.qkv_convs(layer.convs["qkv"].weight, [width, width, 2 * width]),
    }
    reading.load(fla, ours)
    x = tokens(make("gated_deltanet", width), 1, 45)
    y, _ = layer.write(x, layer.initial_state(1))
    expected = reading.expected_output(layer, x[0], by_hand(fla, layer.mixer_norm(x[0])))
    assert_close(y[0], expected, 1e-10, "outputs")


@pytest.mark.parametrize(("ratio", "width", "hidden"), [(1, 64, 256), (1, 128, 256), (4, 64, 256), (4, 128, 512)])
def test_feed_forward_width_is_that_of_flash_linear_attention(ratio, width, hidden):
    from fla.modules import GatedMLP

    assert GatedMLP(hidden_size=width, hidden_ratio=ratio).intermediate_size == hidden
    assert build("gated_deltanet", width, ffn_ratio=float(ratio)).layers[0].ffn.hidden == hidden


def test_the_first_old_value_is_zero():
    """A step from the empty state is the write alone: S = beta k v^T, whatever the decay."""
    memory = make("gated_deltanet", 64)
    layer, x = memory.layers[0], tokens(memory, 3, 1)
    _, state = layer.write(x, layer.initial_state(3))
    with torch.no_grad():
        layer.decay.A_log += 5
    _, decayed = layer.write(x, layer.initial_state(3))
    assert torch.equal(state.S, decayed.S)
    assert state.S.abs().max() > 0
