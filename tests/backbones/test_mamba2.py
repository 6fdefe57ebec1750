"""Mamba-2 against transformers' `Mamba2Mixer` with copied weights, and its gates under strong decay."""

from __future__ import annotations

import pytest
import torch
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from backbones import build
from tests.backbones.contract import assert_close, step_through, tokens


def mixer_like(layer) -> Mamba2Mixer:
    """transformers' mixer with the weights of our layer."""
    D = layer.width
    config = Mamba2Config(
        num_heads=layer.heads,
        head_dim=64,
        hidden_size=D,
        state_size=2 * D,
        expand=2,
        n_groups=1,
        conv_kernel=4,
        chunk_size=32,
        layer_norm_epsilon=1e-5,
        num_hidden_layers=1,
    )
    mixer = Mamba2Mixer(config, layer_idx=0)
    conv = layer.convs["xBC"]
    weights = {
        "in_proj.weight": layer.project.weight,
        "conv1d.weight": conv.weight[:, None],
        "conv1d.bias": conv.bias,
        "dt_bias": layer.decay.dt_bias,
        "A_log": layer.decay.A_log,
        "D": layer.skip.D,
        "norm.weight": layer.readout_norm.weight,
        "out_proj.weight": layer.out.weight,
    }
    mixer.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    return mixer


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("width", [64, 128], ids=["2 heads", "4 heads"])
def test_equals_transformers_with_copied_weights(width, training):
    torch.manual_seed(0)
    layer = build("mamba2", width).layers[0]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    mixer = mixer_like(layer).train(training)
    x = torch.randn(2, 77, width, requires_grad=True)
    y, _ = layer.train(training).write(x, layer.initial_state(2))
    expected = x + mixer(layer.mixer_norm(x))
    assert_close(y.detach(), expected.detach(), 5e-6, "outputs")
    weight = torch.randn(y.shape)
    found, wanted = (torch.autograd.grad((out * weight).sum(), x)[0] for out in (y, expected))
    assert_close(found, wanted, 2e-5, "gradient of the input")


def test_gate_gradients_under_strong_decay():
    """Decays of up to e^-400 per token: gradients of A_log and dt_bias in float32 against the float64 step form."""
    torch.manual_seed(0)
    memory = build("mamba2", 64, a_min=50.0, a_max=200.0, dt_min=0.05, dt_max=2.0)
    gradients = {}
    for form, dtype in (("step", torch.float64), ("write", torch.float32)):
        memory.to(dtype).zero_grad()
        x = tokens(memory, 2, 70)
        y, state = step_through(memory, x) if form == "step" else memory.write(x)
        loss = y.square().sum() + sum(layer.S.square().sum() for layer in state.layers)
        loss.backward()
        names = [n for n, _ in memory.named_parameters() if n.endswith(("A_log", "dt_bias"))]
        gradients[form] = {n: memory.get_parameter(n).grad.clone() for n in names}
    for name, expected in gradients["step"].items():
        assert_close(gradients["write"][name], expected, 1e-3, f"gradient of {name}")
