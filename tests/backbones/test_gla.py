"""GLA against a token-by-token reading of flash-linear-attention's layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, make, tokens


def by_hand(fla, x):
    H = fla.num_heads
    q, k, v = (reading.heads(p(x), H) for p in (fla.q_proj, fla.k_proj, fla.v_proj))
    decay = reading.heads(F.logsigmoid(fla.gk_proj(x)) / 16, H).exp()
    S, ys = torch.zeros(H, q.shape[-1], v.shape[-1], dtype=x.dtype), []
    for t in range(len(x)):
        S = decay[t, :, :, None] * S + k[t, :, :, None] * v[t, :, None, :]
        o = reading.rms((q[t, :, :, None] / q.shape[-1] ** 0.5 * S).sum(1), fla.g_norm_swish_gate.weight)
        ys.append(fla.o_proj(o.flatten() * F.silu(fla.g_proj(x[t]))))
    return torch.stack(ys)


@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_equals_flash_linear_attention(width):
    from fla.layers import GatedLinearAttention

    layer = make("gla", width).layers[0]
    gate, q, k, v, decay = layer.project.weight.split([width, width // 2, width // 2, width, 16])
    fla = reading.load(
        GatedLinearAttention(hidden_size=width, num_heads=width // 16, expand_k=0.5, expand_v=1.0),
        {
            "q_proj.weight": q,
            "k_proj.weight": k,
            "v_proj.weight": v,
            "g_proj.weight": gate,
            "gk_proj.0.weight": decay,
            "gk_proj.1.weight": layer.decay.weight,
            "gk_proj.1.bias": layer.decay.bias,
            "o_proj.weight": layer.out.weight,
            "g_norm_swish_gate.weight": layer.readout_norm.weight,
        },
    )
    x = tokens(make("gla", width), 1, 45)
    y, _ = layer.write(x, layer.initial_state(1))
    expected = reading.expected_output(layer, x[0], by_hand(fla, layer.mixer_norm(x[0])))
    assert_close(y[0], expected, 1e-10, "outputs")


def test_gates_at_the_floor_are_finite_and_exact():
    """Gate logits of -1000 and +1000 side by side: decays of e^-5 (the floor) and 1, values and gradients."""
    results = {}
    for dtype in (torch.float64, torch.float32):
        memory = make("gla", 64).to(dtype)
        for layer in memory.layers:
            with torch.no_grad():
                layer.decay.bias[::2], layer.decay.bias[1::2] = -1000, 1000
        x = tokens(memory, 1, 100).requires_grad_()
        y, _ = memory.write(x)
        y.square().sum().backward()
        results[dtype] = y.detach(), x.grad
    for found, expected in zip(results[torch.float32], results[torch.float64], strict=True):
        assert_close(found, expected, 1e-4, "at the floor")


def test_bias_and_spread_of_the_decays():
    bias = build("gla", 64, gate_bias=2.0, gate_bias_spread=7.0).layers[1].decay.bias
    assert bias.unflatten(0, (4, 8))[2].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="min_log_decay=1"):
        build("gla", 64, min_log_decay=1.0)
