"""Causal depthwise convolution over a stream, a few tokens wide, with the cache that lets it continue.

    y_t = activation( bias + sum_j weight[:, j] * x_{t - (W - 1) + j} ),    j = 0 .. W - 1

Every channel is filtered on its own; before the stream begins the inputs are zero. `cache` holds the last `W - 1`
raw inputs, oldest first, so a stream written in pieces, however short, equals the stream written at once.

`B` batch, `L` stream length, `Q` queries, `D` channels, `W` width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kernels.choice import pick
from kernels.short_conv import depthwise, reference

FORMS = {"conv2d": depthwise.short_conv, "reference": reference.short_conv}
_ACTIVATIONS = {None: lambda y: y, "silu": F.silu}


def short_conv(
    x_BLD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None = None,
    cache: Tensor | None = None,
    activation: str | None = None,
    kernel: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Filter a stream, or its next piece.

    Args:
        x_BLD: inputs `[B, L, D]`, `L >= 1`.
        weight_DW: taps `[D, W]`; the last column multiplies the newest token.
        bias_D: `[D]` or none.
        cache: the `W - 1` inputs before this piece `[B, W - 1, D]`; none means zeros.
        activation: none or `"silu"`.
        kernel: `"auto"`, `"conv2d"` or `"reference"`.

    Returns:
        `(y [B, L, D], cache [B, W - 1, D])`, both in x's dtype.
    """
    activate, weight_DW, bias_D = _prepare(x_BLD, weight_DW, bias_D, activation)
    batch, length, channels = x_BLD.shape
    if length == 0:
        raise ValueError("short_conv got a stream of length 0; skip the call when there is nothing to write")
    width = weight_DW.shape[1]
    if cache is None:
        cache = x_BLD.new_zeros(batch, width - 1, channels)
    _check_cache(cache, x_BLD, width)
    y_BLD, cache = pick("short_conv", FORMS, kernel)(x_BLD, weight_DW, bias_D, cache.to(x_BLD.dtype))
    return activate(y_BLD), cache


def short_conv_read(
    x_BQD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None,
    cache: Tensor,
    activation: str | None = None,
) -> Tensor:
    """Output at `Q` independent candidates for the next token, `[B, Q, D]`; the cache is left alone.

    The cached inputs contribute one vector per stream, the same for all queries.
    """
    activate, weight_DW, bias_D = _prepare(x_BQD, weight_DW, bias_D, activation)
    _check_cache(cache, x_BQD, weight_DW.shape[1])
    past_BD = (cache.to(x_BQD.dtype) * weight_DW[:, :-1].T).sum(1)
    if bias_D is not None:
        past_BD = past_BD + bias_D
    return activate(past_BD.unsqueeze(1) + x_BQD * weight_DW[:, -1])


def _prepare(x: Tensor, weight_DW: Tensor, bias_D: Tensor | None, activation: str | None):
    if x.ndim != 3:
        raise ValueError(f"short_conv takes x [B, L, D], got shape {tuple(x.shape)}")
    if weight_DW.ndim != 2 or weight_DW.shape[0] != x.shape[2]:
        raise ValueError(f"short_conv weight must be [{x.shape[2]}, W] to match x, got {tuple(weight_DW.shape)}")
    if bias_D is not None and bias_D.shape != weight_DW.shape[:1]:
        raise ValueError(f"short_conv bias must be [{x.shape[2]}] to match x, got {tuple(bias_D.shape)}")
    if activation not in _ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; choose from {list(_ACTIVATIONS)}")
    bias_D = None if bias_D is None else bias_D.to(x.dtype)
    return _ACTIVATIONS[activation], weight_DW.to(x.dtype), bias_D


def _check_cache(cache: Tensor, x: Tensor, width: int) -> None:
    expected = (x.shape[0], width - 1, x.shape[2])
    if cache.shape != expected:
        raise ValueError(f"short_conv cache must be {expected} for width {width}, got {tuple(cache.shape)}")
