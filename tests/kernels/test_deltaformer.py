"""Corrected values: every form against the loop, the dense solve and flash-linear-attention; causality; hard inputs."""

from __future__ import annotations

import pytest
import torch

from kernels import causal_attention
from kernels.deltaformer import blocked, corrected_read, corrected_values


def inputs(B=2, L=65, H=2, P=0, dtype=torch.float64, seed=0):
    """q, k, v, beta and a past (k, u), all leaves; beta of both signs."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(B, L, H, 16)] * 3 + [(B, L, H)] + [(B, P, H, 16)] * 2
    *tensors, past_k, past_u = (torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes)
    return [x.requires_grad_() for x in (*tensors, past_k, past_u)]


def run(x, kernel):
    """u and its gradients for one random loss."""
    u = corrected_values(*x[:4], past=x[4:], kernel=kernel)
    weight = torch.randn(u.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(u.dtype)
    return [u, *torch.autograd.grad((u * weight).sum(), x, allow_unused=True, materialize_grads=True)]


def error(found, expected):
    """Largest RMS error over RMS value; absolute, in units of 1e-3, for a gradient that is zero by construction."""
    pairs = [(f.double(), e.double()) for f, e in zip(found, expected, strict=True) if e.numel()]
    scale = [max(e.square().mean().sqrt().item(), 1e-3) for _, e in pairs]
    return max((f - e).square().mean().sqrt().item() / s for (f, e), s in zip(pairs, scale, strict=True))


@pytest.mark.parametrize("P", [0, 1, 70])
@pytest.mark.parametrize("L", [1, 2, 15, 63, 64, 65, 130])
def test_blocks_equal_the_loop(L, P):
    """Output and every gradient, those of the past included."""
    x = inputs(L=L, P=P)
    assert error(run(x, "block"), run(x, "reference")) < 1e-10


def test_float32_stays_near_float64():
    x = inputs(L=130, P=5)
    single = [t.detach().float().requires_grad_() for t in x]
    assert error(run(single, "block"), run(x, "reference")) < 2e-5


@pytest.mark.parametrize("block", [48, 64, 96, 200, 201])
def test_the_block_size_changes_nothing(block, monkeypatch):
    """In flash-linear-attention (1104) a tile across blocks skipped the mask and read rows not yet written."""
    x = inputs(L=200)
    expected = run(x, "reference")
    monkeypatch.setattr(blocked, "BLOCK", block)
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))
    assert error(run(x, "block"), expected) < 1e-10


def test_dense_solve():
    """(I + Diag(beta) P) U = V, as the paper writes it."""
    q, k, v, beta, *_ = inputs(L=40)
    scores = torch.einsum("bthd,bjhd->bhtj", q, k) / 4
    p = scores.masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(), -torch.inf).softmax(-1).nan_to_num(0.0)
    matrix = torch.eye(40, dtype=torch.float64) + beta.transpose(1, 2)[..., None] * p
    u = torch.linalg.solve(matrix, v.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(corrected_values(q, k, v, beta), u, atol=1e-12, rtol=0)


def test_agrees_with_flash_linear_attention():
    naive = pytest.importorskip("fla.ops.deltaformer.naive").naive_deltaformer_attn
    q, k, v, beta = (x.detach().float() for x in inputs(L=97)[:4])
    beta = beta.sigmoid()
    found = causal_attention(q, k, corrected_values(q, k, v, beta))
    torch.testing.assert_close(found, naive(q, k, v, beta), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kernel", ["block", "reference"])
def test_a_token_changes_later_rows_only(kernel):
    x = [t.detach() for t in inputs(B=1, L=130)]
    u = corrected_values(*x[:4], kernel=kernel)
    for t in (0, 1, 63, 64, 100):
        changed = [y.clone() for y in x]
        for y in changed[:4]:
            y[:, t] = -y[:, t] + 1
        other = corrected_values(*changed[:4], kernel=kernel)
        assert torch.equal(other[:, :t], u[:, :t])
        assert not torch.equal(other[:, t], u[:, t])


def test_read_is_the_next_row_of_both_stages():
    q, k, v, beta, *_ = inputs(L=71)
    for P in (0, 1, 64, 70):
        u = corrected_values(q[:, : P + 1], k[:, : P + 1], v[:, : P + 1], beta[:, : P + 1])
        expected = causal_attention(q[:, : P + 1], k[:, : P + 1], u)[:, -1]
        one = slice(P, P + 1)
        found = corrected_read(q[:, one], k[:, one], v[:, one], beta[:, one], k[:, :P], u[:, :P])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", ["repeated keys", "large scores", "zeros"])
def test_harsh_inputs_stay_finite(case):
    x = [t.detach() for t in inputs(L=200, dtype=torch.float32)]
    if case == "repeated keys":
        x[1] = x[1][:, :1].expand_as(x[1]) + 1e-6 * x[1]
    elif case == "large scores":
        x[0], x[1] = 100 * x[0], 100 * x[1]
    else:
        x = [torch.zeros_like(t) for t in x]
    assert all(torch.isfinite(t).all() for t in run([t.requires_grad_() for t in x], "block"))


def test_a_constant_correction_can_grow_values():
    """beta = -1 adds the past's mean to every value: harmonic growth. A beta in (0, 1) cannot grow them much."""
    q, k, v, _, *_ = (t.detach() for t in inputs(B=1, L=1000, H=1))
    v, zero = torch.ones_like(v), torch.zeros_like(q)
    grown = corrected_values(zero, k, v, -torch.ones(1, 1000, 1).double())
    harmonic = 1 + (1 / torch.arange(1, 1000).double()).sum()
    assert grown[:, -1].max() == pytest.approx(harmonic.item(), rel=1e-9)
    assert corrected_values(zero, k, v, 0.9 * torch.ones(1, 1000, 1).double()).abs().max() <= 1.0


def test_wrong_shapes_say_what_was_expected():
    q, k, v, beta, *_ = inputs(L=3)
    with pytest.raises(ValueError, match=r"beta \[B, L, H\]"):
        corrected_values(q, k, v, beta[:, :2])
    with pytest.raises(ValueError, match="the past must be"):
        corrected_values(q, k, v, beta, past=(k[:1], v[:1]))
    with pytest.raises(ValueError, match="no kernel 'fast'"):
        corrected_values(q, k, v, beta, kernel="fast")
