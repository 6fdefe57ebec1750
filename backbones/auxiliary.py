"""Auxiliary losses: a layer names one while it writes, and the training step that asked for them adds them up.

    with auxiliary_losses() as losses:
        logits = model(...)
    loss = cross_entropy + sum(losses.values())

Outside such a block `add_auxiliary_loss` does nothing, so evaluation and tests pay nothing and see no side effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_losses: ContextVar[dict[str, Tensor] | None] = ContextVar("auxiliary_losses", default=None)


@contextmanager
def auxiliary_losses() -> Iterator[dict[str, Tensor]]:
    """Collect what the layers add within the block, summed by name."""
    token = _losses.set({})
    try:
        yield _losses.get()
    finally:
        _losses.reset(token)


def wants_auxiliary_losses() -> bool:
    """Whether a block is open: the cue to compute a loss that costs something."""
    return _losses.get() is not None


def add_auxiliary_loss(name: str, value: Tensor) -> None:
    """Add a scalar to the loss called `name`, if anybody collects."""
    losses = _losses.get()
    if losses is not None:
        losses[name] = losses[name] + value if name in losses else value
