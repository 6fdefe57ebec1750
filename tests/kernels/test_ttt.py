"""The fast-weight MLP: its loop against autograd on the published loss, the mini-batch form against the loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.ttt import FastMemory, FastWeights, InnerLoop, dual, ttt_mlp, ttt_mlp_read
from kernels.ttt.inner import GeluWithSlope


def weights(B, H, dtype, scale, g):
    shapes = (B, H, 16, 64), (B, H, 64), (B, H, 64, 16), (B, H, 16)
    return FastWeights(*(scale * torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes))


def inputs(L, mini_batch, elapsed=0, B=2, H=2, dtype=torch.float64, scale=0.3):
    """Streams q, k, v, lr, a memory in the middle of a mini-batch, and inner constants; all leaves."""
    g = torch.Generator().manual_seed(L)
    streams = [torch.randn(B, L, H, 16, generator=g, dtype=torch.float64).to(dtype) for _ in range(3)]
    streams.append(0.3 * torch.rand(B, L, H, generator=g, dtype=torch.float64).to(dtype))
    total = weights(B, H, dtype, 0.2, g)
    if elapsed == 0:
        total = total.combine(torch.zeros_like)
    memory = FastMemory(weights(B, H, dtype, scale, g), total, elapsed)
    noise = torch.randn(mini_batch, generator=g, dtype=torch.float64).to(dtype)
    tau = 1 / torch.arange(1, mini_batch + 1, dtype=dtype) + 0.01 * noise
    norm = torch.randn(2, H, 16, generator=g, dtype=torch.float64).to(dtype)
    inner = InnerLoop(tau.clamp_min(0), 1 + 0.1 * norm[0], 0.1 * norm[1])
    for leaf in (*streams, *memory.anchor, *memory.total, *inner):
        leaf.requires_grad_()
    return streams, memory, inner


def run(L, mini_batch, elapsed, kernel, **settings):
    """Outputs, states at three times, and the gradients of one random loss on all of them."""
    streams, memory, inner = inputs(L, mini_batch, elapsed, **settings)
    times = sorted({max(1, L // 3), max(1, L - 1), L})
    o, memories = ttt_mlp(*streams, memory, inner, times=times, kernel=kernel)
    found = [o, *(t for m in memories for part in (m.anchor, m.total) for t in part)]
    g = torch.Generator().manual_seed(1)
    loss = sum((t * torch.randn(t.shape, generator=g, dtype=torch.float64).to(t.dtype)).sum() for t in found)
    leaves = (*streams, *memory.anchor, *memory.total, *inner)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return found + list(grads), [m.elapsed for m in memories]


def error(found, expected):
    scale = [max(e.double().square().mean().sqrt().item(), 1e-9) for e in expected]
    rms = [(f.double() - e.double()).square().mean().sqrt().item() for f, e in zip(found, expected, strict=True)]
    return max(r / s for r, s in zip(rms, scale, strict=True))


@pytest.mark.parametrize(
    ("L", "mini_batch", "elapsed"),
    [
        (1, 8, 0),
        (1, 8, 7),
        (7, 8, 0),
        (8, 8, 0),
        (9, 8, 0),
        (9, 8, 3),
        (5, 8, 3),
        (40, 8, 5),
        (130, 64, 17),
        (100, 128, 5),
    ],
)
def test_mini_batches_equal_the_loop(L, mini_batch, elapsed):
    """Outputs, states at several times and all gradients, from any place in a mini-batch to any other."""
    found, places = run(L, mini_batch, elapsed, "dual")
    expected, expected_places = run(L, mini_batch, elapsed, "reference")
    assert places == expected_places
    assert error(found, expected) < 1e-10


def test_float32_stays_near_float64():
    expected, _ = run(100, 32, 5, "reference")
    found, _ = run(100, 32, 5, "dual", dtype=torch.float32)
    assert error(found, expected) < 2e-5


def test_the_loop_descends_the_published_loss():
    """The reference against autograd: gradients of 1/2 |LN(f(k)) - (v - k)|^2 at the anchor, token by token."""
    (q, k, v, lr), memory, inner = inputs(11, 4, B=1, H=1)
    o, _ = ttt_mlp(q, k, v, lr, memory, inner, kernel="reference")
    anchor, total, tau = [w[0, 0].detach() for w in memory.anchor], None, inner.tau.detach()

    def network(x, w):
        z = F.gelu(x @ w[0] + w[1], approximate="tanh") @ w[2] + w[3]
        return F.layer_norm(z, (16,), inner.norm_weight[0], inner.norm_bias[0], eps=1e-6)

    for t in range(11):
        p = t % 4
        total = [torch.zeros_like(w) for w in anchor] if p == 0 else total
        w = [x.clone().requires_grad_() for x in anchor]
        loss = 0.5 * (network(k[0, t, 0], w) - (v - k)[0, t, 0]).square().sum()
        total = [s + lr[0, t, 0] * g for s, g in zip(total, torch.autograd.grad(loss, w), strict=True)]
        now = [a - tau[p] * s for a, s in zip(anchor, total, strict=True)]
        torch.testing.assert_close(o[0, t, 0], q[0, t, 0] + network(q[0, t, 0], now), atol=1e-12, rtol=0)
        anchor = now if p == 3 else anchor


def test_gelu_and_its_slope():
    z = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    value, slope = GeluWithSlope.apply(z)
    expected = F.gelu(z, approximate="tanh")
    torch.testing.assert_close(value, expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), z)[0], atol=1e-14, rtol=0)
    assert torch.autograd.gradcheck(GeluWithSlope.apply, (z[::10].detach().requires_grad_(),))


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 200])
def test_the_chunk_size_changes_nothing(chunk, monkeypatch):
    expected, _ = run(100, 64, 5, "reference")
    monkeypatch.setattr(dual, "CHUNK", chunk)
    assert error(run(100, 64, 5, "dual")[0], expected) < 1e-10


@pytest.mark.parametrize("elapsed", [0, 3, 7])
def test_read_is_the_next_output(elapsed):
    """Off a memory at the start, in the middle and at the last place of a mini-batch, which stays as it was."""
    streams, memory, inner = inputs(5, 8, elapsed)
    before = [t.clone() for t in (*memory.anchor, *memory.total)]
    found = ttt_mlp_read(*streams, memory, inner)
    for i in range(5):
        one = [x[:, i : i + 1] for x in streams]
        torch.testing.assert_close(found[:, i], ttt_mlp(*one, memory, inner)[0][:, 0], atol=1e-12, rtol=0)
    assert all(torch.equal(x, y) for x, y in zip((*memory.anchor, *memory.total), before, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["dual", "reference"])
def test_causal_inside_a_mini_batch(kernel):
    """ttt-video-dit's form, which others have ported as causal, is not: a token there changes earlier outputs."""
    streams, memory, inner = inputs(70, 64)
    o = ttt_mlp(*streams, memory, inner, kernel=kernel)[0]
    for t in (1, 31, 32, 50, 64):
        changed = [x.clone() for x in streams]
        for x in changed[:3]:
            x[:, t] += 1
        other = ttt_mlp(*changed, memory, inner, kernel=kernel)[0]
        assert torch.equal(other[:, :t], o[:, :t])
        assert not torch.equal(other[:, t:], o[:, t:])


def test_a_step_size_of_zero_never_learns():
    """Where theta pulls tau below zero it is clamped, and the anchor answers alone."""
    streams, memory, inner = inputs(6, 8)
    o = ttt_mlp(*streams, memory, inner._replace(tau=torch.zeros(8).double()))[0]
    q = streams[0].transpose(1, 2)
    z = F.gelu(q @ memory.anchor.W1 + memory.anchor.b1.unsqueeze(2), approximate="tanh")
    z = F.layer_norm(z @ memory.anchor.W2 + memory.anchor.b2.unsqueeze(2), (16,), eps=1e-6)
    expected = q + z * inner.norm_weight.unsqueeze(1) + inner.norm_bias.unsqueeze(1)
    torch.testing.assert_close(o, expected.transpose(1, 2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", ["large", "equal", "zeros", "tiny weights"])
def test_harsh_inputs_stay_finite(case):
    streams, memory, inner = inputs(150, 64, dtype=torch.float32, scale=1e-6 if case == "tiny weights" else 0.02)
    streams = [x.detach() for x in streams]
    if case == "large":
        streams = [100 * x for x in streams[:3]] + streams[3:]
    elif case == "equal":
        streams = [x[:, :1].expand_as(x) for x in streams]
    elif case == "zeros":
        streams = [torch.zeros_like(x) for x in streams]
    streams = [x.clone().requires_grad_() for x in streams]
    o, (after,) = ttt_mlp(*streams, memory, inner)
    grads = torch.autograd.grad(o.sum() + after.anchor.W1.sum(), [*streams, *memory.anchor, inner.tau])
    assert all(torch.isfinite(t).all() for t in (o, *after.anchor, *after.total, *grads))


def test_wrong_shapes_say_what_was_expected():
    (q, k, v, lr), memory, inner = inputs(4, 8)
    with pytest.raises(ValueError, match=r"lr \[B, L, H\]"):
        ttt_mlp(q, k, v, lr[:, :2], memory, inner)
    with pytest.raises(ValueError, match="no kernel 'fast'"):
        ttt_mlp(q, k, v, lr, memory, inner, kernel="fast")
