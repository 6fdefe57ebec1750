"""DeltaNet against a token-by-token reading of flash-linear-attention's layer."""

from __future__ import annotations

import pytest
import torch

from backbones import build
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, make, tokens


def by_hand(fla, x, max_beta):
    H = fla.num_heads
    q, k, v = (
        reading.heads(reading.conv_silu(p(x), c.weight), H)
        for p, c in ((fla.q_proj, fla.q_conv1d), (fla.k_proj, fla.k_conv1d), (fla.v_proj, fla.v_conv1d))
    )
    q, k, beta = reading.normalised(q), reading.normalised(k), max_beta * torch.sigmoid(fla.b_proj(x))
    S, ys = torch.zeros(H, 16, 16, dtype=x.dtype), []
    for t in range(len(x)):
        old = (k[t, :, :, None] * S).sum(1)
        S = S + k[t, :, :, None] * (beta[t, :, None] * (v[t] - old))[:, None, :]
        o = reading.rms((q[t, :, :, None] / 4 * S).sum(1), fla.o_norm.weight)
        ys.append(fla.o_proj(o.flatten()))
    return torch.stack(ys)


@pytest.mark.parametrize(("width", "max_beta"), [(64, 1.0), (128, 1.0), (64, 2.0)])
@torch.no_grad()
def test_equals_flash_linear_attention(width, max_beta):
    from fla.layers import DeltaNet

    layer = build("deltanet", width, max_beta=max_beta).double().layers[0]
    q, k, v, beta = layer.project.weight.split([width, width, width, width // 16])
    fla = DeltaNet(hidden_size=width, num_heads=width // 16, expand_k=1.0, expand_v=1.0)
    ours = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "b_proj.weight": beta,
        "o_proj.weight": layer.out.weight,
        "o_norm.weight": layer.readout_norm.weight,
        **reading.qkv_convs(layer.convs["qkv"].weight, [width] * 3),
    }
    reading.load(fla, ours)
    x = tokens(make("deltanet", width), 1, 45)
    y, _ = layer.write(x, layer.initial_state(1))
    expected = reading.expected_output(layer, x[0], by_hand(fla, layer.mixer_norm(x[0]), max_beta))
    assert_close(y[0], expected, 1e-10, "outputs")


def test_beta_has_a_limit():
    with pytest.raises(ValueError, match=r"max_beta=2\.5"):
        build("deltanet", 64, max_beta=2.5)
