"""The tie, for every registered backbone: what is declared, what the step executes, and what the parameters hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from backbones import MemoryBackbone, available, build
from backbones.registry import lookup
from flops import price
from flops.count import EDGES, count, tie
from flops.count.tie import compare, count_tokens

WIDTHS = (64, 128)
FEWER = (1, 2, 17, 128, 129, 256, 257, 512, 1536, 1537)
"""Tokens at the second width: one on either side of every edge."""


@cache
def counted(name: str, width: int) -> tuple[MemoryBackbone, list]:
    memory = build(name, width=width)
    return memory, list(count_tokens(memory, EDGES if width == WIDTHS[0] else FEWER))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", available())
def test_counted_is_declared(name, width):
    """At token positions around every window, mini-batch and block edge, in every layer, to the integer."""
    problems = compare(*counted(name, width)).counts
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", available())
def test_weights_are_parameters(name, width):
    """Entries of the weight terms = entries of the matrix parameters, so their FLOPs are twice that per token."""
    problems = compare(build(name, width=width), []).weights
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", available())
def test_nothing_hides_in_the_step(name, width):
    found = compare(*counted(name, width)).hidden
    assert not found, "\n".join(f"layer {layer}: {finding}" for layer, finding in found)


@pytest.mark.parametrize(("name", "settings"), [
    ("transformer_conv", {"width": 32, "conv": 3, "ffn_ratio": 2.0}),
    ("gru", {"width": 40, "depth": 1}),
    ("mamba2", {"expand": 1, "state_expand": 1, "head_dim": 32, "conv": 0}),
    ("gla", {"width": 96, "conv": 4, "gate_rank": 8, "expand_k": 1.0, "ffn_ratio": 4.0}),
    ("retnet", {"conv": 0, "expand_v": 1}),
    ("deltanet", {"width": 32, "conv": 0, "head_dim": 8}),
    ("gated_deltanet", {"expand_v": 1, "ffn_ratio": 1.0}),
    ("rwkv7", {"decay_rank": 8, "gate_rank": 24, "value_rank": 16, "ffn_ratio": 2.0, "depth": 4}),
    ("mom", {"memories": 5, "chosen": 2, "ffn_ratio": 1.0}),
    ("deltaformer", {"stage1": "kk", "ffn_ratio": 4.0}),
    ("ttt_mlp", {"gate": "tanh", "window": 4, "mini_batch": 8}),
    ("memory_mosaic", {"memories": 2, "slots_ratio": 1}),
    ("compressive_transformer", {"block": 8, "ratios": (2, 2), "slots": (8, 4), "ffn_ratio": 2.0}),
])  # fmt: skip
def test_counted_is_declared_for_other_settings(name, settings):
    """A price is of a configuration, not of a name."""
    found = tie(build(name, **settings), (1, 2, 5, 6, 8, 9, 16, 17, 24, 32, 40, 48, 65))
    assert not found.counts + found.weights, "\n".join(found.counts + found.weights)


@pytest.mark.parametrize("name", available())
def test_any_wrong_term_fails_by_name(name):
    """Each term in turn is made one entry longer: the tie must fail, and say which term it was."""
    memory, counts = counted(name, 64)
    declared = [layer.terms() for layer in memory.layers]
    for i, layer in enumerate(memory.layers):
        for j, term in enumerate(declared[i]):
            m, k, n = term.shape
            wrong = replace(term, label="the wrong one", shape=(m, k, n + 1))
            executed = [(token, c) for token, c in counts if term.at(token)]
            assert executed, f"{term.label}: no counted token executes it"
            layer.terms = lambda i=i, j=j, wrong=wrong: [*declared[i][:j], wrong, *declared[i][j + 1 :]]
            try:
                found = compare(memory, executed[-1:])
            finally:
                del layer.terms
            assert any("the wrong one" in problem for problem in found.counts), f"layer {i}: {term}"
            if term.kind == "weight":
                assert any("the wrong one" in problem for problem in found.weights), f"layer {i}: {term}"


def test_a_wrong_term_message(monkeypatch):
    """What a researcher reads who mistook a dimension: the term, both numbers, and where."""
    layer = lookup("gla").layer
    right = layer.terms

    def wrong(self):
        return [replace(t, shape=(1, 16, 64)) if t.label == "decay, up" else t for t in right(self)]

    monkeypatch.setattr(layer, "terms", wrong)
    found = tie(build("gla"), (1, 2))
    assert found.counts == (
        "layer 0, token 1: products with weights: declared 135,168 FLOPs, counted 134,144\n"
        "  declared, not counted: decay, up: (1 x 16)(16 x 64) = 2,048 FLOPs\n"
        "  counted, not declared: decay.weight: (1 x 16)(16 x 32) = 1,024 FLOPs\n"
        "  and 5 times more, up to layer 2, token 2",
    )
    assert found.weights[0] == (
        "layer 0: weight terms declare 67,584 entries, matrices hold 67,072\n"
        "  declared, not held: decay, up: (1 x 16)(16 x 64) = 1,024 entries\n"
        "  held, not declared: decay.weight [32, 16]; add a term, or name it in not_matrices"
    )


@pytest.mark.parametrize("name", available())
def test_write_and_read_are_the_total(name):
    """Counting L writes gives F(L), and the query after them F(L + 1) - F(L), which a second read repeats."""
    L, memory = 6, build(name)
    x, query = torch.randn(1, L, memory.width), torch.randn(1, memory.width)
    declared, state, written = memory.price(), memory.initial_state(1), 0
    for x_BD in x.unbind(1):
        found = count(memory.step, x_BD, state)
        state, written = found.result[1], written + found.flops
    assert written == declared.write(L)
    first, second = (count(memory.step, query, state) for _ in range(2))
    assert first.flops == second.flops == declared.read(L)
    assert torch.equal(first.result[0], second.result[0])
    assert written + first.flops == declared.total(L + 1)


@pytest.mark.parametrize("name", available())
def test_reading_twice_costs_the_same(name):
    memory = build(name)
    with torch.no_grad():
        _, state = memory.write(torch.randn(1, 33, memory.width), outputs=False)
    first, second = (count(memory.read, torch.ones(1, 3, memory.width), state) for _ in range(2))
    assert first.flops == second.flops
    assert torch.equal(first.result, second.result)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", available())
def test_a_price_needs_no_parameters(name, width):
    """`price` builds on the meta device; the memory itself says the same."""
    assert price(name, width=width).total(2049) == build(name, width=width).price().total(2049)


def test_exceptions_of_a_layer(monkeypatch):
    """Each kind of exception silences what it names and nothing else."""
    memory = build("gla")
    layer = memory.layers[0]
    layer.register_parameter("extra", torch.nn.Parameter(torch.zeros(3, 5)))
    assert "held, not declared: extra [3, 5]" in compare(memory, []).weights[0]
    layer.not_matrices = {"extra": "a test"}
    assert not compare(memory, []).weights
    layer.not_matrices = {"xtra": "a test"}
    assert "not_matrices names xtra" in compare(memory, []).weights[0]

    memory = build("gru")
    layer, step = memory.layers[0], memory.layers[0].step
    layer.step = lambda x, state: (x[..., None] * x[:, None], step(x, state))[1]
    assert [finding.what for _, finding in tie(memory, (1,)).hidden] == ["outer product"]
    layer.free_products = {"outer product": "a test"}
    assert not tie(memory, (1,)).problems

    terms = layer.terms()
    layer.terms = lambda: [*terms, replace(terms[0], label="charity", kind="rerun")]
    assert "charity" in tie(memory, (1,)).counts[0]
    layer.charged_anyway = {"charity": "a test"}
    assert not tie(memory, (1,)).problems
