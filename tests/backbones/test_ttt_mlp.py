"""TTT-MLP against a reading of the published equations by autograd, its place in a mini-batch, and its settings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build, lookup
from tests.backbones.contract import assert_close, make, tokens
from tests.backbones.test_deltaformer import rms


def turn(x, position):
    """Rotary position of one token [H, 16] by complex numbers, theta 10^4."""
    z = torch.complex(x[:, :8], x[:, 8:])
    angle = torch.tensor(float(position), dtype=torch.float64) * 1e4 ** (-torch.arange(8, dtype=torch.float64) / 8)
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def heads(x, weight, part):
    D = x.shape[-1]
    return (x @ weight[part * D : (part + 1) * D].T).view(-1, 16)


def by_hand(layer, x):
    """A layer over one stream [T, D], one token after another: the inner step is autograd's on the published loss."""
    T, H, b, window = len(x), layer.heads, layer.mini_batch, layer.config.window
    anchor, keys, values, ys = [w.detach() for w in (layer.W1, layer.b1, layer.W2, layer.b2)], [], [], []

    def network(row, w):  # row [H, 16]
        z = torch.einsum("hf,hfm->hm", row, w[0]) + w[1]
        z = torch.einsum("hm,hmf->hf", gelu(z), w[2]) + w[3]
        return F.layer_norm(z, (16,), eps=1e-6) * layer.inner_norm_weight + layer.inner_norm_bias

    for t in range(T):
        # Window attention, with rotary positions counted from the start of the stream.
        h = rms(x[t], layer.window_norm.weight)
        q, k, v = (heads(h, layer.window_qkv.weight, i) for i in range(3))
        keys, values = [*keys, turn(k, t)], [*values, v]
        near_k, near_v = torch.stack(keys[-window - 1 :]), torch.stack(values[-window - 1 :])
        weight = (torch.einsum("hk,jhk->hj", turn(q, t), near_k) / 4).softmax(-1)
        y = x[t] + layer.window_out.weight @ torch.einsum("hj,jhk->hk", weight, near_v).flatten()

        # One inner step, at the anchor of the mini-batch.
        p = t % b
        total = [torch.zeros_like(w) for w in anchor] if p == 0 else total  # noqa: F821
        h = rms(y, layer.ttt_norm.weight)
        q, k, v = (heads(h, layer.ttt_qkv.weight, i) for i in range(3))
        q, k = turn(q, p), turn(k, p)
        lr = (layer.rate.weight @ h + layer.rate.bias).sigmoid() / 16
        with torch.enable_grad():
            w = [a.clone().requires_grad_() for a in anchor]
            loss = 0.5 * (network(k, w) - (v - k)).square().sum()
            grads = torch.autograd.grad(loss, w)
        total = [s + lr.view(-1, *[1] * (g.ndim - 1)) * g for s, g in zip(total, grads, strict=True)]
        tau = max(0.0, 1 + layer.theta[p].item()) / (p + 1)
        now = [a - tau * s for a, s in zip(anchor, total, strict=True)]
        o = F.layer_norm(
            (q + network(q, now)).view(16 * H), (16 * H,), layer.post_norm.weight, layer.post_norm.bias, 1e-6
        )
        anchor = now if p == b - 1 else anchor

        y = y + layer.ttt_out.weight @ (gelu(layer.gate.weight @ h) * o)
        ys.append(y + layer.mlp.down.weight @ F.gelu(layer.mlp.up.weight @ rms(y, layer.mlp_norm.weight)))
    return torch.stack(ys)


@torch.no_grad()
@pytest.mark.parametrize(("width", "mini_batch"), [(64, 8), (128, 20)])
def test_equals_the_published_equations(width, mini_batch):
    """Longer than the window and two mini-batches; one step size is clamped at zero."""
    torch.manual_seed(1)
    memory = build("ttt_mlp", width=width, depth=2, mini_batch=mini_batch).double()
    for parameter in memory.parameters():
        parameter += 0.05 * torch.randn_like(parameter)
    for layer in memory.layers:
        layer.theta[mini_batch // 2] = -1.5
    x = tokens(memory, 1, 45)
    expected = x[0]
    for layer in memory.layers:
        expected = by_hand(layer, expected)
    y, state = memory.write(x[:, :44])
    assert_close(y[0], expected[:44], 1e-12, "outputs")
    assert_close(memory.read(x[:, 44:], state)[0], expected[44:], 1e-12, "the last token as a query")


def test_mini_batches_of_table_11():
    assert [build("ttt_mlp", width=width).layers[0].mini_batch for width in (64, 128)] == [256, 128]


@torch.no_grad()
def test_the_place_in_a_mini_batch():
    """p = L mod b, and at an edge nothing of the old mini-batch is left but its weights."""
    memory = build("ttt_mlp", width=64, depth=1, mini_batch=16)
    _, states = memory.write_at(tokens(memory, 2, 40), (1, 15, 16, 17, 32, 40))
    assert [state.layers[0].elapsed.shape[1] for state in states] == [1, 15, 0, 1, 0, 8]
    for state, empty in zip(states, (False, False, True, False, True, False), strict=True):
        assert all((t == 0).all() == empty for t in state.layers[0].total)


def test_a_clamped_step_size_learns_nothing():
    """theta below -1 makes tau 0 with zero gradient; its neighbours learn."""
    memory = make("ttt_mlp", 64)
    layer = memory.layers[0]
    with torch.no_grad():
        layer.theta.zero_()
        layer.theta[3] = -1.3
    memory.write(tokens(memory, 1, 8))[0].square().sum().backward()
    assert layer.theta.grad[3] == 0
    assert (layer.theta.grad[[0, 1, 2, 4, 5, 6, 7]] != 0).all()


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 128])
def test_the_inner_norm_is_not_switched_off(width):
    """Fast weights start at 0.02; the eps of their LayerNorm must not swallow what they put out."""
    torch.manual_seed(0)
    layer = build("ttt_mlp", width=width).layers[0]
    k = layer._fast_inputs(layer.ttt_norm(tokens(build("ttt_mlp", width=width), 2, 64)), 0, 64)[1].transpose(1, 2)
    z = gelu(k @ layer.W1) @ layer.W2
    variance = z.var(-1, correction=0)
    assert (variance / (variance + 1e-6)).sqrt().mean() > 0.9


@torch.no_grad()
def test_a_free_gate():
    """`gate="tanh"` costs no products and still reads what it writes."""
    memory = build("ttt_mlp", width=64, gate="tanh").double()
    projected = build("ttt_mlp", width=64)
    assert projected.price().total(100) - memory.price().total(100) == 3 * 100 * 2 * 64 * 64
    x = tokens(memory, 1, 31)
    assert_close(memory.read(x[:, 30:], memory.write(x[:, :30])[1]), memory.write(x)[0][:, 30:], 1e-12, "read")


def test_settings_are_checked():
    for settings in ({"gate": "none"}, {"window": 0}, {"mini_batch": 0}, {"head_dim": 5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            build("ttt_mlp", **settings)
    assert lookup("ttt_mlp").layer.Config().window == 16
