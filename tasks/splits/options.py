"""Options of the command line, `key=value`, read into a recipe; a typo stops at once and is shown near names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from tasks.batch import check_name
from tasks.splits.recipes import RECIPES, Recipe


class OptionError(ValueError):
    """An option that does not exist or cannot be read."""


def pairs(words: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """{key: value} from `key=value` words.

    Raises:
        OptionError: for a word without "=", an unknown or repeated key; names the known ones and the nearest.
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise OptionError(f"{word!r}: expected option=value, with option one of {', '.join(known)}")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise OptionError(f"{word}: there is no option {key}.{hint} There are: {', '.join(known)}")
        if key in found:
            raise OptionError(f"{key} is given twice, as {found[key]} and as {value}")
        found[key] = value
    return found


def whole(name: str, text: str, least: int | None = None) -> int:
    """A whole number; `1_000` is 1000.

    Raises:
        OptionError: for anything else, or a number below `least`.
    """
    try:
        value = int(text)
    except ValueError:
        raise OptionError(f"{name}={text}: expected a whole number") from None
    if least is not None and value < least:
        raise OptionError(f"{name}={text}: expected at least {least}")
    return value


def recipe(options: Mapping[str, str]) -> Recipe:
    """The recipe of some options, of which `split` says which recipe.

    Raises:
        OptionError: for an option that this split does not have, or that cannot be read.
        ValueError: for a value that the recipe refuses.
    """
    if "split" not in options:
        raise OptionError(f"split= is missing: one of {', '.join(RECIPES)}")
    check_name("split", options["split"], list(RECIPES))
    kind = RECIPES[options["split"]]
    types = get_type_hints(kind)
    names = option_names(kind)
    given = {name: value for name, value in options.items() if name != "split"}
    pairs([f"{name}={value}" for name, value in given.items()], names)
    return kind(**{name: _read(name, text, types[name]) for name, text in given.items()})


def option_names(kind: type[Recipe]) -> list[str]:
    """Names of a recipe's options."""
    return [field.name for field in dataclasses.fields(kind)]


def _read(name: str, text: str, kind: Any) -> Any:
    if kind is int:
        return whole(name, text)
    if kind is str:
        return text
    parts = [part.strip() for part in text.strip("[]()").split(",") if part.strip()]
    return tuple(whole(name, part) for part in parts) if kind == tuple[int, ...] else tuple(parts)
