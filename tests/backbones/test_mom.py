"""The mixture of memories against a token-by-token loop, and the properties of its routing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backbones import build
from backbones.auxiliary import auxiliary_losses
from backbones.mom import Packing
from tests.backbones import fla_reading as reading
from tests.backbones.contract import assert_close, assert_states_close, make, step_through, tokens


def fla_layer(layer):
    from fla.layers.mom import MomAttention

    D, H = layer.width, layer.heads
    gate, qkv, beta, decay = layer.project.weight.split(layer.sizes)
    q, k, v = qkv.split([D] * 3)
    fla = MomAttention(
        hidden_size=D,
        head_dim=16,
        num_heads=H,
        expand_v=1,
        num_memories=16,
        topk=3,
        shared_mem=True,
        single_kv_proj=True,
        use_output_gate=True,
    )
    ours = {
        "q_proj.weight": q,
        "shared_k.weight": k,
        "shared_v.weight": v,
        "shared_b.weight": beta,
        "shared_a.weight": decay,
        "g_proj.weight": gate,
        "gate.weight": layer.router.weight,
        "A_log": layer.decay.A_log,
        "dt_bias": layer.decay.dt_bias,
        "o_proj.weight": layer.out.weight,
        "o_norm.weight": layer.readout_norm.weight,
        **reading.qkv_convs(layer.conv.weight, [D] * 3),
    }
    return reading.load(fla, ours)


def by_hand(fla, x):
    """Each memory is a list of the tokens it has received and a state per head."""
    H, M = fla.num_heads, fla.num_memories
    received = [[] for _ in range(M + 1)]
    S = [torch.zeros(H, 16, 16, dtype=x.dtype) for _ in range(M + 1)]
    convs = torch.cat([fla.q_conv1d.weight, fla.k_conv1d.weight, fla.v_conv1d.weight])
    beta = torch.sigmoid(fla.shared_b(x))
    decay = torch.exp(-fla.A_log.exp() * F.softplus(fla.shared_a(x) + fla.dt_bias))
    ys = []
    for t in range(len(x)):
        probability = torch.softmax(fla.gate(x[t]), -1)
        best = sorted(range(M), key=lambda m, p=probability: -p[m])[:3]
        weight = {m: probability[m] / sum(probability[j] for j in best) for m in best} | {M: 1.0}
        o = 0
        for m, w in weight.items():
            received[m].append(torch.cat([fla.q_proj(x[t]), fla.shared_k(x[t]), fla.shared_v(x[t])]))
            qkv = reading.conv_silu(torch.stack(received[m][-4:]), convs)[-1]
            q, k, v = qkv.view(3, H, 16)
            q, k = reading.normalised(q) / 4, reading.normalised(k)
            S[m] = decay[t, :, None, None] * S[m]
            S[m] = S[m] + k[:, :, None] * (beta[t, :, None] * (v - (k[:, :, None] * S[m]).sum(1)))[:, None]
            o = o + w * (q[:, :, None] * S[m]).sum(1)
        ys.append(fla.o_proj(reading.rms(o, fla.o_norm.weight).flatten() * F.silu(fla.g_proj(x[t]))))
    return torch.stack(ys)


@pytest.mark.parametrize("width", [64, 128])
@torch.no_grad()
def test_equals_the_loop_over_tokens(width):
    memory = make("mom", width)
    layer, x = memory.layers[0], tokens(memory, 1, 40)
    fla = fla_layer(layer)
    expected = reading.expected_output(layer, x[0], by_hand(fla, layer.mixer_norm(x[0])))
    assert_close(layer.write(x, layer.initial_state(1))[0][0], expected, 1e-10, "outputs")


def test_packing_keeps_the_order_of_the_stream():
    choice = torch.rand(3, 50, 16).topk(3).indices
    packing = Packing(choice, 16)
    token = torch.arange(1, 51).expand(3, 50)[..., None]
    rows = packing.pack(token)[..., 0].view(3, 16, -1)
    for b in range(3):
        for m in range(16):
            received = [t + 1 for t in range(50) if m in choice[b, t]]
            assert rows[b, m].tolist() == received + [0] * (packing.load - len(received))
    assert torch.equal(packing.unpack(packing.pack(token))[..., 0], token.expand(3, 50, 3))


@torch.no_grad()
def test_a_long_stream_is_packed_in_pieces(monkeypatch):
    memory = make("mom", 64)
    x = tokens(memory, 2, 40)
    y, states = memory.write_at(x, (10, 40))
    monkeypatch.setattr("backbones.mom.PIECE", 7)
    z, cut = memory.write_at(x, (10, 40))
    assert len(cut) == 2
    assert_close(z, y, 1e-12, "outputs")
    assert_states_close(cut[0], states[0], 1e-12, "after 10")
    assert_states_close(cut[1], states[1], 1e-12, "after 40")


@torch.no_grad()
def test_streams_do_not_meet_in_training_mode():
    """The packed rows of different streams lie side by side: no convolution may run across them."""
    memory = make("mom", 64).train()
    x = tokens(memory, 2, 40)
    changed = torch.cat([tokens(memory, 1, 40, seed=9), x[1:]])
    assert_close(memory.write(changed)[0][1], memory.write(x)[0][1], 1e-13, "the other stream")


@pytest.mark.parametrize("form", ["chosen far", "one memory", "ties"])
def test_extreme_routing(form):
    """Router logits of +-1000 (two of the three weights underflow to 0), a collapsed router, and exact ties."""
    memory = make("mom", 64)
    for layer in memory.layers:
        with torch.no_grad():
            if form == "chosen far":
                layer.router.weight *= 1000
            elif form == "one memory":
                layer.router.weight.zero_()[5] = 50.0
            else:
                layer.router.weight.zero_()
    x = tokens(memory, 2, 30).requires_grad_()
    y, state = memory.write(x)
    expected, by_step = step_through(memory, x)
    assert_close(y.detach(), expected.detach(), 1e-9, "outputs")
    assert_states_close(state.detach(), by_step.detach(), 1e-9, form)
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in memory.parameters() if p.grad is not None)


def test_a_memory_without_tokens_stays_empty():
    memory = make("mom", 64)
    layer = memory.layers[0]
    with torch.no_grad():
        layer.router.weight.zero_()  # a tie everywhere: the same three are chosen for every token
    x = tokens(memory, 1, 20).requires_grad_()
    y, state = layer.write(x, layer.initial_state(1))
    used = state.S.detach().flatten(2).abs().amax(-1)[0] > 0
    assert used.tolist().count(True) == 4
    assert used[-1]
    assert not state.conv[0, ~used].any()
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_balance_loss():
    """Collected only inside a block; `chosen` x weight per layer when the loads are even, and it reaches the router."""
    memory = build("mom", 64)
    x = torch.randn(4, 256, 64)
    with auxiliary_losses() as losses:
        memory.write(x, outputs=False)
    (loss,) = losses.values()
    assert loss.item() == pytest.approx(3 * 3 * 0.01, rel=0.05)
    loss.backward()
    assert all(layer.router.weight.grad.abs().max() > 0 for layer in memory.layers)
    with auxiliary_losses() as losses:
        build("mom", 64, balance=0.0).write(x)
    assert not losses


def test_loads_start_even():
    """So that padding is cheap: the fullest memory of a stream holds less than 1.5 times its share."""
    torch.manual_seed(0)
    layer = build("mom", 128).layers[0]
    _, choice, _ = layer._route(layer.mixer_norm(torch.randn(8, 1024, 128)))
    assert Packing(choice, 16).load < 1.5 * 1024 * 3 / 16


def test_at_least_one_memory_is_chosen():
    with pytest.raises(ValueError, match="chosen=0"):
        build("mom", 64, chosen=0)
