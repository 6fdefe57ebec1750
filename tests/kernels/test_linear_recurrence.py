"""The linear recurrence: every form against the loop over tokens, and the properties that other libraries broke.

Upstream reports behind a test are named in it; most are listed in flash-linear-attention (FLA) or state-spaces/mamba.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from kernels import linear_read, linear_recurrence, linear_state, linear_step
from kernels.linear_recurrence import chunked, tiles
from kernels.linear_recurrence.inverse import unit_lower_inverse
from kernels.testing import CASES, RecurrenceInputs, recurrence_inputs, rms_ratio

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 1e-2}
LENGTHS = [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 130]

every_form = pytest.mark.usefixtures("recurrence_form")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def results(inputs: RecurrenceInputs, weigh="both", **options) -> list[torch.Tensor]:
    """Output, final state, and the gradients of a fixed loss on either or both, with respect to every input."""
    o, state = linear_recurrence(**inputs.arguments(), **options)
    loss = 0.0
    for name, x in (("output", o), ("state", state)):
        if weigh in (name, "both"):
            weights = torch.linspace(-2, 2, x.numel(), dtype=torch.float64).view(x.shape).sin()
            loss = loss + (x.double() * weights).sum()
    leaves = inputs.tensors()
    grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return [o, state, *grads]


def worst(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest of all error ratios; infinite if anything is not finite."""
    if not all(x.isfinite().all() for x in found):
        return float("inf")
    return max(rms_ratio(a, b) for a, b in zip(found, expected, strict=True))


@every_form
class TestAgainstTheLoop:
    @every_case
    @pytest.mark.parametrize("length", LENGTHS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_output_state_and_every_gradient(self, case, length, dtype):
        inputs = recurrence_inputs(case, length=length, with_state=length % 2 == 1)
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        found = results(inputs.leaves(dtype))
        assert worst(found, expected) < TOLERANCE[dtype]

    @every_case
    def test_bfloat16_inputs(self, case):
        inputs = recurrence_inputs(case, length=65).map(lambda x: x.bfloat16())
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        found = results(inputs.leaves(torch.bfloat16))
        assert found[0].dtype == torch.bfloat16
        assert found[1].dtype == torch.float32
        assert worst(found, expected) < TOLERANCE[torch.bfloat16]

    @every_case
    @pytest.mark.parametrize("length", [1000, 2048])
    def test_long_streams(self, case, length):
        inputs = recurrence_inputs(case, batch=1, length=length)
        expected = linear_recurrence(**inputs.arguments(), kernel="reference")
        for dtype in (torch.float64, torch.float32):
            found = linear_recurrence(**inputs.map(lambda x, dtype=dtype: x.to(dtype)).arguments())
            assert worst(found, expected) < TOLERANCE[dtype]

    @every_case
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_harsh_gates_and_repeated_keys(self, case, dtype):
        """FLA issues 77 and 122 (strong gates), 537 and 99 (repeated keys); QwenLM/FlashQLA 28 (gate gradients)."""
        inputs = recurrence_inputs(case, length=130, harsh=True)
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        assert worst(results(inputs.leaves(dtype)), expected) < TOLERANCE[dtype]

    @every_case
    def test_a_promised_lowest_decay_changes_the_chunks_only(self, case):
        inputs = recurrence_inputs(case, length=70)
        if case.gate != "channel":
            pytest.skip("only a gate per channel asks for the promise")
        lowest = float(inputs.log_decay.min())
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        for promise in (lowest, 4 * lowest, -1000.0):
            assert worst(results(inputs.leaves(torch.float64), min_log_decay=promise), expected) < 1e-10


@every_form
class TestGradients:
    @every_case
    def test_of_a_loss_on_the_final_state_only(self, case):
        """FLA 459: the decay's gradient lacked the final state's share. A top layer trains through nothing else."""
        inputs = recurrence_inputs(case, length=70)
        expected = results(inputs.leaves(torch.float64), weigh="state", kernel="reference")
        assert worst(results(inputs.leaves(torch.float64), weigh="state"), expected) < 1e-10

    @every_case
    def test_of_the_state_alone(self, case):
        inputs = recurrence_inputs(case, length=70)
        expected = results(inputs.leaves(torch.float64), weigh="state", kernel="reference")
        leaves = inputs.leaves(torch.float64)
        arguments = leaves.arguments()
        del arguments["q"]
        state = linear_state(**arguments)
        weights = torch.linspace(-2, 2, state.numel(), dtype=torch.float64).view(state.shape).sin()
        grads = torch.autograd.grad((state * weights).sum(), leaves.tensors()[1:])
        assert worst([state, *grads], [expected[1], *expected[3:]]) < 1e-10

    @every_case
    def test_do_not_depend_on_the_chunk(self, case):
        """FLA 984: gradients of k and beta were wrong for one chunk size only."""
        inputs = recurrence_inputs(case, length=130)
        expected = results(inputs.leaves(torch.float64), chunk=16)
        for chunk in (7, 32, 64, 130):
            assert worst(results(inputs.leaves(torch.float64), chunk=chunk), expected) < 1e-10

    @every_case
    def test_do_not_depend_on_the_tiles(self, case, monkeypatch):
        inputs = recurrence_inputs(case, batch=3, length=70)
        expected = results(inputs.leaves(torch.float64))
        for elements in (1, 4096):
            monkeypatch.setattr(tiles, "TILE_ELEMENTS", elements)
            assert worst(results(inputs.leaves(torch.float64)), expected) < 1e-10

    @pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gate in ("head", "channel")])
    def test_of_gates_that_are_strong_everywhere(self, name):
        """Their gradients are tiny differences of what does not depend on them; rounding must not drown them."""
        inputs = recurrence_inputs(CASES[name], length=70)
        inputs.log_decay = (inputs.log_decay - 5).clamp_min(-6)
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        assert worst(results(inputs.leaves(torch.float32)), expected) < TOLERANCE[torch.float32]

    @every_case
    def test_of_inputs_that_are_views(self, case):
        """Slices of one fused projection are not contiguous."""
        inputs = recurrence_inputs(case, length=40)
        expected = results(inputs.leaves(torch.float64))
        wide = inputs.map(lambda x: torch.stack([x, x], -1)).leaves(torch.float64)
        found = results(replace(wide, **wide.map(lambda x: x[..., 0]).arguments()))
        assert worst(found, expected) < 1e-12


@every_form
class TestLayouts:
    """Strides, aliases and lazy views of the arguments make no difference."""

    @every_case
    def test_heads_before_tokens_in_memory(self, case):
        inputs = recurrence_inputs(case, length=70)
        expected = results(inputs.leaves(torch.float64))
        turned = inputs.map(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim > 2 else x)
        assert not turned.v.is_contiguous()
        assert worst(results(turned.map(torch.Tensor.requires_grad_)), expected) < 1e-12

    @every_case
    @pytest.mark.parametrize("key_dim", [1, 8])
    def test_the_incoming_gradient_is_left_alone(self, case, key_dim):
        """The gradient of the state also flows past the recurrence here: neither path may change the other's."""
        inputs = recurrence_inputs(replace(case, key_dim=key_dim), length=20)
        leaves = inputs.leaves(torch.float64)
        beside = torch.ones_like(inputs.state.transpose(1, 2)).requires_grad_()
        doubled = 2 * beside  # before the recurrence, so that the backward pass comes to it after
        _, state = linear_recurrence(**leaves.arguments())
        weights = torch.linspace(-2, 2, state.numel(), dtype=torch.float64).view(beside.shape)
        ((state.transpose(1, 2) + doubled) * weights).sum().backward()
        assert torch.equal(beside.grad, 2 * weights)

    @every_case
    def test_a_state_of_one_row_does_not_hold_the_others(self, case):
        inputs = recurrence_inputs(replace(case, key_dim=1), length=70)
        _, state = linear_recurrence(**inputs.leaves(torch.float64).arguments())
        assert state.untyped_storage().nbytes() == state.nbytes

    def test_a_lazily_negated_beta(self):
        inputs = recurrence_inputs(CASES["deltanet"], length=20)
        expected = linear_recurrence(**inputs.arguments())
        inputs.erase = torch.complex(torch.zeros_like(inputs.erase), -inputs.erase).conj().imag
        assert inputs.erase.is_neg()
        assert worst(linear_recurrence(**inputs.arguments()), expected) < 1e-14

    @every_case
    def test_second_derivatives_are_refused_not_wrong(self, case):
        leaves = recurrence_inputs(case, length=5).leaves(torch.float64)
        loss = linear_recurrence(**leaves.arguments())[0].sum()
        (grad,) = torch.autograd.grad(loss, leaves.v, create_graph=True)
        with pytest.raises(RuntimeError, match="kernel='reference' can be differentiated again"):
            grad.square().sum().backward()

    @pytest.mark.parametrize("name", ["linear attention", "deltanet", "low rank"])
    def test_fake_tensors_have_shapes_and_no_memory(self, name):
        """Gates are looked at, which a fake tensor does not allow."""
        inputs = recurrence_inputs(CASES[name], length=5)
        with FakeTensorMode() as mode:
            o, state = linear_recurrence(**inputs.map(mode.from_tensor).arguments())
        assert o.shape == inputs.v.shape
        assert state.shape == inputs.state.shape


@every_form
class TestContinuing:
    @every_case
    @pytest.mark.parametrize("cut", [1, 2, 3, 63, 64, 65, 69])
    def test_two_pieces_equal_the_whole(self, case, cut):
        """FLA 90 and 1140, mamba 500, 739 and 1013: states ignored or gradients lost when a write continues."""
        inputs = recurrence_inputs(case, length=70)
        expected = results(inputs.leaves(torch.float64))
        leaves = inputs.leaves(torch.float64)
        first, second = leaves.tokens(slice(0, cut)), leaves.tokens(slice(cut, None))
        o_first, state = linear_recurrence(**{**first.arguments(), "state": leaves.state})
        o_second, state = linear_recurrence(**{**second.arguments(), "state": state})
        o = torch.cat([o_first, o_second], 1)
        loss = sum(
            (x * torch.linspace(-2, 2, x.numel(), dtype=torch.float64).view(x.shape).sin()).sum() for x in (o, state)
        )
        grads = torch.autograd.grad(loss, leaves.tensors())
        assert worst([o, state, *grads], expected) < 1e-10

    @every_case
    def test_a_state_does_not_hold_the_stream_in_memory(self, case):
        inputs = recurrence_inputs(case, batch=1, length=70)
        _, state = linear_recurrence(**inputs.arguments())
        assert state.untyped_storage().nbytes() == state.nbytes

    @every_case
    def test_a_stream_does_not_depend_on_its_neighbours(self, case):
        inputs = recurrence_inputs(case, batch=3, length=70)
        o, state = linear_recurrence(**inputs.arguments())
        one = inputs.map(lambda x: x if x.ndim == 1 else x[1:2])
        o_one, state_one = linear_recurrence(**one.arguments())
        assert rms_ratio(o_one, o[1:2]) < 1e-12
        assert rms_ratio(state_one, state[1:2]) < 1e-12

    @every_case
    @pytest.mark.parametrize("token", [0, 15, 16, 40])
    def test_the_past_does_not_see_the_future(self, case, token):
        inputs = recurrence_inputs(case, length=50)
        before, _ = linear_recurrence(**inputs.arguments())
        for x in inputs.tensors()[:3]:
            x[:, token] += 1
        after, _ = linear_recurrence(**inputs.arguments())
        assert torch.equal(before[:, :token], after[:, :token])
        assert not torch.equal(before[:, token:], after[:, token:])


class TestReading:
    @every_case
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_each_query_is_one_more_token(self, case, dtype):
        inputs = recurrence_inputs(case, length=9).map(lambda x: x.to(dtype))
        read = linear_read(**inputs.arguments(), scale=0.3)
        for i in range(9):
            one = inputs.tokens(slice(i, i + 1))
            expected, _ = linear_recurrence(**{**one.arguments(), "state": inputs.state}, kernel="reference", scale=0.3)
            assert rms_ratio(read[:, i : i + 1], expected) < TOLERANCE[dtype]

    @every_case
    def test_has_gradients(self, case):
        inputs = recurrence_inputs(case, length=5)
        leaves = inputs.leaves(torch.float64)
        read = linear_read(**leaves.arguments())
        grads = torch.autograd.grad((read * read.detach().cos()).sum(), leaves.tensors())
        leaves = inputs.leaves(torch.float64)
        steps = []
        for i in range(5):
            one = leaves.tokens(slice(i, i + 1))
            steps.append(linear_recurrence(**{**one.arguments(), "state": leaves.state}, kernel="reference")[0])
        steps = torch.cat(steps, 1)
        expected = torch.autograd.grad((steps * steps.detach().cos()).sum(), leaves.tensors())
        assert worst([read, *grads], [steps, *expected]) < 1e-10

    @every_case
    def test_leaves_the_state_alone_and_queries_apart(self, case):
        """mamba and transformers step in place; a loop of reads over one state would contaminate it."""
        inputs = recurrence_inputs(case, length=6)
        kept = inputs.state.clone()
        read = linear_read(**inputs.arguments())
        assert torch.equal(inputs.state, kept)
        for x in inputs.tensors()[:3]:
            x[:, 2] += 1
        other = linear_read(**inputs.arguments())
        rest = [0, 1, 3, 4, 5]
        assert torch.equal(read[:, rest], other[:, rest])
        assert not torch.equal(read[:, 2], other[:, 2])


def one_token(inputs: RecurrenceInputs, i: int) -> dict:
    """Arguments of `linear_step`, without the state."""
    return inputs.tokens(slice(i, i + 1)).map(lambda x: x if x.ndim == 1 else x.squeeze(1)).arguments()


class TestStep:
    @every_case
    def test_is_the_reference(self, case):
        inputs = recurrence_inputs(case, length=3)
        expected, final = linear_recurrence(**inputs.arguments(), kernel="reference", scale=0.5)
        state = inputs.state
        for i in range(3):
            o, state = linear_step(**{**one_token(inputs, i), "state": state}, scale=0.5)
            assert torch.equal(o, expected[:, i])
        assert torch.equal(state, final)

    @every_case
    def test_shows_its_price_to_the_flop_counter(self, case):
        """Passes over the state, 2 K V each: read and write; and for an erase one (delta) or two (low rank) more."""
        inputs = recurrence_inputs(case, batch=1, length=1, heads=3)
        token = {**one_token(inputs, 0), "state": inputs.state}
        with FlopCounterMode(display=False) as counter:
            linear_step(**token)
        passes = {"none": 2, "delta": 3, "low rank": 4}[case.erase]
        assert counter.get_total_flops() == passes * 2 * case.key_dim * case.value_dim * 3


@every_form
class TestSpecialCases:
    def test_gated_delta_rule_without_decay_is_the_delta_rule(self):
        """FLA 104."""
        inputs = recurrence_inputs(CASES["gated_deltanet"], length=50)
        inputs.log_decay = torch.zeros_like(inputs.log_decay)
        gated, plain = results(inputs.leaves(torch.float64)), replace(inputs, log_decay=None).leaves(torch.float64)
        for found, expected in zip(gated[:5], results(plain)[:5], strict=True):
            assert rms_ratio(found, expected) < 1e-14

    def test_constant_decay_is_the_same_gate_at_every_token(self):
        inputs = recurrence_inputs(CASES["retnet"], length=50)
        spread = replace(inputs, log_decay=inputs.log_decay.expand(2, 50, 2))
        assert worst(linear_recurrence(**spread.arguments()), linear_recurrence(**inputs.arguments())) < 1e-14

    @pytest.mark.parametrize("name", ["simple gla", "gated_deltanet", "head low rank"])
    def test_equal_channels_are_a_gate_per_head(self, name):
        inputs = recurrence_inputs(CASES[name], length=50)
        gate = inputs.log_decay.unsqueeze(-1).expand(-1, -1, -1, CASES[name].key_dim)
        found = linear_recurrence(**replace(inputs, log_decay=gate).arguments())
        assert worst(found, linear_recurrence(**inputs.arguments())) < 1e-12

    def test_the_delta_rule_is_a_low_rank_erase(self):
        inputs = recurrence_inputs(CASES["gated_deltanet"], length=50)
        beta = inputs.erase.unsqueeze(-1)
        decayed = inputs.log_decay.exp().unsqueeze(-1)
        pair = replace(inputs, erase=(-beta * inputs.k * decayed, inputs.k), v=beta * inputs.v)
        assert worst(linear_recurrence(**pair.arguments()), linear_recurrence(**inputs.arguments())) < 1e-12

    def test_one_token_by_hand(self):
        """FLA 351: whether w is a decay or its logarithm. o = (e^g S + a b^T S + k v^T)^T q, at 1 x 1."""
        one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        o, state = linear_recurrence(
            2 * one, 3 * one, 5 * one, log_decay=-one, erase=(0.5 * one, 0.25 * one), state=7 * one
        )
        expected = 7 * torch.exp(torch.tensor(-1.0, dtype=torch.float64)) + 0.125 * 7 + 15
        torch.testing.assert_close(state.squeeze(), expected)
        torch.testing.assert_close(o.squeeze(), 2 * expected)

    @every_case
    def test_decays_to_nothing(self, case):
        """Beyond every exponent: the past is gone, and nothing overflows."""
        if case.gate == "none":
            pytest.skip("has no gate")
        inputs = recurrence_inputs(case, length=40)
        inputs.log_decay = torch.full_like(inputs.log_decay, -1000.0)
        for dtype in (torch.float64, torch.float32):
            found = results(inputs.leaves(dtype))
            expected = results(inputs.leaves(torch.float64), kernel="reference")
            assert worst(found[:2], expected[:2]) < TOLERANCE[dtype]
            assert all(x.isfinite().all() for x in found)

    @every_case
    def test_a_decay_of_nothing_at_all(self, case):
        """The logarithm of 0."""
        if case.gate == "none":
            pytest.skip("has no gate")
        inputs = recurrence_inputs(case, length=40)
        inputs.log_decay = inputs.log_decay.clone()
        inputs.log_decay.view(-1)[::5] = -torch.inf
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        found = results(inputs.leaves(torch.float64))
        assert worst(found[:2], expected[:2]) < 1e-10
        assert all(x.isfinite().all() for x in found)

    @pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "channel delta"])
    @pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
    def test_betas_at_their_ends(self, name, beta):
        inputs = recurrence_inputs(CASES[name], length=130)
        inputs.erase = torch.full_like(inputs.erase, beta)
        expected = results(inputs.leaves(torch.float64), kernel="reference")
        assert worst(results(inputs.leaves(torch.float32)), expected) < TOLERANCE[torch.float32]

    @pytest.mark.parametrize("chunk", [16, 32, 64])
    def test_near_identical_keys(self, chunk):
        """FLA 537 and 99: an inverse by powers loses everything here (1e+32), substitution nothing."""
        inputs = recurrence_inputs(CASES["deltanet"], length=256)
        inputs.k = F.normalize(inputs.k[:, :1] + 1e-3 * inputs.k, dim=-1)
        inputs.erase = torch.full_like(inputs.erase, 0.999)
        expected = linear_recurrence(**inputs.arguments(), kernel="reference")
        found = linear_recurrence(**inputs.map(lambda x: x.float()).arguments(), chunk=chunk)
        assert worst(found, expected) < 3e-6


@pytest.mark.parametrize("size", [1, 2, 16, 17, 31, 32, 64])
def test_the_inverse_of_many_triangles(size):
    a = torch.randn(15, size, size, dtype=torch.float64).tril(-1) / 4
    identity = torch.eye(size, dtype=torch.float64)
    inverse = unit_lower_inverse(a)
    assert rms_ratio(inverse @ (identity + a), identity.expand_as(a)) < 1e-12
    assert inverse.is_contiguous()


class TestArguments:
    def test_autocast_does_not_reach_the_core(self):
        inputs = recurrence_inputs(CASES["gated_deltanet"], length=40, dtype=torch.float32)
        expected = linear_recurrence(**inputs.arguments())
        with torch.autocast("cpu", torch.bfloat16):
            found = linear_recurrence(**inputs.arguments())
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])

    def test_a_state_from_a_float32_write_serves_bfloat16_queries(self):
        inputs = recurrence_inputs(CASES["gla"], length=4)
        narrow = inputs.map(lambda x: x.bfloat16())
        read = linear_read(**{**narrow.arguments(), "state": inputs.state.float()})
        assert read.dtype == torch.bfloat16

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"q": torch.zeros(2, 5, 2, 8)}, "q has shape"),
            ({"log_decay": torch.zeros(2, 5)}, r"log_decay has shape \(2, 5\)"),
            ({"log_decay": torch.ones(2)}, "at most 0"),
            ({"log_decay": -torch.ones(2), "min_log_decay": -0.5}, "below the promised"),
            ({"erase": torch.zeros(2, 5, 2, 16)}, "beta"),
            ({"erase": (torch.zeros(2, 5, 2, 16), torch.zeros(2, 5, 2, 8))}, "erase's b"),
            ({"state": torch.zeros(2, 2, 16, 8)}, "state has shape"),
            ({"v": torch.zeros(2, 0, 2, 16)}, "v must be .* every size at least 1"),
            ({"q": torch.zeros(2, 5, 2, 0), "k": torch.zeros(2, 5, 2, 0)}, "k must be .* every size at least 1"),
            ({"k": torch.zeros(2, 5, 2, 16, device="meta")}, "v is on cpu and another argument on meta"),
            ({"chunk": 0}, "chunk=0 must be at least 1"),
            ({"chunk": 16, "kernel": "native"}, "cannot use kernel 'native': it has no chunks to choose"),
            ({"kernel": "triton"}, "choose from auto, native, chunk, reference"),
        ],
    )
    def test_mistakes_are_named(self, change, message):
        inputs = recurrence_inputs(CASES["linear attention"], length=5)
        with pytest.raises(ValueError, match=message):
            linear_recurrence(**{**inputs.arguments(), **change})


MEMORY_PROBE = """
import torch
from pathlib import Path
from kernels import linear_recurrence
from kernels.testing import CASES, recurrence_inputs
torch.set_num_threads(1)
case = CASES["{name}"]
width, heads = 64, 64 // case.width_per_head
inputs = recurrence_inputs(case, batch=1, length=65536, heads=heads, dtype=torch.float32)
with torch.no_grad():
    o, state = linear_recurrence(**inputs.arguments(), min_log_decay=case.lowest)
# Not getrusage: its maximum is inherited from the process of the tests.
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line[:6] == "VmHWM:")
print(peak, state.nbytes, o.isfinite().all().item())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", list(CASES)[:6])
def test_a_stream_of_65536_tokens_fits_in_two_gigabytes(name):
    out = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE.format(name=name)], capture_output=True, text=True, check=True
    ).stdout.split()
    case = CASES[name]
    assert int(out[0]) < 2 * 1024 * 1024  # kilobytes, the interpreter and the float64 inputs included
    assert int(out[1]) == 64 // case.width_per_head * case.key_dim * case.value_dim * 4
    assert out[2] == "True"


def test_the_plan_of_chunks():
    """A factorised decay must stay within its exponents: the stronger the decay, the shorter the chunk."""
    assert chunked._safe_size(32, -1.0, "linear") == 32
    assert chunked._safe_size(32, -0.6066, "low rank") == 32
    for lowest in (-5.0, -20.0, -60.0):
        size = chunked._safe_size(32, lowest, "linear")
        assert size == 1 or size // 2 * -lowest <= chunked.MAX_EXPONENT
    assert chunked._safe_size(32, chunked.LOWEST, "low rank") == 1
