"""The short convolution as a loop over time: the oracle, written from the formula and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(x_BLD: Tensor, weight_DW: Tensor, bias_D: Tensor | None, cache: Tensor) -> tuple[Tensor, Tensor]:
    """One token at a time; arguments and results as the public `short_conv`, without the activation."""
    window, outputs = list(cache.unbind(1)), []
    for x_BD in x_BLD.unbind(1):
        window.append(x_BD)
        y_BD = sum(column * weight for column, weight in zip(window, weight_DW.unbind(1), strict=True))
        outputs.append(y_BD if bias_D is None else y_BD + bias_D)
        window.pop(0)
    return torch.stack(outputs, 1), torch.stack(window, 1) if window else cache
