"""Attention with its cache, its reading form, and rotary positions."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernels import attention_read, causal_attention, rotary
from kernels.testing import rms_ratio

HEADS, KEY, VALUE = 2, 8, 6


def qkv(length: int, batch: int = 2, dtype=torch.float64) -> list[torch.Tensor]:
    return [torch.randn(batch, length, HEADS, dim, dtype=dtype, requires_grad=True) for dim in (KEY, KEY, VALUE)]


def row_by_row(q, k, v, past_length: int, strict: bool) -> torch.Tensor:
    """The definition, one query at a time; k and v with the past in front."""
    rows = []
    for i in range(q.shape[1]):
        seen = past_length + i + (not strict)
        scores = torch.einsum("bhk,bjhk->bhj", q[:, i], k[:, :seen]) * KEY**-0.5
        rows.append(torch.einsum("bhj,bjhv->bhv", scores.softmax(-1), v[:, :seen]))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("past", [None, 0, 1, 5])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_definition_and_gradients(length, past, strict, kernel):
    new = qkv(length)
    _, past_k, past_v = qkv(past or 0)
    cache = None if past is None else (past_k, past_v)
    o = causal_attention(*new, past=cache, strict=strict, kernel=kernel)
    expected = row_by_row(new[0], torch.cat([past_k, new[1]], 1), torch.cat([past_v, new[2]], 1), past or 0, strict)
    assert rms_ratio(o, expected) < 1e-12
    leaves = [*new, past_k, past_v]
    weights = expected.detach().cos()
    found = torch.autograd.grad((o * weights).sum(), leaves, materialize_grads=True, allow_unused=True)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves, materialize_grads=True, allow_unused=True)
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, wanted, strict=True) if b.numel())


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
@pytest.mark.parametrize("past", [0, 1, 9])
@pytest.mark.parametrize("queries", [1, 5])
def test_each_query_is_one_more_token(queries, past, kernel):
    q, k, v = qkv(queries)
    _, past_k, past_v = qkv(past)
    read = attention_read(q, k, v, past_k, past_v, scale=0.4, kernel=kernel)
    for i in range(queries):
        one = (x[:, i : i + 1] for x in (q, k, v))
        expected = causal_attention(*one, past=(past_k, past_v), scale=0.4)
        assert rms_ratio(read[:, i : i + 1], expected) < 1e-12
    changed = [x.detach().clone() for x in (q, k, v)]
    for x in changed:
        x[:, 0] += 1
    other = attention_read(*changed, past_k, past_v, scale=0.4, kernel=kernel)
    assert torch.equal(other[:, 1:], read[:, 1:])


def test_one_token_over_a_cache_shows_its_price():
    """4 D per pair (scores and values), the token's own pair included; the fused form hides it from the counter."""
    q, k, v = (x.detach() for x in qkv(1, batch=1))
    _, past_k, past_v = (x.detach() for x in qkv(12, batch=1))
    for call in (
        lambda: causal_attention(q, k, v, past=(past_k, past_v), kernel="reference"),
        lambda: attention_read(q, k, v, past_k, past_v, kernel="reference"),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * HEADS * (KEY + VALUE) * 13


def test_the_past_does_not_see_the_future():
    new = [x.detach() for x in qkv(20)]
    before = causal_attention(*new)
    for x in new:
        x[:, 11] += 1
    assert torch.equal(causal_attention(*new)[:, :11], before[:, :11])


def test_bfloat16():
    new = [x.detach() for x in qkv(40, dtype=torch.bfloat16)]
    o = causal_attention(*new)
    assert o.dtype == torch.bfloat16
    assert rms_ratio(o, causal_attention(*(x.double() for x in new))) < 1e-2


class TestRotary:
    def test_products_depend_on_the_distance(self):
        """FLA 515 and 766: positions off by the tokens already written."""
        q, k, _ = qkv(1)
        near = (rotary(q, torch.tensor([5])) * rotary(k, torch.tensor([2]))).sum(-1)
        far = (rotary(q, torch.tensor([4099])) * rotary(k, torch.tensor([4096]))).sum(-1)
        assert rms_ratio(far, near) < 1e-11

    def test_pairs_are_half_a_head_apart(self):
        x = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
        x[..., 1] = 1
        turned = rotary(x, torch.tensor([3]))[0, 0, 0]
        angle = torch.tensor(3 * 1e4 ** (-2 / 8), dtype=torch.float64)
        expected = torch.zeros(8, dtype=torch.float64)
        expected[1], expected[5] = angle.cos(), angle.sin()
        torch.testing.assert_close(turned, expected)

    def test_positions_may_differ_by_stream(self):
        x = torch.randn(2, 3, HEADS, KEY)
        positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
        turned = rotary(x, positions)
        for b in range(2):
            torch.testing.assert_close(turned[b : b + 1], rotary(x[b : b + 1], positions[b]))

    def test_angles_survive_bfloat16(self):
        x = torch.randn(1, 1, HEADS, KEY).bfloat16()
        turned = rotary(x, torch.tensor([4095]))
        assert turned.dtype == torch.bfloat16
        assert rms_ratio(turned, rotary(x.double(), torch.tensor([4095]))) < 1e-2

    def test_gradient(self):
        x = torch.randn(2, 3, HEADS, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: rotary(x, torch.arange(3)), x)

    def test_refuses_an_odd_head(self):
        with pytest.raises(ValueError, match="even, got 7"):
            rotary(torch.zeros(1, 1, 1, 7), torch.tensor([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 4, 2, 8)}, "of one length"),
        ({"past": (torch.zeros(2, 3, 2, 7), torch.zeros(2, 3, 2, 6))}, "cached keys and values must be"),
        ({"kernel": "flash"}, "auto, sdpa, reference"),
    ],
)
def test_mistakes_are_named(change, message):
    q, k, v = qkv(5)
    with pytest.raises(ValueError, match=message):
        causal_attention(**{"q": q, "k": k, "v": v, **change})
