"""Names of memory systems: what `evaluate.py memory=...` can build.

    @register("parrot")
    class Parrot(MemorySystem): ...

    system = build("parrot", volume=3)

A class whose libraries are an optional extra is entered by its address and imported when it is built, so that listing
names needs none of them. A name taken twice, an unknown name and a missing member are errors that say so.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, TypeVar

from vlms.protocol import MemoryFailure, MemorySystem

Factory = Callable[..., MemorySystem]
F = TypeVar("F", bound=Factory)

_ENTRIES: dict[str, Factory | str] = {
    "local": "vlms.local:LocalModel",
    "server": "vlms.server:Server",
}


def register(name: str) -> Callable[[F], F]:
    """Decorator: enter a class or function that makes a memory system.

    Raises:
        ValueError: the name is taken by another one.
    """

    def enter(factory: F) -> F:
        held = _ENTRIES.setdefault(name, factory)
        same = not isinstance(held, str) and (held.__module__, held.__qualname__) == (
            factory.__module__,
            factory.__qualname__,
        )
        if not same:
            raise ValueError(f"the memory name {name!r} is taken by {held!r}; choose another")
        _ENTRIES[name] = factory  # a module imported again brings its classes anew
        return factory

    return enter


def available() -> list[str]:
    """All names, sorted."""
    return sorted(_ENTRIES)


def lookup(name: str) -> Factory:
    """The class or function behind a name.

    Raises:
        MemoryFailure: no such name; near ones are given. A module that does not import; its error is given.
    """
    if name not in _ENTRIES:
        near = difflib.get_close_matches(name, available(), n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise MemoryFailure(
            f"no memory is called {name!r}.{hint} Known: {', '.join(available())}. One of your own is imported by "
            "plugins=[your.module]"
        )
    entry = _ENTRIES[name]
    if not isinstance(entry, str):
        return entry
    try:
        return resolve_name(entry)
    except ImportError as error:
        raise MemoryFailure(f"memory {name!r} needs the extra `vlm`: pip install 'ecclab[vlm]' ({error})") from error


def build(name: str, /, **settings: Any) -> MemorySystem:
    """Make a memory system.

    Raises:
        MemoryFailure: an unknown name or setting, or a setting that is missing.
        TypeError: what was made lacks members of the protocol; they are named.
    """
    factory = lookup(name)
    parameters = inspect.signature(factory).parameters
    try:
        inspect.signature(factory).bind(**settings)
    except TypeError as error:
        raise MemoryFailure(f"memory {name!r}: {error}; its settings are {', '.join(parameters) or 'none'}") from None
    system = factory(**settings)
    wanted = [m for m in dir(MemorySystem) if not m.startswith("_")] + list(MemorySystem.__annotations__)
    if missing := sorted({m for m in wanted if not hasattr(system, m)}):
        raise TypeError(f"memory {name!r} lacks {', '.join(missing)}; see vlms/protocol.py for what each one is")
    return system
