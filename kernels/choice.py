"""Choosing among the forms of an operator, by name or automatically, and saying which was chosen and why.

Every operator lists its forms best first. `kernel="auto"` is the first that can run; a form asked for by name either
runs or is refused with a reason, never replaced.
"""

from __future__ import annotations

from collections.abc import Callable


def pick(operator: str, forms: dict[str, Callable], kernel: str) -> Callable:
    """The form called `kernel`, or the first for `"auto"`.

    Raises:
        ValueError: there is no such form; the message lists those that exist.
    """
    return forms[pick_name(operator, forms, kernel)]


def pick_name(operator: str, forms: dict[str, Callable], kernel: str) -> str:
    """The name of the form that `pick` returns."""
    if kernel == "auto":
        return next(iter(forms))
    if kernel not in forms:
        raise ValueError(f"{operator} has no kernel {kernel!r}; choose from {', '.join(['auto', *forms])}")
    return kernel
