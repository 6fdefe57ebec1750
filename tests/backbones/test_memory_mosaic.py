"""Memory Mosaic against a dense reading of its equations, the look-ahead of its values, and what weight decay skips."""

from __future__ import annotations

import pytest
import torch

from backbones import build
from tests.backbones.contract import assert_close, make, tokens


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def leaky_keys(keys, h, head, power):
    """Keys [T, 16] of a head from the T x T table of decays."""
    T = len(h)
    k = (h @ keys.project.weight.T).view(T, -1, 16)[:, head]
    age = (torch.arange(T)[:, None] - torch.arange(T)).double()
    table = torch.where(age >= 0, torch.exp(-age.clamp_min(0) * (10 * keys.leak[head]).abs()), 0.0)
    return unit(table @ k) * torch.exp(power * (10 * keys.scale[head]).clamp_max(5))


def by_hand(layer, x):
    """A layer over one stream [T, D]: masked softmax over a T x T table, six separate softmaxes over entries."""
    T, D = x.shape
    h, context, persistent = layer.context_norm(x), [], []
    v = (h @ layer.value.weight.T).view(T, -1, 16)
    for head in range(D // 16):
        key = leaky_keys(layer.context_keys, h, head, 1)
        mix = layer.value_mix[head]
        ahead = torch.cat([v[1:, head], torch.zeros(1, 16, dtype=v.dtype)])
        value = unit(mix * v[:, head] + (1 - mix) * ahead) * torch.exp(10 * layer.value_scale[head])
        scores = (key @ key.T).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(), -torch.inf)
        context.append(torch.cat([torch.zeros(1, 16, dtype=v.dtype), scores[1:].softmax(-1) @ value]))
    x = x + torch.cat(context, -1) @ layer.context_out.weight.T
    h = layer.persistent_norm(x)
    for head in range(D // 16):
        key = leaky_keys(layer.persistent_keys, h, head, 2)
        reads = [
            (key @ k.T).softmax(-1) @ v
            for k, v in zip(layer.entry_keys[:, head], layer.entry_values[:, head], strict=True)
        ]
        persistent.append(sum(reads) / len(reads) * torch.exp(10 * layer.persistent_scale[head]))
    return x + torch.cat(persistent, -1) @ layer.persistent_out.weight.T


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 128])
def test_equals_the_dense_equations(width):
    memory = make("memory_mosaic", width)
    x = tokens(memory, 1, 101)
    expected = x[0]
    for layer in memory.layers:
        expected = by_hand(layer, expected)
    y, state = memory.write(x[:, :100])
    assert_close(y[0], expected[:100], 1e-12, "outputs")
    assert_close(memory.read(x[:, 100:], state)[0], expected[100:], 1e-12, "the last token as a query")


@torch.no_grad()
def test_a_query_finishes_the_last_value():
    """The value of the last stored token looks ahead to the query: a zero in its place would change the answer."""
    memory = build("memory_mosaic", width=64, depth=1).double()
    layer = memory.layers[0]
    state = memory.write(tokens(memory, 1, 12))[1].layers[0]
    q = layer.context_norm(tokens(memory, 1, 2, seed=5))
    finished = layer._values(state.pending, layer._project_values(q))
    assert finished.shape == (1, 2, 4, 16)
    assert (finished[:, 0] - finished[:, 1]).abs().max() > 1e-2
    assert state.values.shape[1] == 11


@torch.no_grad()
def test_the_first_token_has_no_context():
    memory = build("memory_mosaic", width=64, depth=1).double()
    layer, x = memory.layers[0], tokens(memory, 2, 1)
    expected = layer._persistent(x, layer.persistent_keys.write(layer.persistent_norm(x), torch.zeros(2, 4, 16))[0])
    assert_close(memory.write(x)[0], expected, 1e-14, "one token")


@torch.no_grad()
def test_no_length_is_special():
    """Upstream refuses streams beyond its block size; here 256 and beyond are lengths as any other."""
    memory = build("memory_mosaic", width=64)
    x = tokens(memory, 1, 2100)
    y, state = memory.write(x)
    assert torch.isfinite(y).all()
    assert state.layers[0].keys.shape[1] == 2100


def test_weight_decay_skips_scales_and_leaks():
    layer = build("memory_mosaic", width=64).layers[0]
    skipped = {name for name, p in layer.named_parameters() if getattr(p, "_no_weight_decay", False)}
    mixing = {"leak", "scale", "value_mix", "value_scale", "persistent_scale"}
    assert skipped == {n for n, _ in layer.named_parameters() if n.split(".")[-1] in mixing}
    assert len(skipped) == 7


def test_memories_start_between_two_tokens_and_a_fifth():
    layer = build("memory_mosaic", width=128).layers[0]
    log_decay = layer.context_keys._log_decay()
    torch.testing.assert_close(log_decay, -torch.linspace(0.5, 5, 8))
    assert ((layer.value_mix >= 0) & (layer.value_mix <= 1)).all()


def test_settings_are_checked():
    for settings in ({"memories": 0}, {"slots_ratio": 0}, {"head_dim": 0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            build("memory_mosaic", **settings)
