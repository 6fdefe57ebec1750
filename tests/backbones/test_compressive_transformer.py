"""The Compressive Transformer: schedule, a reading from the whole past, gradient routes, the reconstruction loss."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from backbones import build
from backbones.auxiliary import auxiliary_losses
from backbones.compressive_memory import Layout
from tests.backbones.contract import assert_close, assert_states_close, tokens

SMALL = {"block": 16, "ratios": (4, 2), "slots": (8, 4)}
"""The same memory in little: slots 0, 16, 20, 24, 26, 28, 29 (two groups in each level)."""


def one_layer(width=64, **settings):
    torch.manual_seed(1)
    memory = build("compressive_transformer", width=width, depth=1, **settings).double()
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return memory


def slots(state):
    return sum(len(level) for level in state.layers[0].past())


# ---- the schedule ----------------------------------------------------------------------------------------------------
@torch.no_grad()
def test_slots_block_by_block():
    """Appendix C.2's warm-up: what the tokens of each block see beside their own block."""
    memory = build("compressive_transformer", width=64, depth=1)
    expected = [0, 128, 144, 160, 164, 168, 172, 176, 180, 184, 188, 192, 193, 193, 193]
    state, found = memory.initial_state(1), []
    for _ in expected:
        found.append(slots(state))
        _, state = memory.write(tokens(memory, 1, 128), state, outputs=False)
    assert found == expected
    assert [Layout(128, (8, 4), (32, 32)).past(b) for b in range(15)] == expected


def test_closed_form_of_the_paper():
    """sum_b [6144 D^2 + 6 D (128 m_b + 8256)] + upkeep + the rest, for any T = 128 n + r, at both widths."""
    for D in (64, 128):
        price, layout = build("compressive_transformer", width=D).price(), Layout(128, (8, 4), (32, 32))
        for n, r in ((0, 1), (0, 33), (1, 0), (2, 5), (8, 1), (11, 127), (12, 1), (13, 64), (16, 1), (32, 1)):
            blocks = sum(6144 * D * D + 6 * D * (128 * layout.past(b) + 8256) for b in range(n))
            upkeep = max(0, n - 1) * 320 * D * D + max(0, n - 3) * 48 * D * D + max(0, n - 11) * (32 * D * D + 16 * D)
            rest = r * 48 * D * D + 6 * D * (r * layout.past(n) + r * (r + 1) // 2)
            assert price.total(128 * n + r) == 3 * (blocks + upkeep + rest)
        assert price.read(4096) == 3 * (48 * D * D + 1164 * D)


@torch.no_grad()
def test_the_first_long_term_update_needs_no_gru():
    """The one product that is charged and not executed: 12 D^2, once per stream and layer."""
    memory = one_layer()
    x = tokens(memory, 1, 1536)
    _, state = memory.write(x[:, :-1], outputs=False)
    with FlopCounterMode(display=False) as counter:
        memory.step(x[:, -1], state)
    price = memory.price()
    assert price.total(1536) - price.total(1535) - counter.get_total_flops() == 12 * 64 * 64


# ---- a reading from the whole past -----------------------------------------------------------------------------------
def by_hand(layer, x):
    """A layer over one stream [T, D]: every slot from the tokens it stands for, every token on its own.

    Block b sees the blocks before it by their age: block b - 1 whole, those before it as groups of level 1, older ones
    as groups of level 2, and all others in the long-term slot.
    """
    (T, D), layout = x.shape, layer.layout
    block, (r1, r2), (g1, g2) = layout.block, layout.ratios, layout.groups
    n1, n2 = layout.slots[0] // g1, layout.slots[1] // g2  # blocks that the levels hold
    h, full = layer.attention_norm(x), T // block
    compressed1 = [layer.compress1.weight @ c.flatten() + layer.compress1.bias for c in h[: full * block].split(r1)]
    groups1 = [torch.stack(compressed1[i * g1 : (i + 1) * g1]) for i in range(full)]
    groups2 = [
        torch.stack([layer.compress2.weight @ c.flatten() + layer.compress2.bias for c in group.split(r2)])
        for group in groups1
    ]
    long_term = []
    for group in groups2:
        weight = (group @ layer.long_term_key.weight.T @ layer.long_term_query / D**0.5).softmax(0)
        u = weight @ (group @ layer.long_term_value.weight.T)
        gru = layer.long_term_gru
        w = gru.input.weight, gru.hidden.weight
        long_term.append(torch.gru_cell(u[None], long_term[-1][None], *w)[0] if long_term else u)

    ys = []
    for t in range(T):
        b, start = t // block, t // block * block
        old2 = max(0, b - 1 - n1 - n2)  # blocks that have left level 2
        seen = [
            *[long_term[old2 - 1][None]][: min(old2, 1)],
            *groups2[old2 : max(0, b - 1 - n1)],
            *groups1[max(0, b - 1 - n1) : max(0, b - 1)],
            h[max(0, start - block) : t + 1],
        ]
        kv = torch.cat(seen) @ layer.key_value.weight.T
        k, v = kv.view(len(kv), 2, -1, 16).unbind(1)
        q = (layer.query.weight @ h[t]).view(-1, 16)
        distance = torch.arange(len(kv) - 1, -1, -1)
        table = layer.positions[:, layout.positions - 1 - distance]
        weight = ((torch.einsum("hk,jhk->hj", q, k) + torch.einsum("hk,hjk->hj", q, table)) / 4).softmax(-1)
        o = layer.out(torch.einsum("hj,jhk->hk", weight, v).flatten())

        def gate(module, new, kept):
            w = module.input.weight, module.hidden.weight, module.input.bias, module.hidden.bias
            return torch.gru_cell(new[None], kept[None], *w)[0]

        y = gate(layer.attention_gate, o, x[t])
        up, _, down = layer.ffn
        ys.append(gate(layer.ffn_gate, down(F.gelu(up(layer.ffn_norm(y)))), y))
    return torch.stack(ys)


@torch.no_grad()
@pytest.mark.parametrize(("length", "settings"), [(16 * 12 + 5, SMALL), (16 * 9, SMALL), (128 * 13 + 70, {})])
def test_equals_a_reading_from_the_whole_past(length, settings):
    """In little with all levels full, and at the paper's sizes past the first long-term slot."""
    memory = one_layer(**settings)
    x = tokens(memory, 1, length + 1)
    expected = by_hand(memory.layers[0], x[0])
    y, state = memory.write(x[:, :-1])
    assert_close(y[0], expected[:-1], 1e-12, "outputs")
    assert_close(memory.read(x[:, -1:], state)[0], expected[-1:], 1e-12, "the last token as a query")


@torch.no_grad()
@pytest.mark.parametrize("positions", ["distance", "upstream"])
def test_pieces_at_every_cut_in_little(positions):
    memory = one_layer(**SMALL, positions=positions)
    x = tokens(memory, 1, 16 * 9 + 3)
    y, state = memory.write(x)
    for cut in range(1, x.shape[1]):
        y1, state1 = memory.write(x[:, :cut])
        y2, state2 = memory.write(x[:, cut:], state1)
        assert_close(torch.cat([y1, y2], 1), y, 1e-12, f"outputs cut at {cut}")
        assert_states_close(state2, state, 1e-12, f"cut at {cut}")
        assert_close(memory.read(x[:, cut : cut + 1], state1), y[:, cut : cut + 1], 1e-12, f"read after {cut}")


@torch.no_grad()
def test_steps_equal_the_write_in_little():
    memory = one_layer(**SMALL)
    x = tokens(memory, 2, 16 * 8 + 3)
    y, state = memory.write(x)
    stepped = memory.initial_state(2)
    for t in range(x.shape[1]):
        out, stepped = memory.step(x[:, t], stepped)
        assert_close(out, y[:, t], 1e-12, f"token {t}")
    assert_states_close(stepped, state, 1e-12, "steps")


def test_a_distance_has_one_position():
    """Upstream's index moves with the memory: a distance means another entry in each block."""
    ours, upstream = (one_layer(positions=p).layers[0] for p in ("distance", "upstream"))
    with torch.no_grad():
        for layer in (ours, upstream):
            layer.positions.copy_(torch.arange(321.0)[:, None].expand(321, 16))
    for past in (0, 128, 144, 193):
        for row in (0, 5, 127):
            seen = past + row + 1
            near = min(seen, 10)
            expected = torch.arange(320, 320 - near, -1).double()
            assert torch.equal(ours._seen_positions(seen, past)[0, -near:, 0].flip(0), expected)
            assert torch.equal(upstream._seen_positions(seen, past)[0, -near:, 0].flip(0), expected - 193 + past)


def test_layers_share_one_table_of_positions():
    memory = build("compressive_transformer", width=64)
    assert len({id(layer.positions) for layer in memory.layers}) == 1
    assert memory.layers[0].positions.shape == (4, 321, 16)
    assert sum(name.endswith("positions") for name, _ in memory.named_parameters()) == 1
    memory.to(torch.float64)
    assert len({id(layer.positions) for layer in memory.layers}) == 1


# ---- gradients -------------------------------------------------------------------------------------------------------
COMPRESSIONS = {"compress1.weight", "compress1.bias", "compress2.weight", "compress2.bias"}
LONG_TERM = {
    "long_term_query", "long_term_key.weight", "long_term_value.weight",
    "long_term_gru.input.weight", "long_term_gru.hidden.weight",
}  # fmt: skip


def learned(memory, loss):
    """Parameters of the bottom layer that a loss reaches."""
    memory.zero_grad()
    loss.backward(retain_graph=True)
    reached = {n: p.grad for n, p in memory.layers[0].named_parameters() if p.grad is not None}
    return {name for name, grad in reached.items() if grad.abs().max() > 0}


@pytest.mark.parametrize("compress_grad", ["auxiliary", "end_to_end"])
def test_gradient_routes(compress_grad):
    """Every parameter by name: which loss reaches it, before and after the long-term slot exists."""
    memory = one_layer(**SMALL, compress_grad=compress_grad)
    everything = {name for name, _ in memory.layers[0].named_parameters()}
    for length, expected in ((16 * 4 + 3, everything - LONG_TERM), (16 * 9 + 3, everything)):
        with auxiliary_losses() as losses:
            y, _ = memory.write(tokens(memory, 1, length))
        if compress_grad == "end_to_end":
            assert learned(memory, y.square().sum()) == expected
            assert not losses
        else:
            assert learned(memory, y.square().sum()) == expected - COMPRESSIONS
            assert learned(memory, losses["reconstruction"]) == COMPRESSIONS


def test_the_loss_through_a_read_reaches_the_tokens_behind_a_slot():
    """With fixed weights a compression still passes gradients on: the memory is not detached between blocks."""
    memory = one_layer(**SMALL)
    x = tokens(memory, 1, 16 * 5).requires_grad_()
    memory.eval()
    memory.read(tokens(memory, 1, 2, seed=5), memory.write(x, outputs=False)[1]).sum().backward()
    assert (x.grad[0].abs().amax(-1) > 0).all()


def test_one_training_step_moves_every_parameter_at_1024():
    """Lucidrains' loss froze keys and values after the first step; here all but the long-term slot keep learning."""
    memory = build("compressive_transformer", width=64)
    with auxiliary_losses() as losses:
        y, state = memory.write(tokens(memory, 1, 1024))
        (y.square().mean() + memory.read(y[:, -3:], state).square().mean() + sum(losses.values())).backward()
    still = {n.split(".", 2)[2] for n, p in memory.named_parameters() if p.grad is None or p.grad.abs().max() == 0}
    assert still == LONG_TERM
    assert all(p.requires_grad for p in memory.parameters())


# ---- the reconstruction loss -----------------------------------------------------------------------------------------
def test_a_lossless_compression_costs_nothing():
    """Equal tokens and averaging compressions: attention finds the same in the slots as in what was evicted."""
    memory = one_layer(**SMALL)
    layer = memory.layers[0]
    with torch.no_grad():
        for compress in (layer.compress1, layer.compress2):
            compress.weight.copy_(torch.eye(64).repeat(1, compress.ratio) / compress.ratio)
            compress.bias.zero_()
    with auxiliary_losses() as losses:
        memory.write(tokens(memory, 1, 1).expand(-1, 16 * 9, -1))
    assert losses["reconstruction"] < 1e-24
    with auxiliary_losses() as losses:
        memory.write(tokens(memory, 1, 16 * 9))
    assert losses["reconstruction"] > 1e-6


def test_the_loss_is_the_same_without_outputs_and_off_the_answers():
    """It needs the top layer's queries, which a state-only write would skip; collecting it changes no state."""
    memory = one_layer(**SMALL)
    x, found = tokens(memory, 1, 16 * 6 + 1), []
    for outputs in (True, False):
        with auxiliary_losses() as losses:
            _, state = memory.write(x, outputs=outputs)
        found.append(losses["reconstruction"])
    assert torch.equal(*found)
    assert_states_close(state.detach(), memory.eval().write(x)[1].detach(), 0, "collecting")


def test_nobody_collecting_is_said_aloud():
    memory = one_layer(**SMALL)
    with pytest.warns(UserWarning, match="nobody collects the reconstruction loss"):
        memory.write(tokens(memory, 1, 16 * 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.write(tokens(memory, 1, 16))  # nothing to compress yet
        one_layer(**SMALL, compress_grad="end_to_end").write(tokens(memory, 1, 16 * 3))
        with torch.no_grad():
            memory.write(tokens(memory, 1, 16 * 3))
        memory.eval().write(tokens(memory, 1, 16 * 3))


def test_a_mean_in_the_long_term_slot():
    memory = build("compressive_transformer", width=64, long_term_init="mean")
    torch.testing.assert_close(memory.layers[0].long_term_value.weight, torch.eye(64))


def test_settings_are_checked():
    wrong = (
        {"block": 100}, {"slots": (24, 32)}, {"slots": (32, 30)}, {"ratios": (0, 4)}, {"positions": "absolute"},
        {"compress_grad": "none"}, {"long_term_init": "zero"},
    )  # fmt: skip
    for settings in wrong:
        with pytest.raises(ValueError, match=next(iter(settings))):
            build("compressive_transformer", **settings)
