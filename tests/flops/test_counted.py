"""Prices of memories that declare none: counted where possible, continued where that is sound, and marked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from backbones import MemoryBackbone, MemoryLayer, State, build, register
from backbones import registry as registry_module
from flops import price
from flops.count import counted_price
from flops.count.fit import HORIZON

D = 6


@dataclass
class Past(State):
    x: Tensor  # [B, L, D]


class Plugin(MemoryLayer):
    """A layer as somebody's first draft: a step, and no terms."""

    @dataclass(frozen=True)
    class Config:
        window: int = 10**6
        """Tokens that a token sees, itself included."""
        period: int = 10**6
        """Tokens from one upkeep to the next."""
        again: int = 1
        """Uses of the projection."""
        hide: bool = False
        """Make an outer product by broadcasting."""

    def __init__(self, width: int, config: Config, index: int = 0, depth: int = 3):
        super().__init__(width, config, index, depth)
        self.project = nn.Linear(width, width, bias=False)
        self.upkeep = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> Past:
        return Past(self.project.weight.new_zeros(batch, 0, self.width))

    def step(self, x: Tensor, state: Past) -> tuple[Tensor, Past]:
        past = torch.cat([state.x, x[:, None]], 1)
        for _ in range(self.config.again):
            x = self.project(x)
        if past.shape[1] % self.config.period == 0:
            x = self.upkeep(x)
        seen = past[:, -self.config.window :]
        y = (x[:, None] @ seen.mT).softmax(-1) @ seen
        if self.config.hide:
            y = y + (y.mT * y).sum(-1)[:, None]
        return y[:, 0], Past(past)


def memory(**config) -> MemoryBackbone:
    return MemoryBackbone(Plugin.stack(D, Plugin.Config(**config), 2), "plugin")


def pairs(T: int, window: int = 10**6) -> int:
    return sum(min(t, window) for t in range(1, T + 1))


def test_constant_and_linear_work_is_continued():
    found = counted_price(memory())
    assert found.source == "counted"
    for T in (1, 2, HORIZON, HORIZON + 1, 4097):
        assert found.total(T) == 2 * (2 * D * D * T + 2 * 2 * D * pairs(T)), T
    assert found.weights == 2 * D * D, "the upkeep never ran"
    assert "continued" in found.note
    assert {(t.layer, t.kind) for t in found.terms} == {(0, "weight"), (0, "pair"), (1, "weight"), (1, "pair")}


def test_a_window_is_continued_after_it_is_full():
    found = counted_price(memory(window=7))
    for T in (1, 7, HORIZON, 1000):
        assert found.total(T) == 2 * (2 * D * D * T + 2 * 2 * D * pairs(T, 7)), T
    assert f"each of the first {HORIZON}" in found.note


def test_work_once_per_block_is_counted_token_by_token():
    found = counted_price(memory(period=8))
    for T in (8, HORIZON, 300):
        assert found.total(T) == 2 * (2 * D * D * (T + T // 8) + 2 * 2 * D * pairs(T)), T
    assert "token by token" in found.note


def test_a_weight_used_twice_is_a_weight_once():
    found = counted_price(memory(again=2))
    assert found.weights == 2 * D * D
    assert found.total(10) == 2 * (2 * 2 * D * D * 10 + 2 * 2 * D * pairs(10))


def test_the_note_names_what_no_count_sees():
    assert "outer product" in counted_price(memory(hide=True)).note


@pytest.mark.parametrize("name", ["gla", "transformer_conv"])
def test_counted_price_of_a_declared_backbone_is_the_declared_one(name):
    backbone = build(name)
    found, declared = counted_price(backbone), backbone.price()
    assert [found.total(T) for T in (1, 100, 4097)] == [declared.total(T) for T in (1, 100, 4097)]
    assert found.weights == declared.weights


def test_counting_runs_on_the_meta_device():
    with torch.device("meta"):
        found = counted_price(memory())
    assert found.total(100) == counted_price(memory()).total(100)


def test_a_registered_name_without_terms_gets_a_counted_price(monkeypatch):
    monkeypatch.setattr(registry_module, "_entries", dict(registry_module._entries))
    register("plugin")(Plugin)
    found = price("plugin", width=D)
    assert found.source == "counted"
    assert found.total(10) == 3 * (2 * D * D * 10 + 2 * 2 * D * pairs(10))
