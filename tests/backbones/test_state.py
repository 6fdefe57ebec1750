"""States are plain: counted, moved, saved and written on in two directions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load, save

from backbones import State, available, build


@dataclass
class Nested(State):
    a: torch.Tensor
    inner: tuple[State, ...]
    cache: dict[str, torch.Tensor]
    nothing: torch.Tensor | None


@dataclass
class Leaf(State):
    position: torch.Tensor


@pytest.fixture
def nested():
    return Nested(torch.ones(2, 3), (Leaf(torch.tensor([4, 5])),), {"q": torch.zeros(2, 1, 3)}, None)


def test_names_bytes_and_maps(nested):
    assert list(nested.tensors()) == ["a", "inner.0.position", "cache.q"]
    assert nested.nbytes == 6 * 4 + 2 * 8 + 6 * 4
    doubled = nested.map(lambda tensor: 2 * tensor)
    assert torch.equal(doubled.inner[0].position, torch.tensor([8, 10]))
    assert torch.equal(nested.inner[0].position, torch.tensor([4, 5]))
    assert doubled.nothing is None


def test_a_dtype_moves_floats_only(nested):
    moved = nested.to(torch.float64)
    assert moved.a.dtype == torch.float64
    assert moved.inner[0].position.dtype == torch.int64
    assert nested.to("meta").a.is_meta


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match="a state holds tensors, states, tuples, dicts or None, found int"):
        Leaf(3).map(torch.clone)


@pytest.mark.parametrize("name", available())
def test_a_state_survives_saving(name):
    memory = build(name).double()
    with torch.no_grad():
        _, state = memory.write(torch.randn(2, 20, 64).double(), outputs=False)
        tensors = {key: tensor.contiguous() for key, tensor in state.tensors().items()}
        saved = load(save({key: tensor.clone() for key, tensor in tensors.items()}))
        order = iter(tensors)
        restored = state.map(lambda _: saved[next(order)])
        q = torch.randn(2, 3, 64).double()
        # To rounding: an expanded tensor comes back dense, and products of other strides may add in another order.
        torch.testing.assert_close(memory.read(q, restored), memory.read(q, state), rtol=1e-12, atol=1e-12)
