"""The leaky average: scan against loop, extreme decays, continuing and reading."""

from __future__ import annotations

import pytest
import torch

from kernels import leaky_average, leaky_average_read
from kernels.testing import rms_ratio

HEADS, CHANNELS = 3, 4


def inputs(length: int, log_decay=(-0.0001, -0.5, -5.0), batch: int = 2) -> list[torch.Tensor]:
    """x, log_decay, state."""
    x = torch.randn(batch, length, HEADS, CHANNELS, dtype=torch.float64)
    state = torch.randn(batch, HEADS, CHANNELS, dtype=torch.float64)
    return [t.requires_grad_() for t in (x, torch.tensor(log_decay, dtype=torch.float64), state)]


def results(leaves, **options):
    y, state = leaky_average(*leaves, **options)
    loss = 0.0
    for t in (y, state):
        loss = loss + (t.double() * torch.linspace(-2, 2, t.numel(), dtype=torch.float64).view(t.shape).sin()).sum()
    return [y, state, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 100, 1023])
def test_scan_equals_the_loop(length):
    leaves = inputs(length)
    for a, b in zip(results(leaves), results(leaves, kernel="reference"), strict=True):
        assert rms_ratio(a, b) < 1e-11


@pytest.mark.parametrize("log_decay", [(0.0, -1e-6, -1e-3), (-20.0, -100.0, -1000.0), (-1000.0, 0.0, -0.5)])
def test_extreme_decays(log_decay):
    """A table of decay powers overflows above its diagonal; there is none."""
    leaves = inputs(300, log_decay)
    expected = results(leaves, kernel="reference")
    for a, b in zip(results(leaves), expected, strict=True):
        assert rms_ratio(a, b) < 1e-11
    narrow = [x.detach().float().requires_grad_() for x in leaves]
    for a, b in zip(results(narrow), expected, strict=True):
        assert rms_ratio(a, b) < 2e-5


@pytest.mark.parametrize("cut", [1, 2, 15, 16, 39])
def test_two_pieces_equal_the_whole(cut):
    x, log_decay, state = inputs(40)
    whole, end = leaky_average(x, log_decay, state)
    first, between = leaky_average(x[:, :cut], log_decay, state)
    second, last = leaky_average(x[:, cut:], log_decay, between)
    assert rms_ratio(torch.cat([first, second], 1), whole) < 1e-12
    assert rms_ratio(last, end) < 1e-12


def test_each_read_is_one_more_token():
    x, log_decay, state = inputs(5)
    read = leaky_average_read(x, log_decay, state)
    for i in range(5):
        y, _ = leaky_average(x[:, i : i + 1], log_decay, state)
        assert rms_ratio(read[:, i : i + 1], y) < 1e-13


def test_inputs_are_left_alone_and_the_state_is_small():
    x, log_decay, state = (t.detach() for t in inputs(16, batch=1))  # 16 tokens need no padding, so no copy either
    kept = x.clone()
    _, end = leaky_average(x, log_decay, state)
    assert torch.equal(x, kept)
    assert end.untyped_storage().nbytes() == end.nbytes


def test_bfloat16_keeps_a_float32_state():
    x, log_decay, _ = (t.detach() for t in inputs(50))
    y, state = leaky_average(x.bfloat16(), log_decay.float())
    assert y.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert rms_ratio(y, leaky_average(x, log_decay)[0]) < 1e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_BLHK": torch.zeros(2, 0, 3, 4)}, "L >= 1"),
        ({"log_decay": torch.zeros(2)}, r"must be \[3\]"),
        ({"state": torch.zeros(2, 4, 3)}, r"\(2, 3, 4\)"),
        ({"kernel": "chunk"}, "auto, scan, reference"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        leaky_average(**{"x_BLHK": torch.zeros(2, 5, 3, 4), "log_decay": torch.zeros(3), **change})
