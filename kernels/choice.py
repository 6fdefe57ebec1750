"""Choosing among the forms of an operator, by name or automatically, and saying which was chosen and why.

Every operator lists its forms best first. `kernel="auto"` is the first that nothing speaks against; a form asked for by
name either runs or is refused with a reason, never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

NOTHING: Mapping[str, str | None] = MappingProxyType({})


def pick(operator: str, forms: dict[str, Callable], kernel: str) -> Callable:
    """The form that `pick_name` names."""
    return forms[pick_name(operator, forms, kernel)]


def pick_name(
    operator: str,
    forms: dict[str, Callable],
    kernel: str,
    unable: Mapping[str, str | None] = NOTHING,
    slow: Mapping[str, str | None] = NOTHING,
) -> str:
    """The name of the form called `kernel`, or for `"auto"` of the first that is neither unable nor slow.

    Args:
        operator: its name, for messages.
        forms: by name, best first; the last can always run.
        kernel: the name of one, or `"auto"`.
        unable: why a form cannot run here, by its name; None or no entry if it can.
        slow: why a form is not worth choosing, likewise.

    Raises:
        ValueError: there is no such form (the message lists those that exist), or it is unable to run.
    """
    if kernel == "auto":
        return next(name for name in forms if not unable.get(name) and not slow.get(name))
    if kernel not in forms:
        raise ValueError(f"{operator} has no kernel {kernel!r}; choose from {', '.join(['auto', *forms])}")
    if reason := unable.get(kernel):
        raise ValueError(f"{operator} cannot use kernel {kernel!r}: {reason}; leave the choice to 'auto'")
    return kernel
