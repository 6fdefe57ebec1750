"""What a memory costs, in FLOPs: terms, totals and the count that checks them; `flops.terms` has the convention."""

from __future__ import annotations

from pkgutil import resolve_name

from .terms import (
    Price,
    Term,
    attention_pairs,
    causal_pairs,
    depthwise_conv,
    linear,
    per_token,
    stack,
    state_read,
    state_write,
    strict_pairs,
    windowed_pairs,
)

__all__ = [
    "Price",
    "Term",
    "attention_pairs",
    "causal_pairs",
    "depthwise_conv",
    "linear",
    "per_token",
    "price",
    "stack",
    "state_read",
    "state_write",
    "strict_pairs",
    "windowed_pairs",
]

PROVIDER = "backbones.registry:price_of"
"""Who knows the backbones. Resolved by name at call time, so that this package depends on none of them."""


def price(name: str, **overrides) -> Price:
    """The price of a registered backbone: `price("gla", width=64).total(4097)`.

    Args:
        name: a registered backbone.
        overrides: `width` and fields of the layer's Config, as for `backbones.build`.
    """
    return resolve_name(PROVIDER)(name, **overrides)
