"""Names of backbones, and what a mistake tells you."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from backbones import MembershipModel, MemoryLayer, State, available, build, lookup, register
from backbones.registry import _entries
from flops import linear, price


@dataclass
class SumState(State):
    total: torch.Tensor


class Sum(MemoryLayer):
    """The smallest memory: a decayed sum, with a step and nothing else."""

    @dataclass(frozen=True)
    class Config:
        decay: float = 0.9
        """How much is kept per token."""

    def __init__(self, width, config, index=0, depth=3):
        super().__init__(width, config, index, depth)
        self.project = torch.nn.Linear(width, width)

    def initial_state(self, batch):
        return SumState(self.project.weight.new_zeros(batch, self.width))

    def step(self, x_BD, state):
        total = self.config.decay * state.total + self.project(x_BD)
        return x_BD + total, SumState(total)

    def terms(self):
        return [linear("projection", self.width, self.width)]


@pytest.fixture
def summing():
    register("test_sum")(Sum)
    yield "test_sum"
    del _entries["test_sum"]


def test_a_layer_with_a_step_alone_has_everything_else(summing):
    memory = build(summing, width=8).double()
    x, q = torch.randn(2, 9, 8).double(), torch.randn(2, 3, 8).double()
    y, states = memory.write_at(x, (4, 9))
    answers = memory.read(q, states[-1])
    expected = memory.write(torch.cat([x, q[:, 1:2]], 1))[0][:, -1]
    torch.testing.assert_close(answers[:, 1], expected)
    torch.testing.assert_close(memory.write(x[:, :4])[1].layers[2].total, states[0].layers[2].total)
    assert y.shape == (2, 9, 8)
    assert price(summing, width=8).total(10) == 3 * 2 * 64 * 10
    logits = MembershipModel(summing, width=8)(
        torch.randint(16, (2, 9)), torch.randint(16, (2, 4, 6)), torch.full((2, 4), 3), (5, 9)
    )
    assert logits.shape == (2, 4, 2)


def test_a_layer_without_terms_gets_a_counted_price(summing, monkeypatch):
    declared = build(summing, width=8).price().total(33)
    monkeypatch.delattr(Sum, "terms")
    counted = build(summing, width=8).price()
    assert counted.source == "counted"
    assert counted.total(33) == declared == price(summing, width=8).total(33)


def test_unknown_names_come_with_near_ones():
    with pytest.raises(ValueError, match=r"'transformer_cnov'.*Did you mean transformer_conv.*Known:.*gru"):
        lookup("transformer_cnov")
    with pytest.raises(ValueError, match=r"gru has no setting 'residul'. Did you mean 'residual'"):
        build("gru", residul=True)


def test_registration_is_checked_there_and_then(summing):
    with pytest.raises(TypeError, match="expects a subclass of MemoryLayer"):
        register("wrong")(object)
    with pytest.raises(TypeError, match="does not define initial_state, step"):
        register("wrong")(type("Nothing", (MemoryLayer,), {}))
    with pytest.raises(ValueError, match="has no setting 'nope'"):
        register("wrong", nope=1)(Sum)
    other = type("Other", (Sum,), {})
    with pytest.raises(ValueError, match="already registered by"):
        register(summing)(other)
    assert "wrong" not in available()


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="width 40 is not divisible by head_dim 16"):
        build("transformer_rope", width=40)
    with pytest.raises(ValueError, match="both must be at least 1"):
        build("gru", depth=0)


@pytest.mark.parametrize("name", available())
def test_every_backbone_has_a_page_and_a_price_without_weights(name):
    summary = lookup(name).summary
    assert summary.endswith(".")
    assert len(summary) > 20
    assert price(name, width=64).total(33) > 0
    assert all(p.is_meta for p in _meta(name).parameters())


def _meta(name):
    with torch.device("meta"):
        return build(name)
