"""The short convolution: its two forms, PyTorch's own, and continuing at every cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from kernels import short_conv, short_conv_read
from kernels.testing import rms_ratio

CHANNELS = 6


def inputs(length: int, width: int = 4, batch: int = 3, dtype=torch.float64) -> list[torch.Tensor]:
    """x, weight, bias, cache."""
    shapes = (batch, length, CHANNELS), (CHANNELS, width), (CHANNELS,), (batch, width - 1, CHANNELS)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def gradients(y, cache, leaves):
    loss = (y * y.detach().cos()).sum() + (cache * cache.detach().sin()).sum()
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [1, 2, 4, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 33])
def test_forms_agree(length, width, activation):
    leaves = inputs(length, width)
    y, cache = short_conv(*leaves, activation, kernel="conv2d")
    expected_y, expected_cache = short_conv(*leaves, activation, kernel="reference")
    found, expected = gradients(y, cache, leaves), gradients(expected_y, expected_cache, leaves)
    for a, b in zip([y, cache, *found], [expected_y, expected_cache, *expected], strict=True):
        assert a.shape == b.shape
        assert rms_ratio(a, b) < 1e-12


@pytest.mark.parametrize("batch", [1, 3])
def test_equals_conv1d(batch):
    """The definition that every library shares, from an empty past."""
    x, weight, bias, _ = inputs(9, batch=batch)
    expected = F.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=CHANNELS)[..., :9].transpose(1, 2)
    y, _ = short_conv(x, weight, bias)
    assert rms_ratio(y, expected) < 1e-12
    no_bias, _ = short_conv(x, weight)
    assert rms_ratio(no_bias, expected - bias) < 1e-12


@pytest.mark.parametrize("cut", range(1, 8))
def test_two_pieces_equal_the_whole(cut):
    """FLA 1140: gradients were wrong for pieces shorter than the cache."""
    x, weight, bias, cache = leaves = inputs(8)
    whole, end = short_conv(*leaves, "silu")
    first, between = short_conv(x[:, :cut], weight, bias, cache, "silu")
    second, last = short_conv(x[:, cut:], weight, bias, between, "silu")
    pieces = torch.cat([first, second], 1)
    found, expected = gradients(pieces, last, leaves), gradients(whole, end, leaves)
    for a, b in zip([pieces, last, *found], [whole, end, *expected], strict=True):
        assert rms_ratio(a, b) < 1e-12


def test_each_read_is_one_more_token():
    x, weight, bias, cache = inputs(5)
    kept = cache.detach().clone()
    read = short_conv_read(x, weight, bias, cache, "silu")
    for i in range(5):
        y, _ = short_conv(x[:, i : i + 1], weight, bias, cache, "silu")
        assert rms_ratio(read[:, i : i + 1], y) < 1e-12
    assert torch.equal(cache, kept)
    assert rms_ratio(short_conv_read(x, weight, None, cache), short_conv_read(x, weight, bias, cache) - bias) < 1e-12


def test_the_cache_holds_the_last_inputs_and_nothing_else():
    x, weight, bias, _ = inputs(50, batch=1)
    _, cache = short_conv(x, weight, bias)
    assert torch.equal(cache, x[:, -3:])
    assert cache.untyped_storage().nbytes() == cache.nbytes


def test_a_large_batch_is_summed_slab_by_slab(monkeypatch):
    leaves = inputs(20, batch=7)
    expected = gradients(*short_conv(*leaves), leaves)
    monkeypatch.setattr("kernels.slabs.CACHE_BYTES", 2 * 20 * CHANNELS * 4)
    found = gradients(*short_conv(*leaves), leaves)
    assert all(rms_ratio(a, b) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_price_is_exact():
    """8 per channel and token: the four taps, and no padding."""
    x, weight, bias, cache = (t.detach() for t in inputs(10))
    with FlopCounterMode(display=False) as counter:
        short_conv(x, weight, bias, cache)
    assert counter.get_total_flops() == 8 * CHANNELS * 10 * 3


def test_bfloat16_keeps_its_dtype():
    leaves = inputs(12, dtype=torch.bfloat16)
    y, cache = short_conv(*leaves)
    expected, _ = short_conv(*(x.double() for x in leaves))
    assert y.dtype == cache.dtype == torch.bfloat16
    assert rms_ratio(y, expected) < 1e-2
    assert all(g.dtype == torch.bfloat16 for g in gradients(y, cache, leaves))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_BLD": torch.zeros(2, 5)}, r"\[B, L, D\]"),
        ({"x_BLD": torch.zeros(2, 0, 6)}, "length 0"),
        ({"weight_DW": torch.zeros(5, 4)}, r"must be \[6, W\]"),
        ({"bias_D": torch.zeros(5)}, "bias"),
        ({"cache": torch.zeros(2, 4, 6)}, r"\(2, 3, 6\) for width 4"),
        ({"activation": "relu"}, "silu"),
        ({"kernel": "triton"}, "conv2d, reference"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        short_conv(**{"x_BLD": torch.zeros(2, 5, 6), "weight_DW": torch.zeros(6, 4), **change})
