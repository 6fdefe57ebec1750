"""The state of a memory: a plain structure of tensors, batch first, that can be counted, moved, saved and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor


def _map(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, State):
        return value.map(fn)
    if isinstance(value, dict):
        return {name: _map(item, fn) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map(item, fn) for item in value)
    if value is None:
        return None
    raise TypeError(f"a state holds tensors, states, tuples, dicts or None, found {type(value).__name__}")


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, State):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value or ())
    for key, item in items:
        yield from _walk(item, f"{name}.{key}" if name else str(key))


@dataclass
class State:
    """Base of every state: a dataclass whose fields are tensors [B, ...], states, tuples or dicts of them.

    Nothing that a later write or read needs lives anywhere else: no counter or cache in a module. An operation returns
    a new state and leaves the old one as it was, so one state can be written on in two directions.
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same structure with `fn` applied to every tensor."""
        return type(self)(**{field.name: _map(getattr(self, field.name), fn) for field in fields(self)})

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under its dotted name, in a fixed order."""
        return dict(_walk(self, ""))

    @property
    def nbytes(self) -> int:
        """Bytes held, all streams of the batch together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def detach(self) -> Self:
        return self.map(lambda tensor: tensor.detach())

    def to(self, *args, **kwargs) -> Self:
        """As `Tensor.to`. A dtype moves floating tensors only: positions stay integers."""
        return self.map(
            lambda tensor: (
                tensor.to(*args, **kwargs)
                if tensor.is_floating_point()
                else tensor.to(
                    *[a for a in args if not _is_dtype(a)], **{k: v for k, v in kwargs.items() if k != "dtype"}
                )
            )
        )

    def repeat_interleave(self, times: int) -> Self:
        """Each stream's state `times` in a row: the batch of a read that has no form of its own."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, dim=0))


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype"


@dataclass
class StackState(State):
    """The states of the layers of a backbone, bottom first."""

    layers: tuple[State, ...]
