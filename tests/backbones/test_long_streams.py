"""Memories that change shape along a stream, where they do: at blocks, mini-batches, windows, a full memory.

The contract of all backbones, `test_contract.py`, stays short; here are the same identities around 16, 128, 256, 1024
and 1537 tokens, the count of every product against the declared price, and the state's declared size.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from backbones import build
from backbones.auxiliary import auxiliary_losses
from flops import price
from tests.backbones.contract import WIDTHS, assert_close, assert_states_close, make, tokens

NAMES = ("compressive_transformer", "deltaformer", "memory_mosaic", "ttt_mlp")
LENGTHS = (1, 15, 16, 17, 31, 32, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 1536, 1537)
EXACT = 1e-12


def one_layer(name, width, **settings):
    torch.manual_seed(1)
    memory = build(name, width=width, depth=1, **settings).double().eval()
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return memory


@torch.no_grad()
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_read_is_the_next_output(name, width):
    """A read of token t + 1 off the state after t tokens gives the output that the stream itself has there."""
    memory = make(name, width)
    x = tokens(memory, 1, LENGTHS[-1] + 1)
    y, states = memory.write_at(x, (*LENGTHS, x.shape[1]))
    for t, state in zip(LENGTHS, states, strict=False):
        assert_close(memory.read(x[:, t : t + 1], state), y[:, t : t + 1], EXACT, f"read after {t} tokens")


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_thirty_two_reads_at_once(name):
    memory = make(name, 64)
    _, state = memory.write(tokens(memory, 1, 300))
    q = tokens(memory, 1, 32, seed=5)
    together = memory.read(q, state)
    for i in range(32):
        assert_close(memory.read(q[:, i : i + 1], state), together[:, i : i + 1], EXACT, f"query {i} by itself")


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_pieces_at_every_boundary(name):
    """Writing up to a boundary of a block, window or mini-batch, or one token off it, and then the rest."""
    memory = one_layer(name, 64)
    x = tokens(memory, 1, 520)
    y, state = memory.write(x)
    for cut in (15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 384, 385, 511, 512, 513):
        y1, state1 = memory.write(x[:, :cut])
        y2, state2 = memory.write(x[:, cut:], state1)
        assert_close(torch.cat([y1, y2], 1), y, EXACT, f"outputs cut at {cut}")
        assert_states_close(state2, state, EXACT, f"cut at {cut}")


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_many_pieces_of_a_long_stream(name):
    memory = one_layer(name, 64)
    x, start, piecewise, ys = tokens(memory, 1, 1700), 0, None, []
    y, state = memory.write(x)
    for size in (1, 126, 2, 127, 128, 129, 300, 1, 500, 386):
        out, piecewise = memory.write(x[:, start : start + size], piecewise)
        ys.append(out)
        start += size
    assert start == x.shape[1]
    assert_close(torch.cat(ys, 1), y, EXACT, "outputs in pieces")
    assert_states_close(piecewise, state, EXACT, "in pieces")


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_write_is_the_step_form_past_a_boundary(name):
    memory = one_layer(name, 64)
    x = tokens(memory, 1, 280)
    y, states = memory.write_at(x, (250, 280))
    state = states[0]
    for t in range(250, 280):
        out, state = memory.step(x[:, t], state)
        assert_close(out, y[:, t], EXACT, f"step {t + 1}")
    assert_states_close(state, states[1], EXACT, "steps across 256")


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_causality_is_exact_past_a_boundary(name):
    memory = one_layer(name, 64)
    x = tokens(memory, 1, 300)
    y, _ = memory.write(x)
    for t in (100, 127, 128, 200, 255, 256, 299):
        changed = x.clone()
        changed[:, t] = -2 * x[:, t] + 1
        z, _ = memory.write(changed)
        assert torch.equal(z[:, :t], y[:, :t]), f"token {t} changed an earlier output"


@torch.no_grad()
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_counted_products_are_the_declared_ones(name, width):
    """Every product of one step, at the tokens where the price of a step changes."""
    memory = one_layer(name, width)
    declared = memory.price()
    times = (1, 2, 16, 17, 18, 127, 128, 129, 256, 384, 385, 512, 513, 1025, 1408, 1535, 1664, 1665, 2049)
    x = tokens(memory, 1, times[-1])
    states = [memory.initial_state(1), *memory.write_at(x, [t - 1 for t in times[1:]])[1]]
    for t, state in zip(times, states, strict=True):
        with FlopCounterMode(display=False) as counter:
            memory.step(x[:, t - 1], state)
        assert counter.get_total_flops() == declared.total(t) - declared.total(t - 1), f"token {t}"


# MFLOPs of three layers over a stream and one query: spec "flops", table A.3.
GOLDEN = {
    "deltaformer": (13.9, 1211.5, 4033.2, 14508.5, 34.3, 2627.7, 8475.6, 29835.1),
    "ttt_mlp": (15.0, 468.3, 936.2, 1872.1, 47.9, 1493.9, 2986.5, 5971.8),
    "memory_mosaic": (23.9, 1133.6, 3071.7, 9364.0, 94.9, 3728.2, 9064.1, 24567.8),
    "compressive_transformer": (20.1, 875.3, 1817.1, 3711.3, 79.1, 3020.7, 6188.5, 12550.1),
}


@pytest.mark.parametrize("name", NAMES)
def test_golden_prices(name):
    prices = (price(name, width=width) for width in WIDTHS)
    found = [round(p.total(L + 1) / 1e6, 1) for p in prices for L in (32, 1024, 2048, 4096)]
    assert tuple(found) == GOLDEN[name]


STATE_FLOATS = {
    "deltaformer": lambda D, L: 2 * D * L,
    "ttt_mlp": lambda D, L: 266 * D + 2 * D * min(L, 16),
    "memory_mosaic": lambda D, L: 2 * D * L + 2 * D,
    "compressive_transformer": lambda D, L: 3 * D * {16: 16, 200: 200, 300: 144 + 44, 1700: 193 + 36}[L],
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_state_sizes(name, width):
    """Bytes held per layer and stream, as the pages of the backbones declare them."""
    memory = build(name, width=width)
    for L in (16, 200, 300, 1700):
        assert memory.state_bytes(L) == 3 * 4 * STATE_FLOATS[name](width, L)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["large", "equal", "zeros", "two symbols"])
def test_harsh_streams_have_finite_outputs_and_gradients(name, case):
    """In float32 and training mode, over three blocks."""
    torch.manual_seed(0)
    memory = build(name, width=64, **({"compress_grad": "end_to_end"} if "compressive" in name else {}))
    x = tokens(memory, 1, 390)
    x = {
        "large": 100 * x,
        "equal": x[:, :1].expand_as(x),
        "zeros": 0 * x,
        "two symbols": x[:, :1] * (torch.arange(390) % 2)[:, None] + 1e-5 * x,
    }[case].requires_grad_()
    y, state = memory.write(x)
    answers = memory.read(x[:, :3], state)
    (y.square().sum() + answers.square().sum()).backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(answers).all()
    grads = {n: p.grad for n, p in memory.named_parameters() if p.grad is not None}
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(g).all() for g in grads.values()), [n for n, g in grads.items() if not g.isfinite().all()]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns(name):
    """Off a state, without the top layer's outputs, after 300 tokens: all but what 12 blocks of the Compressive
    Transformer would need (see its own tests)."""
    memory = make(name, 64)
    x = tokens(memory, 1, 300)
    with auxiliary_losses() as losses:
        answers = memory.read(tokens(memory, 1, 4, seed=5), memory.write(x, outputs=False)[1])
        (answers.square().sum() + sum(losses.values())).backward()
    still = {n for n, p in memory.named_parameters() if p.grad is None or p.grad.abs().max() == 0}
    assert {n for n in still if "long_term" not in n and "compress2" not in n} == set()


@torch.no_grad()
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_memory_matters_from_the_start(name, width):
    """At initialisation an answer already depends on what the stream was: the memory does not begin switched off."""
    torch.manual_seed(0)
    memory = build(name, width=width)
    q = tokens(memory, 1, 8, seed=5)
    answers = [memory.read(q, memory.write(tokens(memory, 1, 100, seed=s))[1]) for s in (2, 3)]
    difference = (answers[0] - answers[1]).std() / answers[0].std()
    assert 0.02 < difference < 1, f"{difference:.3f} of the answer's spread comes from the stream"
