"""What a memory costs, in FLOPs: terms, totals, and the count that checks them.

    price("gla", width=64).total(4097)    FLOPs of a stream of 4096 and one query, in closed form
    price_vlm("path/to/checkpoint")       the same for a vision-language model, from its config
    python -m flops                       the price list; python -m flops.vlm for vision-language models
    flops.count                           counting what runs; the only part that needs torch

`flops.terms` has the convention, docs/flops.md every formula and what is assumed.
"""

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
    written,
)
from .vlm import VlmCost, VlmPrice, price_vlm

__all__ = [
    "Price",
    "Term",
    "VlmCost",
    "VlmPrice",
    "attention_pairs",
    "causal_pairs",
    "depthwise_conv",
    "linear",
    "per_token",
    "price",
    "price_vlm",
    "stack",
    "state_read",
    "state_write",
    "strict_pairs",
    "windowed_pairs",
    "written",
]

PROVIDER, BUILDER = "backbones.registry:price_of", "backbones.registry:build"
"""Who knows the backbones. Resolved by name at call time, so that this package depends on none of them."""


def price(name: str, **overrides) -> Price:
    """The price of a registered backbone: `price("gla", width=64).total(4097)`.

    A backbone that declares no terms is built and counted; `source` says so.

    Args:
        name: a registered backbone.
        overrides: `width` and fields of the layer's Config, as for `backbones.build`.
    """
    try:
        return resolve_name(PROVIDER)(name, **overrides)
    except NotImplementedError:
        from .count import counted_price  # needs torch, which prices do not

        return counted_price(resolve_name(BUILDER)(name, **overrides))
