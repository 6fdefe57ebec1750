"""The linear recurrence against the slow reference functions of other libraries, which share no code with ours.

flash-linear-attention's (FLA) naive functions and transformers' torch paths run on a CPU. Nearly all compute in float32
whatever comes in, so 2e-5 is their floor; our own float64 loop is the oracle for tighter claims.
"""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from kernels import linear_recurrence
from kernels.testing import CASES, recurrence_inputs, rms_ratio

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FLA warns that there is no GPU
    pytest.importorskip("fla", reason="pip install 'ecclab[test]' for the oracles of flash-linear-attention")
    from fla.ops.delta_rule.naive import delta_rule_chunkwise, delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise, dplr_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import (
        naive_chunk_simple_gla,
        naive_parallel_simple_gla,
        naive_recurrent_simple_gla,
    )
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

pytestmark = pytest.mark.usefixtures("recurrence_form")

TOLERANCE = 2e-5
LENGTHS = [1, 31, 64, 96, 130]


def heads_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def inputs_for(name: str, length: int):
    return recurrence_inputs(CASES[name], length=length, dtype=torch.float32, seed=length)


def check(found, expected, expected_state=None):
    assert rms_ratio(found[0], expected) < TOLERANCE
    if expected_state is not None:
        assert rms_ratio(found[1], expected_state) < TOLERANCE


@pytest.mark.parametrize("length", LENGTHS)
def test_gla(length):
    x = inputs_for("gla", length)
    o, state = naive_recurrent_gla(x.q, x.k, x.v, x.log_decay, initial_state=x.state, output_final_state=True)
    check(linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5), o, state)


@pytest.mark.parametrize("length", LENGTHS)
def test_retention(length):
    x = inputs_for("retnet", length)
    x.state = None
    o = naive_retention(*heads_first(x.q, x.k, x.v)).transpose(1, 2)
    check(linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5), o)


@pytest.mark.parametrize("length", LENGTHS)
def test_simple_gla(length):
    x = inputs_for("simple gla", length)
    found = linear_recurrence(**x.arguments(), scale=0.25)
    check(found, *naive_recurrent_simple_gla(x.q, x.k, x.v, x.log_decay, scale=0.25, initial_state=x.state))
    o, state = naive_chunk_simple_gla(
        x.q, x.k, x.v, x.log_decay, initial_state=x.state, output_final_state=True, scale=0.25
    )
    check(found, o, state)
    x.state = None
    o, _ = naive_parallel_simple_gla(x.q, x.k, x.v, x.log_decay, scale=0.25)
    check(linear_recurrence(**x.arguments(), scale=0.25), o)


@pytest.mark.parametrize("length", LENGTHS)
def test_delta_rule(length):
    x = inputs_for("deltanet", length)
    found = linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5)
    o, state = delta_rule_recurrence(*heads_first(x.q, x.k, x.v, x.erase), initial_state=x.state)
    check(found, o.transpose(1, 2), state)


def test_delta_rule_in_float64():
    """The one upstream function that keeps float64."""
    x = recurrence_inputs(CASES["deltanet"], length=96, with_state=False)
    o, state = delta_rule_chunkwise(*heads_first(x.q, x.k, x.v, x.erase), chunk_size=32)
    found = linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5)
    assert rms_ratio(found[0], o.transpose(1, 2)) < 1e-12
    assert rms_ratio(found[1], state) < 1e-12


@pytest.mark.parametrize("length", LENGTHS)
def test_gated_delta_rule(length):
    x = inputs_for("gated_deltanet", length)
    found = linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5)
    options = {"initial_state": x.state, "output_final_state": True}
    check(found, *naive_recurrent_gated_delta_rule(x.q, x.k, x.v, x.erase, x.log_decay, **options))
    check(found, *naive_chunk_gated_delta_rule(x.q, x.k, x.v, x.log_decay, x.erase, **options))
    for function in (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule):
        # Unwrapped: with FLA installed these names lead to Triton kernels, which a CPU cannot run.
        check(found, *inspect.unwrap(function)(x.q, x.k, x.v, g=x.log_decay, beta=x.erase, **options))


@pytest.mark.parametrize("length", LENGTHS)
def test_rwkv7(length):
    x = inputs_for("rwkv7", length)
    a, b = x.erase
    found = linear_recurrence(**x.arguments(), scale=x.q.shape[-1] ** -0.5)
    # Their alpha reads the state and their beta writes what was read: our b and a.
    o, state = dplr_recurrence(*heads_first(x.q, x.k, x.v, b, a, x.log_decay), initial_state=x.state)
    check(found, o.transpose(1, 2), state)
    if length % 16 == 0:
        o, state = dplr_chunkwise(*heads_first(x.q, x.k, x.v, b, a, x.log_decay), initial_state=x.state, chunk_size=16)
        check(found, o.transpose(1, 2), state)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("heads", [2, 4])
def test_mamba2(length, heads):
    x = recurrence_inputs(CASES["mamba2"], length=length, heads=heads, dtype=torch.float32)
    decay_rate = -torch.linspace(1, 8, heads)
    dt = 0.1 * torch.rand(2, length, heads)
    o, state = inspect.unwrap(mamba2_chunk_scan)(
        x.v, dt, decay_rate, x.k, x.q, 32, initial_states=x.state.transpose(-1, -2), return_final_states=True
    )
    found = linear_recurrence(x.q, x.k, dt.unsqueeze(-1) * x.v, log_decay=dt * decay_rate, state=x.state)
    check(found, o, state.transpose(-1, -2))
