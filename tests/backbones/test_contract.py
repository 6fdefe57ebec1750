"""The contract of every registered backbone, at both widths of the paper, in float64 unless said.

`pytest tests/backbones/test_contract.py -k gla` checks one. A layer that cannot pass a test names it in `not_able`
with the reason.
"""

from __future__ import annotations

import pytest
import torch

from backbones import available, lookup
from kernels.linear_recurrence import native
from tests.backbones.contract import WIDTHS, assert_close, assert_states_close, make, step_through, tokens
from tests.conftest import choose_recurrence

NAMES = available()
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 130)
TIGHT = 1e-9


CHUNKED = [name for name in NAMES if hasattr(lookup(name).layer, "kernel")]
"""Whose core is the linear recurrence: once more with its chunked form, which runs where there is no C compiler."""
ROUNDED_BY_CHUNK = {
    "gla": "in chunks, exponents are taken about the middle of a chunk",
    "rwkv7": "in chunks, exponents are taken about the middle of a chunk",
    "mom": "chunks are as long as the largest load of a stream, if that is short",
}
"""Where a later token of the same chunk may change the rounding of an output, if nothing more."""
MEMORIES = [(name, width, None) for name in NAMES for width in WIDTHS] + [(name, 64, "chunk") for name in CHUNKED]


@pytest.fixture(params=MEMORIES, ids=lambda p: "-".join(str(x) for x in p if x))
def memory(request, monkeypatch):
    name, width, form = request.param
    reason = lookup(name).layer.not_able.get(request.function.__name__)
    if request.function is test_causality_is_exact and (form == "chunk" or native.unable("cpu")):
        reason = ROUNDED_BY_CHUNK.get(name)
    if reason:
        pytest.skip(f"{name}: {reason}")
    if form:
        choose_recurrence(form, monkeypatch)
    return make(name, width)


@torch.no_grad()
def test_read_is_the_next_output(memory):
    """read(q, write(x)) = last output over x + [q], several queries at once, at every length."""
    q = tokens(memory, 2, 3, seed=5)
    for L in LENGTHS:
        x = tokens(memory, 2, L)
        answers = memory.read(q, memory.write(x, outputs=False)[1])
        for i in range(q.shape[1]):
            y, _ = memory.write(torch.cat([x, q[:, i : i + 1]], 1))
            assert_close(answers[:, i], y[:, -1], TIGHT, f"query {i} after {L} tokens")


@torch.no_grad()
def test_a_query_before_the_first_token(memory):
    q = tokens(memory, 2, 3)
    answers = memory.read(q, memory.initial_state(2))
    for i in range(3):
        assert_close(answers[:, i], memory.write(q[:, i : i + 1])[0][:, 0], TIGHT, f"query {i} of an empty stream")


@torch.no_grad()
def test_write_is_the_step_form(memory):
    x = tokens(memory, 2, 67)
    y, state = memory.write(x)
    y_step, state_step = step_through(memory, x)
    assert_close(y, y_step, TIGHT, "outputs")
    assert_states_close(state, state_step, TIGHT, "write against step")


@torch.no_grad()
def test_write_in_two_pieces_at_every_cut(memory):
    x = tokens(memory, 1, 35)
    y, state = memory.write(x)
    for cut in range(1, x.shape[1]):
        y1, state1 = memory.write(x[:, :cut])
        y2, state2 = memory.write(x[:, cut:], state1)
        assert_close(torch.cat([y1, y2], 1), y, TIGHT, f"outputs cut at {cut}")
        assert_states_close(state2, state, TIGHT, f"cut at {cut}")


@torch.no_grad()
def test_write_in_many_pieces(memory):
    x = tokens(memory, 2, 200)
    y, state = memory.write(x)
    pieces, ys, piecewise = torch.tensor([1, 2, 3, 16, 31, 65, 64, 1, 17]), [], None
    for piece in x.split(pieces.tolist(), 1):
        out, piecewise = memory.write(piece, piecewise)
        ys.append(out)
    assert_close(torch.cat(ys, 1), y, TIGHT, "outputs in pieces")
    assert_states_close(piecewise, state, TIGHT, "in pieces")


@torch.no_grad()
def test_states_at_several_times(memory):
    """write_at gives the states that shorter writes would have left, and read_at reads each of them."""
    x, times = tokens(memory, 2, 70), (1, 16, 48, 70)
    y, states = memory.write_at(x, times)
    assert_close(y, memory.write(x)[0], TIGHT, "outputs")
    q = tokens(memory, 2, 8, seed=5)
    answers = memory.read_at(q, states)
    for i, t in enumerate(times):
        _, expected = memory.write(x[:, :t])
        assert_states_close(states[i], expected, TIGHT, f"after {t}")
        two = slice(2 * i, 2 * i + 2)
        assert_close(answers[:, two], memory.read(q[:, two], expected), TIGHT, f"read after {t}")


@torch.no_grad()
def test_state_only_write_leaves_the_same_state(memory):
    x = tokens(memory, 2, 67)
    y, state = memory.write(x, outputs=False)
    assert y is None
    assert_states_close(state, memory.write(x)[1], TIGHT, "without outputs")


@torch.no_grad()
def test_read_changes_nothing_and_queries_are_alone(memory):
    x, q = tokens(memory, 2, 40), tokens(memory, 2, 5, seed=5)
    state = memory.write(x)[1]
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    answers = memory.read(q, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items()), "read changed the state"
    other = q.clone()
    other[:, 1:] = tokens(memory, 2, 4, seed=7)
    assert torch.equal(memory.read(other, state)[:, 0], answers[:, 0]), "one query changed another's answer"
    order = torch.tensor([3, 1, 4, 0, 2])
    assert_close(memory.read(q[:, order], state), answers[:, order], 1e-12, "permuted queries")
    assert_close(memory.read(q[:, :1], state), answers[:, :1], 1e-12, "a query read by itself")


@torch.no_grad()
def test_write_leaves_the_given_state_alone(memory):
    state = memory.write(tokens(memory, 2, 33))[1]
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    memory.write(tokens(memory, 2, 40, seed=5), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())


def changed_at(memory, times):
    """(t, outputs, outputs with another token t) of an 80-token stream."""
    x = tokens(memory, 1, 80)
    y, _ = memory.write(x)
    for t in times:
        changed = x.clone()
        changed[:, t] = -2 * x[:, t] + 1
        yield t, y, memory.write(changed)[0]


@torch.no_grad()
def test_causality(memory):
    """To rounding, for every backbone: a leak through a mask or a cache is many orders larger."""
    for t, y, z in changed_at(memory, range(0, 80, 3)):
        if t:
            assert_close(z[:, :t], y[:, :t], 1e-13, f"outputs before token {t}")
        assert not torch.equal(z[:, t:], y[:, t:]), f"token {t} changed nothing"


@torch.no_grad()
def test_causality_is_exact(memory):
    for t, y, z in changed_at(memory, (1, 15, 16, 31, 40, 63, 64, 79)):
        assert torch.equal(z[:, :t], y[:, :t]), f"token {t} changed an earlier output"


@torch.no_grad()
def test_batch_invariance(memory):
    x, q = tokens(memory, 4, 45), tokens(memory, 4, 3, seed=5)
    _, state = memory.write(x)
    answers = memory.read(q, state)
    for i in range(4):
        _, alone = memory.write(x[i : i + 1])
        assert_states_close(alone, state.map(lambda tensor, i=i: tensor[i : i + 1]), 1e-12, f"stream {i} alone")
        assert_close(memory.read(q[i : i + 1], alone), answers[i : i + 1], 1e-12, f"answers of stream {i} alone")


def gradients(memory, x, q, form, autocast=False):
    """Gradients of one scalar of the answers and outputs, by parameter name and for the inputs."""
    memory.zero_grad()
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):  # the forward pass only, as a trainer does
        if form == "step":
            y, state = step_through(memory, x)
            answers = torch.stack([memory.step(q[:, i], state)[0] for i in range(q.shape[1])], 1)
        else:
            y, state = memory.write(x, outputs=form == "write")
            answers = memory.read(q, state)
    generator = torch.Generator().manual_seed(3)
    loss = (answers * torch.randn(answers.shape, generator=generator, dtype=torch.float64)).sum()
    if y is not None:
        weight = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        loss = loss + 0.1 * (y * weight).sum()
    loss.backward()
    found = {name: p.grad for name, p in memory.named_parameters() if p.grad is not None}
    return {name: grad.clone() for name, grad in found.items()} | {"stream": x.grad, "queries": q.grad}


def test_gradients_are_those_of_the_step_form(memory):
    x, q = tokens(memory, 2, 35), tokens(memory, 2, 3, seed=5)
    expected = gradients(memory, x, q, "step")
    found = gradients(memory, x, q, "write")
    assert found.keys() >= expected.keys()
    for name, grad in expected.items():
        if grad.abs().max() > 1e-12:
            assert_close(found[name], grad, 1e-8, f"gradient of {name}")


def test_gradients_through_the_state_alone(memory):
    """The main training gradient: a loss on the answers only, with the top layer's outputs left out."""
    x, q = tokens(memory, 2, 70), tokens(memory, 2, 3, seed=5)
    found = gradients(memory, x, q, "state only")
    memory.zero_grad()
    whole = x.clone().requires_grad_()
    answers = memory.read(q, memory.write(whole)[1])
    generator = torch.Generator().manual_seed(3)
    (answers * torch.randn(answers.shape, generator=generator, dtype=torch.float64)).sum().backward()
    assert_close(found["stream"], whole.grad, TIGHT, "gradient of the stream")
    for name, parameter in memory.named_parameters():
        if parameter.grad is not None and parameter.grad.abs().max() > 1e-12:
            assert_close(found[name], parameter.grad, 1e-8, f"gradient of {name}")


@torch.no_grad()
def test_state_is_plain_and_counted(memory):
    x = tokens(memory, 2, 50)
    _, state = memory.write(x, outputs=False)
    tensors = state.tensors()
    assert all(tensor.shape[0] == 2 for tensor in tensors.values()), "the batch comes first in every tensor"
    assert state.nbytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert state.nbytes == 2 * memory.state_bytes(50)
    rebuilt = state.map(torch.clone).to(torch.float32).to(torch.float64)
    q = tokens(memory, 2, 2, seed=5)
    assert_close(memory.read(q, rebuilt), memory.read(q, state), 1e-4, "answers after a round trip through float32")
    assert not any(buffer.requires_grad or "cache" in name for name, buffer in memory.named_buffers())


@torch.no_grad()
def test_price_splits_into_write_and_read(memory):
    price = memory.price()
    for L in (1, 32, 1024, 4096):
        assert price.write(L) + price.read(L) == price.total(L + 1)
        assert price.total(L + 1) > price.total(L) >= 0


@torch.no_grad()
@pytest.mark.parametrize("L", [65, 130])
def test_float32_and_bfloat16_stay_near_float64(memory, L):
    x, q = tokens(memory, 2, L), tokens(memory, 2, 3, seed=5)
    expected = memory.read(q, memory.write(x)[1])
    single = memory.float()
    assert_close(single.read(q.float(), single.write(x.float())[1]), expected, 1e-4, "float32")
    with torch.autocast("cpu", torch.bfloat16):
        answers = single.read(q.float(), single.write(x.float())[1])
    assert_close(answers, expected, 0.1, "bfloat16 autocast")


def test_gradients_under_autocast_are_near_those_of_float64(memory):
    """bf16-mixed training, the paper's precision: the backward pass runs and points the same way."""
    x, q = tokens(memory, 2, 40), tokens(memory, 2, 3, seed=5)
    expected = gradients(memory, x, q, "state only")
    memory = memory.float()
    found = gradients(memory, x.float(), q.float(), "state only", autocast=True)
    for name in expected:
        assert torch.isfinite(found[name]).all(), f"gradient of {name}"
    flat = [torch.cat([g[name].double().flatten() for name in expected]) for g in (found, expected)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99


@torch.no_grad()
def test_harsh_inputs_stay_finite(memory):
    """Large, equal and zero tokens, in float32."""
    memory = memory.float()
    for x in (100 * tokens(memory, 1, 130), tokens(memory, 1, 1).expand(-1, 130, -1), tokens(memory, 1, 130) * 0):
        y, state = memory.write(x)
        assert torch.isfinite(y).all()
        assert torch.isfinite(memory.read(x[:, :2], state)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name, width, dtype):
    """Read identity and gradients on CUDA against float64 on the CPU."""
    reference = make(name, width)
    memory = make(name, width, torch.float32, "cuda")
    x, q = tokens(reference, 2, 130), tokens(reference, 2, 3, seed=5)
    expected = reference.read(q, reference.write(x)[1])
    xg, qg = x.float().cuda().requires_grad_(), q.float().cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        answers = memory.read(qg, memory.write(xg, outputs=False)[1])
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    assert_close(answers.cpu(), expected, tolerance, f"{name} on CUDA")
    answers.float().sum().backward()
    assert torch.isfinite(xg.grad).all()
