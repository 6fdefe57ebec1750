"""Hand-written gradients that say so when somebody differentiates them again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

MESSAGE = "the fast forms have hand-written first derivatives only; kernel='reference' can be differentiated again"


def differentiable_once(backward: Callable) -> Callable:
    """For the `backward` of a `torch.autograd.Function`: its results raise when they are differentiated.

    `torch.autograd.function.once_differentiable` does so only if the incoming gradient asks for a gradient itself. That
    of a plain sum does not, and second derivatives would then silently lack whatever passes through here.
    """

    @wraps(backward)
    def once(ctx, *incoming: Tensor | None):
        with torch.no_grad():
            found = backward(ctx, *incoming)
        if not torch.is_grad_enabled():
            return found
        places = [i for i, x in enumerate(found) if isinstance(x, Tensor)]
        guarded = iter(_Refuse.apply(torch.ones((), requires_grad=True), *(found[i] for i in places)))
        return tuple(next(guarded) if i in places else x for i, x in enumerate(found))

    return once


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, *tensors):
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(MESSAGE)
