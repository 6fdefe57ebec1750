"""A memory that is written as a stream arrives and asked at any time."""

from __future__ import annotations

import pytest
import torch

from backbones import MembershipModel, OnlineMemory


@pytest.mark.parametrize("name", ["gru", "transformer_conv", "mamba2"])
def test_writing_as_it_arrives_is_writing_at_once(name):
    model = MembershipModel(name, 64).double()
    stream = torch.randint(16, (40,)).tolist()
    memory = OnlineMemory(model)
    for symbol in stream:
        memory.write([symbol])
    online, whole = memory.read(stream[3:7]), OnlineMemory(model).write(stream).read(stream[3:7])
    assert online.confidence == pytest.approx(whole.confidence, abs=1e-12)
    assert (online.occurred, online.flops) == (whole.occurred, whole.flops)
    assert online.flops == model.price().total(41)
    assert memory.read(stream[3:7]) == online, "reading changed the memory"
    assert memory.reset().write(stream[:5]).length == 5


def test_an_empty_memory_can_be_asked():
    answer = OnlineMemory(MembershipModel("gru", 16)).read([1, 2, 3])
    assert 0.5 <= answer.confidence <= 1


def test_symbols_that_do_not_exist():
    memory = OnlineMemory(MembershipModel("gru", 16))
    with pytest.raises(ValueError, match=r"stream \[3, 16\]: expected symbols 0..15"):
        memory.write([3, 16])
    with pytest.raises(ValueError, match="a candidate of 7 symbols; this model takes 1 to 6"):
        memory.read([1] * 7)
    assert memory.length == 0
