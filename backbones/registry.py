"""Names of backbones: `@register("gla")` over a `MemoryLayer`, `build("gla", width=64)` for three of them in a stack.

Every module of this package is imported once, at the first look-up, and registers what it defines; a module that fails
to import is named with its error when a name is not found, instead of «not found» alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from flops import Price

from .base import MemoryBackbone, MemoryLayer

REQUIRED = ("initial_state", "step")
NO_ARCHITECTURES = ("lightning", "callbacks")
"""Modules of this package that register nothing and take seconds to import."""


@dataclass(frozen=True)
class Entry:
    """A registered name: the layer class and the Config fields that this name sets."""

    name: str
    layer: type[MemoryLayer]
    defaults: dict[str, Any]

    @property
    def summary(self) -> str:
        """First line of the module's page."""
        module = importlib.import_module(self.layer.__module__)
        return (module.__doc__ or "").strip().split("\n")[0]


_entries: dict[str, Entry] = {}
_broken: dict[str, BaseException] = {}


def register(name: str, **defaults: Any) -> Callable[[type[MemoryLayer]], type[MemoryLayer]]:
    """Class decorator: make a `MemoryLayer` known as `name`, with `defaults` for fields of its Config.

    Raises:
        TypeError: not a MemoryLayer, a member missing, or a default that Config does not have.
        ValueError: the name is taken.
    """

    def decorate(layer: type[MemoryLayer]) -> type[MemoryLayer]:
        if not (isinstance(layer, type) and issubclass(layer, MemoryLayer)):
            raise TypeError(f"@register({name!r}) expects a subclass of MemoryLayer, found {layer!r}")
        missing = [member for member in REQUIRED if getattr(layer, member) is getattr(MemoryLayer, member)]
        if missing:
            raise TypeError(
                f"{layer.__name__} cannot be registered as {name!r}: it does not define {', '.join(missing)}"
            )
        if not dataclasses.is_dataclass(layer.Config) or not layer.Config.__dataclass_params__.frozen:
            raise TypeError(f"{layer.__name__}.Config must be a frozen dataclass")
        if name in _entries and _entries[name].layer.__qualname__ != layer.__qualname__:
            raise ValueError(
                f"{name!r} is already registered by {_entries[name].layer.__module__}; choose another name"
            )
        make_config(layer, defaults, name)
        _entries[name] = Entry(name, layer, defaults)
        return layer

    return decorate


@cache
def _load() -> None:
    import backbones

    for module in pkgutil.iter_modules(backbones.__path__):
        if module.name in NO_ARCHITECTURES:
            continue
        try:
            importlib.import_module(f"backbones.{module.name}")
        except Exception as error:  # one broken file must not hide the others; lookup() names it
            _broken[module.name] = error


def available() -> list[str]:
    """Every registered name, sorted."""
    _load()
    return sorted(_entries)


def lookup(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: unknown; the message has near names, all names, and modules that failed to import.
    """
    _load()
    if name in _entries:
        return _entries[name]
    near = difflib.get_close_matches(name, _entries, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    broken = "".join(f"\n  {module}.py failed to import: {error!r}" for module, error in _broken.items())
    raise ValueError(f"no backbone is called {name!r}.{hint} Known: {', '.join(available())}.{broken}")


def make_config(layer: type[MemoryLayer], overrides: dict[str, Any], name: str) -> Any:
    """`layer.Config(**overrides)` with a message that lists the fields when one is unknown."""
    known = [field.name for field in dataclasses.fields(layer.Config)]
    for field in overrides:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{name} has no setting {field!r}.{hint} It has: {', '.join(known) or 'none'}")
    return layer.Config(**overrides)


def build(name: str, width: int = 64, depth: int = 3, **overrides: Any) -> MemoryBackbone:
    """A stack of `depth` layers of the registered backbone `name`.

    Args:
        name: see `available()`.
        width: D, the embedding width.
        depth: layers; the paper's backbones all have three.
        overrides: fields of the layer's Config.

    Raises:
        ValueError: unknown name or field, or sizes that do not fit each other.
    """
    entry = lookup(name)
    if width < 1 or depth < 1:
        raise ValueError(f"width={width}, depth={depth}: both must be at least 1")
    config = make_config(entry.layer, {**entry.defaults, **overrides}, name)
    return MemoryBackbone(entry.layer.stack(width, config, depth), name)


def price_of(name: str, **overrides: Any) -> Price:
    """The closed form of a configuration, without allocating its parameters."""
    with torch.device("meta"):
        return build(name, **overrides).price()
