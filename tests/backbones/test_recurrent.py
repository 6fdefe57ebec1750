"""What the recurrences with a matrix state have in common beyond the contract: prices, initial values, precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import available, build
from backbones.gates import HeadDecay, unit
from tests.backbones.contract import assert_close, make, step_through, tokens

# ECCBench, Appendix C.2, and docs/flops.md: MFLOPs at L = 1024 and 4096, floats of state per layer, weights
GOLDEN = {
    ("mamba2", 64): (463.7, 1853.3, 17536, 127872),
    ("mamba2", 128): (1835.8, 7337.6, 67840, 502272),
    ("gla", 64): (418.8, 1673.9, 512, 201216),
    ("gla", 128): (1039.1, 4153.4, 1024, 500736),
    ("retnet", 64): (535.3, 2139.6, 2816, 248832),
    ("retnet", 128): (1473.6, 5890.2, 5632, 694272),
    ("deltanet", 64): (428.2, 1711.7, 1600, 199680),
    ("deltanet", 128): (1061.1, 4241.5, 3200, 499200),
    ("gated_deltanet", 64): (551.0, 2202.5, 2816, 250368),
    ("gated_deltanet", 128): (2116.0, 8457.8, 5632, 995328),
    ("rwkv7", 64): (419.8, 1678.1, 1152, 192512),
    ("rwkv7", 128): (1494.6, 5974.1, 2304, 704512),
    ("mom", 64): (532.1, 2127.0, 27200, 215808),
    ("mom", 128): (1927.1, 7702.6, 54400, 852480),
}


def has_matrix_state(name: str) -> bool:
    return hasattr(build(name).initial_state(1).layers[0], "S")


NAMES = [name for name in available() if has_matrix_state(name)]
every = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize(("name", "width"), GOLDEN)
def test_price_state_and_weights_are_those_of_the_paper(name, width):
    memory = build(name, width)
    price = memory.price()
    state = memory.initial_state(1).layers[0].tensors()
    floats = sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
    found = (round(price.total(1025) / 1e6, 1), round(price.total(4097) / 1e6, 1), floats, price.weights)
    assert found == GOLDEN[name, width]


@every
@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_the_readout_is_not_lost_in_the_epsilon_of_its_norm(name, width):
    """With inputs that are too small at the start a mixer is switched off: its norm returns less than unit scale."""
    torch.manual_seed(0)
    memory = build(name, width)
    gains = []

    def measure(norm, inputs):
        o = inputs[0]
        scale = o.square().mean(-1) if name != "rwkv7" else o.var(-1, correction=0)
        gains.append((scale / (scale + norm.eps)).sqrt().mean().item())

    for layer in memory.layers:
        layer.readout_norm.register_forward_pre_hook(measure)
    memory.write(torch.randn(4, 128, width))
    assert len(gains) == 3
    assert min(gains) > 0.9, f"gains of the readout norms: {gains}"


@every
def test_every_parameter_learns(name):
    """At L = 1024; layer 0 of RWKV-7 has no value mix, so every parameter that exists is used."""
    memory = make(name, 64, torch.float32)
    x, q = tokens(memory, 2, 1024), tokens(memory, 2, 3, seed=5)
    y, state = memory.write(x)
    (y.square().mean() + memory.read(q, state).square().mean()).backward()
    silent = [n for n, p in memory.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not silent
    assert all(torch.isfinite(p.grad).all() for p in memory.parameters())


@every
@torch.no_grad()
def test_training_and_evaluation_mode_agree(name):
    memory = make(name, 64)
    x = tokens(memory, 2, 40)
    y = memory.eval().write(x)[0]
    assert torch.equal(memory.train().write(x)[0], y)


@every
@torch.no_grad()
def test_causal_to_rounding(name):
    """The contract asks for equality bit by bit; this holds also for those whose fast form rounds by chunk."""
    memory = make(name, 64)
    x = tokens(memory, 1, 80)
    y, _ = memory.write(x)
    for t in (1, 31, 40, 64, 79):
        changed = x.clone()
        changed[:, t] = -2 * x[:, t] + 1
        assert_close(memory.write(changed)[0][:, :t], y[:, :t], 1e-13, f"outputs before token {t}")


@every
@torch.no_grad()
def test_repeated_keys_in_float32(name):
    """With 16 symbols keys recur all the time, where an inverse by doubling loses its digits."""
    memory = make(name, 64)
    some, two, one = tokens(memory, 1, 100), tokens(memory, 1, 2).repeat(1, 50, 1), tokens(memory, 1, 1)
    x = torch.cat([some, two, one.expand(-1, 100, -1)])
    expected, _ = step_through(memory, x)
    found, _ = memory.float().write(x.float())
    for i, stream in enumerate(("16 symbols", "2 symbols", "1 symbol")):
        assert_close(found[i], expected[i], 1e-4, f"float32 write of {stream}")


@every
@torch.no_grad()
def test_state_holds_no_more_memory_than_it_counts(name):
    memory = build(name, 64)
    _, state = memory.write(torch.randn(2, 500, 64), outputs=False)
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state.tensors().values()}
    assert sum(held.values()) <= 1.1 * state.nbytes


@every
def test_decays_stay_float32_when_the_model_is_cast(name):
    """... and come back from a checkpoint as they were."""
    torch.manual_seed(0)
    memory = build(name, 64)
    decays = {n: m for n, m in memory.named_modules() if isinstance(m, HeadDecay)}
    before = {n: (m.A_log.detach().clone(), m.dt_bias.detach().clone()) for n, m in decays.items()}
    cast = build(name, 64).bfloat16()
    cast.load_state_dict(memory.state_dict())
    for key, (A_log, dt_bias) in before.items():
        module = cast.get_submodule(key)
        assert torch.equal(module.A_log, A_log)
        assert torch.equal(module.dt_bias, dt_bias)
    x = torch.randn(2, 40, 64).bfloat16()
    y, state = cast.write(x)
    assert y.dtype == torch.bfloat16
    assert state.layers[0].S.dtype == torch.float32
    assert torch.isfinite(y).all()
    assert torch.isfinite(cast.read(x[:, :3], state)).all()


@pytest.mark.parametrize("name", [n for n in NAMES if any(isinstance(m, HeadDecay) for m in build(n).modules())])
def test_initial_decays(name):
    torch.manual_seed(0)
    for module in (m for m in build(name, 128).modules() if isinstance(m, HeadDecay)):
        dt, A = F.softplus(module.dt_bias), module.A_log.exp()
        assert dt.min() >= 0.99e-3
        assert dt.max() <= 0.101
        assert A.min() >= (1 if name == "mamba2" else 1e-3) - 1e-6
        assert A.max() <= 16.001
        assert module.A_log._no_weight_decay
        assert module.dt_bias._no_weight_decay
        log_decay, _ = module(torch.randn(5, 7, len(A)) * 100)
        assert (log_decay <= 0).all()


def test_bounds_of_the_decays_must_be_in_order():
    with pytest.raises(ValueError, match="a_min=2"):
        HeadDecay(4, 2.0, 1.0, 1e-3, 0.1)
    with pytest.raises(ValueError, match="dt_min=0"):
        HeadDecay(4, 1.0, 2.0, 0.0, 0.1)


def test_unit_of_a_zero_vector_has_a_finite_gradient():
    x = torch.zeros(2, 16, requires_grad=True)
    unit(x).sum().backward()
    assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(unit(torch.full((16,), 3.0)), torch.full((16,), 0.25))


@pytest.mark.parametrize("name", NAMES)
def test_layers_say_which_kernel_runs(name, recurrence_form):
    layer = build(name, width=64).layers[0]
    assert f"{recurrence_form} (cpu" in layer.explain()
    layer.kernel = "reference"
    assert "reference (cpu" in layer.explain()


@pytest.mark.parametrize("name", ["rwkv7", "mom"])
def test_layers_with_large_heads_say_so(name):
    assert "state of 128 x 128 is too large" in build(name, width=256, head_dim=128).layers[0].explain()
