"""Choosing among the forms of an operator, by name or automatically."""

from __future__ import annotations

from collections.abc import Callable


def pick(operator: str, forms: dict[str, Callable], kernel: str) -> Callable:
    """The form named `kernel`; `"auto"` is the first of `forms`, which are listed best first.

    Raises:
        ValueError: there is no such form; the message lists those that exist.
    """
    if kernel == "auto":
        return next(iter(forms.values()))
    if kernel not in forms:
        raise ValueError(f"{operator} has no kernel {kernel!r}; choose from {['auto', *forms]}")
    return forms[kernel]
