"""RWKV-7 against a token-by-token reading of flash-linear-attention's layer, with FLA's own elementwise references."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, make, tokens


def fla_layers(width, index, depth=3):
    from fla.layers import RWKV7Attention
    from fla.models.rwkv7.modeling_rwkv7 import RWKV7FeedForward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a note on which implementation to cite
        attention = RWKV7Attention(hidden_size=width, head_dim=16, layer_idx=index, num_hidden_layers=depth)
        ffn = RWKV7FeedForward(width, layer_idx=index, num_hidden_layers=depth)
    return attention, ffn


def time_mix_names(layer):
    """Our weights of the time mix under FLA's names."""
    names = {f"x_{c}": mu[None, None] for c, mu in zip("rwkvag", layer.mu, strict=True)}
    names |= {f"{n}_proj.weight": getattr(layer, ours).weight for n, ours in PROJECTIONS.items()}
    low_rank = {"w": layer.decay, "a": layer.rate, "g": layer.gate, "v": layer.value_mix}
    for n, module in low_rank.items():
        if module is not None:
            names |= {f"{n}_lora.lora.0.weight": module.down.weight, f"{n}_lora.lora.2.weight": module.up.weight}
            names |= {} if module.up.bias is None else {f"{n}_lora.lora.2.bias": module.up.bias}
    names |= {"k_k": layer.k_k, "k_a": layer.k_a, "r_k": layer.r_k}
    return names | {"g_norm.weight": layer.readout_norm.weight, "g_norm.bias": layer.readout_norm.bias}


PROJECTIONS = {"r": "receptance", "k": "key", "v": "value", "o": "out"}


def channel_mix_names(layer):
    mix = layer.channel_mix
    return {"x_k": mix.mu, "key.weight": mix.up.weight, "value.weight": mix.down.weight}


def time_mix_by_hand(fla, x_TD, v_first):
    from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
    from fla.ops.rwkv7.fused_k_update import k_update_ref
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref

    H, x = fla.num_heads, x_TD[None]
    delta = F.pad(x, (0, 0, 1, 0))[:, :-1] - x
    xr, xw, xk, xv, xa, xg = torch_addcmul_rwkv7(x, delta, fla.x_r, fla.x_w, fla.x_k, fla.x_v, fla.x_a, fla.x_g)
    r, k, v, g = fla.r_proj(xr), fla.k_proj(xk), fla.v_proj(xv), fla.g_lora(xg)
    w = torch.exp(-0.6065306597126334 * torch.sigmoid(fla.w_lora(xw)))
    if v_first is None:
        v_first = v
    else:
        v = torch.lerp(v, v_first, torch.sigmoid(fla.v_lora(xv)))
    a = torch.sigmoid(fla.a_lora(xa))
    kappa = reading.normalised((k * fla.k_k).unflatten(-1, (H, 16)))  # FLA: no epsilon under the root
    k = k_update_ref(k, a, fla.k_a)
    r, w, k, v, a = (t.unflatten(-1, (H, 16)) for t in (r, w, k, v, a))
    S, o = torch.zeros(H, 16, 16, dtype=x.dtype), []
    for t in range(x.shape[1]):
        removed = (kappa[0, t, :, :, None] * S).sum(1)
        S = w[0, t, :, :, None] * S - (kappa * a)[0, t, :, :, None] * removed[:, None]
        S = S + k[0, t, :, :, None] * v[0, t, :, None]
        o.append((r[0, t, :, :, None] * S).sum(1).flatten())
    o = fla.g_norm(torch.stack(o))[None]
    return fla.o_proj(gate_output_correction_ref(o, r, k, fla.r_k, v, g))[0], v_first


@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_equals_flash_linear_attention(width):
    """Three layers, v_first travelling up."""
    memory = make("rwkv7", width)
    x = tokens(memory, 1, 45)
    h, v_first = memory.layers[0].input_norm(x[0]), None
    for index, layer in enumerate(memory.layers):
        attention, ffn = fla_layers(width, index)
        reading.load(attention, time_mix_names(layer))
        reading.load(ffn, channel_mix_names(layer))
        mixed, v_first = time_mix_by_hand(attention, layer.time_norm(h), v_first)
        h = h + mixed
        c = layer.channel_norm(h)
        before = F.pad(c, (0, 0, 1, 0))[:-1]
        h = h + F.relu((c + (before - c) * ffn.x_k) @ ffn.key.weight.T) ** 2 @ ffn.value.weight.T
    assert_close(memory.write(x)[0][0], h, 1e-10, "outputs")


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("index", [0, 1, 2])
@torch.no_grad()
def test_initial_values_are_those_of_flash_linear_attention(index, width):
    """Every parameter by name: equal where the rule is deterministic, equally scaled where it draws."""
    torch.manual_seed(0)
    layer = build("rwkv7", width).layers[index]
    attention, ffn = fla_layers(width, index)
    theirs = dict(attention.named_parameters()) | {f"ffn.{n}": p for n, p in ffn.named_parameters()}
    ours = time_mix_names(layer) | {f"ffn.{n}": p for n, p in channel_mix_names(layer).items()}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if value.ndim == 2 and name != "r_k":
            drawn = {"r_proj.weight", "k_proj.weight", "v_proj.weight", "ffn.key.weight"}
            expected = 0 if not (name in drawn or name.endswith("lora.2.weight")) else theirs[name].std().item()
            assert value.std().item() == pytest.approx(expected, rel=0.02), name
        else:
            torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-5, msg=name)


def test_one_token_from_a_state():
    """The meaning of w: with S = 1 everywhere and no removal, a key channel of the next state is w + k v."""
    memory = make("rwkv7", 64)
    layer = memory.layers[0]
    state = layer.initial_state(1)
    state.S.fill_(1.0)
    with torch.no_grad():
        layer.k_k.zero_()
        x = tokens(memory, 1, 1)
        normed = layer.time_norm(layer.input_norm(x))
        keys = layer._keys(normed, -normed, None)
        _, after = layer.write(x, state)
    w = torch.exp(-torch.exp(torch.tensor(-0.5)) * torch.sigmoid(layer.decay(normed + layer.mu[1] * -normed)))
    expected = w.unflatten(-1, (4, 16))[0, 0, :, :, None] + keys.k[0, 0, :, :, None] * keys.v[0, 0, :, None]
    assert_close(after.S[0], expected.detach(), 1e-7, "state")
    assert w.min() > 0.545


def test_gradient_through_the_value_that_travels_up():
    """Of the answers with respect to layer 0's value projection, against finite differences."""
    memory = make("rwkv7", 32)
    x, q = tokens(memory, 2, 9), tokens(memory, 2, 2, seed=5)
    weight = memory.layers[0].value.weight
    direction = torch.randn_like(weight)

    def loss():
        return memory.read(q, memory.write(x, outputs=False)[1]).sin().sum()

    loss().backward()
    with torch.no_grad():
        weight += 1e-5 * direction
        up = loss()
        weight -= 2e-5 * direction
        down = loss()
    torch.testing.assert_close((weight.grad * direction).sum(), (up - down) / 2e-5, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("settings", [{"width": 16}, {"width": 48, "depth": 1}, {"width": 64, "depth": 2}])
@torch.no_grad()
def test_odd_sizes_and_every_depth_are_finite(settings):
    memory = build("rwkv7", **settings)
    for B, L in ((1, 1), (3, 7), (5, 33)):
        y, state = memory.write(torch.randn(B, L, settings["width"]))
        assert torch.isfinite(y).all()
        assert torch.isfinite(memory.read(torch.randn(B, 3, settings["width"]), state)).all()
    assert all(torch.isfinite(p).all() for p in memory.parameters())


def test_weight_decay_leaves_the_mixtures_alone():
    spared = {n for n, p in build("rwkv7", 64).layers[1].named_parameters() if hasattr(p, "_no_weight_decay")}
    assert {"mu", "channel_mix.mu", "r_k", "decay.down.weight", "decay.up.weight"} <= spared
    assert not {"key.weight", "value.weight", "channel_mix.up.weight"} & spared
