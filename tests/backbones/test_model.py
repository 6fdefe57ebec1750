"""The model around a backbone: embedding of candidates, several query times, states that are written on."""

from __future__ import annotations

import pytest
import torch

from backbones import MembershipModel, build


def questions(B=2, L=20, Q=6):
    lengths = torch.randint(3, 7, (B, Q))
    candidates = torch.randint(16, (B, Q, 6))
    padding = torch.arange(6) >= lengths[..., None]
    return torch.randint(16, (B, L)), candidates.masked_fill(padding, 16), lengths


@pytest.mark.parametrize("align", ["right", "left"])
def test_padding_never_reaches_the_embedding_as_a_symbol(align):
    """What stands in the padding does not matter, and the same symbols at another length are another query."""
    model = MembershipModel("gru", 16, candidate_align=align)
    _, candidates, lengths = questions()
    embedded = model.candidate(candidates, lengths)
    for q in range(candidates.shape[1]):
        n = int(lengths[0, q])
        by_hand = model.candidate.length.weight[n].clone()
        for offset in range(6):
            place = offset - (6 - n) if align == "right" else offset
            symbol = int(candidates[0, q, place]) if 0 <= place < n else 16
            by_hand = by_hand + model.candidate.symbols.weight[offset * 17 + symbol]
        torch.testing.assert_close(embedded[0, q], by_hand)


def test_right_alignment_places_the_last_symbol_at_the_same_offset():
    model = MembershipModel("gru", 16)
    pad = 16
    three = torch.tensor([[[1, 2, 3, pad, pad, pad]]])
    four = torch.tensor([[[9, 1, 2, 3, pad, pad]]])
    difference = model.candidate(four, torch.tensor([[4]])) - model.candidate(three, torch.tensor([[3]]))
    table, length = model.candidate.symbols.weight, model.candidate.length.weight
    expected = table[2 * 17 + 9] - table[2 * 17 + pad] + length[4] - length[3]
    torch.testing.assert_close(difference[0, 0], expected)


def test_unknown_alignment():
    with pytest.raises(ValueError, match="candidate_align='middle': choose 'right' or 'left'"):
        MembershipModel("gru", 16, candidate_align="middle")


@pytest.mark.parametrize("name", ["gru", "transformer_conv", "mamba2"])
def test_training_pass_is_write_and_read_at_each_time(name):
    model = MembershipModel(name, 64).double().eval()
    stream, candidates, lengths = questions()
    logits = model(stream, candidates, lengths, (5, 16, 20))
    for i, t in enumerate((5, 16, 20)):
        q = slice(2 * i, 2 * i + 2)
        expected = model.read(candidates[:, q], lengths[:, q], model.write(stream[:, :t]))
        torch.testing.assert_close(logits[:, q], expected)
    in_pieces = model.write(stream[:, 7:], model.write(stream[:, :7]))
    torch.testing.assert_close(model.read(candidates, lengths, in_pieces)[:, 4:], logits[:, 4:])


def test_full_write_gives_the_same_answers():
    model = MembershipModel("transformer_rope", 64).double().eval()
    stream, candidates, lengths = questions()
    expected = model(stream, candidates, lengths, (20,))
    model.full_write = True
    torch.testing.assert_close(model(stream, candidates, lengths, (20,)), expected)


def test_wrong_shapes_say_what_was_expected():
    memory = build("gru", width=16)
    with pytest.raises(ValueError, match=r"stream of gru: expected \[batch, tokens, 16\], found \(2, 5, 8\)"):
        memory.write(torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match="a stream of length 0 holds nothing"):
        memory.write(torch.zeros(2, 0, 16))
    with pytest.raises(ValueError, match=r"query times \(3, 3\) must increase within 1..5"):
        memory.write_at(torch.zeros(2, 5, 16), (3, 3))
    _, states = memory.write_at(torch.zeros(2, 5, 16), (2, 5))
    with pytest.raises(ValueError, match="3 queries do not split evenly over 2 query times"):
        memory.read_at(torch.zeros(2, 3, 16), states)
