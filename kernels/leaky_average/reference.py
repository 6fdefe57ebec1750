"""The leaky average one token at a time: the oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def leaky_average(x_BLHK: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Arguments and results as the public `leaky_average`."""
    decay, outputs = log_decay.exp().unsqueeze(-1), []
    for x_BHK in x_BLHK.unbind(1):
        state = x_BHK + decay * state
        outputs.append(state)
    return torch.stack(outputs, 1), state
