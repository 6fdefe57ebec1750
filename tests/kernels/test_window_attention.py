"""Window attention: blocks against the full table of scores, in one piece and in many."""

from __future__ import annotations

import pytest
import torch

from kernels.window_attention import window_attention


def inputs(L, P=0):
    g = torch.Generator().manual_seed(L)
    return [torch.randn(2, n, 2, 8, generator=g, dtype=torch.float64).requires_grad_() for n in (L, L, L, P, P)]


@pytest.mark.parametrize(("L", "window", "P"), [(1, 4, 0), (3, 4, 0), (4, 4, 2), (9, 4, 4), (33, 16, 0), (47, 16, 5)])
def test_blocks_equal_the_table(L, window, P):
    x = inputs(L, P)
    results = []
    for kernel in ("block", "reference"):
        o = window_attention(*x[:3], window, past=x[3:], kernel=kernel)
        results.append([o, *torch.autograd.grad(o.square().sum(), x, allow_unused=True, materialize_grads=True)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_what_is_seen():
    """With uniform scores, an output is the mean of the last window + 1 values."""
    _, k, v, *_ = inputs(40)
    o = window_attention(torch.zeros_like(k), k, v, 5)
    for t in (0, 4, 5, 6, 39):
        torch.testing.assert_close(o[:, t], v[:, max(0, t - 5) : t + 1].mean(1))


def test_pieces_equal_the_whole():
    q, k, v, *_ = inputs(50)
    whole = window_attention(q, k, v, 7)
    for cut in (1, 6, 7, 8, 31, 49):
        first = slice(max(0, cut - 7), cut)
        rest = window_attention(q[:, cut:], k[:, cut:], v[:, cut:], 7, past=(k[:, first], v[:, first]))
        torch.testing.assert_close(rest, whole[:, cut:])


def test_wrong_arguments_say_what_was_expected():
    q, k, v, *_ = inputs(9)
    with pytest.raises(ValueError, match="window 4 must be"):
        window_attention(q, k, v, 4, past=(k[:, :5], v[:, :5]))
    with pytest.raises(ValueError, match="one length"):
        window_attention(q, k[:, :3], v, 4)
