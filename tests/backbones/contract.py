"""What the contract tests share: a backbone whose every parameter matters, and comparisons that print what differs."""

from __future__ import annotations

import torch
from torch import Tensor

from backbones import MemoryBackbone, State, build

WIDTHS = (64, 128)


def make(name: str, width: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 1):
    """A backbone with noise on every parameter: a matrix that starts at zero would hide what lies behind it."""
    torch.manual_seed(seed)
    memory = build(name, width=width).to(device=device, dtype=torch.float64)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return memory.to(dtype).eval()


def tokens(memory: MemoryBackbone, batch: int, length: int, seed: int = 2) -> Tensor:
    """Unit-scale tokens [B, L, D], with repetitions as in real streams."""
    parameter = next(memory.parameters())
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.randn(16, memory.width, generator=generator, dtype=torch.float64)
    index = torch.randint(16, (batch, length), generator=generator)
    return symbols[index].to(parameter.device, parameter.dtype)


def ratio(found: Tensor, expected: Tensor) -> float:
    """RMS of the difference over RMS of what is expected; absolute where that is zero."""
    difference = (found.double() - expected.double()).square().mean().sqrt()
    scale = expected.double().square().mean().sqrt()
    return float(difference / scale) if scale > 0 else float(difference)


def assert_close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    assert torch.isfinite(found).all(), f"{what}: not finite"
    error = ratio(found, expected)
    assert error <= tolerance, f"{what}: RMS ratio {error:.2e} above {tolerance:.0e}"


def assert_states_close(found: State, expected: State, tolerance: float, what: str) -> None:
    found, expected = found.tensors(), expected.tensors()
    assert found.keys() == expected.keys(), what
    for name, tensor in expected.items():
        if not tensor.is_floating_point():
            assert torch.equal(found[name], tensor), f"{what}: {name} is {found[name]}, expected {tensor}"
        elif tensor.numel():
            assert_close(found[name], tensor, tolerance, f"{what}, state {name}")


def step_through(memory: MemoryBackbone, x: Tensor) -> tuple[Tensor, State]:
    """The oracle: one token after another."""
    state, ys = memory.initial_state(x.shape[0]), []
    for x_BD in x.unbind(1):
        y, state = memory.step(x_BD, state)
        ys.append(y)
    return torch.stack(ys, 1), state
