"""What all forms of the fast-weight MLP share: its weights, one token's gradient, and the output at a query."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.first_order import differentiable_once

EPS = 1e-6


class FastWeights(NamedTuple):
    """The network of every head, or anything of its shape: a gradient, a sum of gradients."""

    W1: Tensor  # [B, H, F, M]
    b1: Tensor  # [B, H, M]
    W2: Tensor  # [B, H, M, F]
    b2: Tensor  # [B, H, F]

    def combine(self, fn: Callable[..., Tensor], *others: FastWeights) -> FastWeights:
        """`fn` of the corresponding tensors."""
        return FastWeights(*(fn(*tensors) for tensors in zip(self, *others, strict=True)))


class FastMemory(NamedTuple):
    """The state: weights at which gradients are taken, the gradients gathered since, and how many tokens gave them."""

    anchor: FastWeights
    total: FastWeights
    elapsed: int

    def weights(self, tau: Tensor) -> FastWeights:
        """The weights a read sees when the step size is `tau`."""
        return self.anchor.combine(lambda a, g: a - tau * g, self.total)

    def advance(self, total: FastWeights, tokens: int, inner: InnerLoop) -> FastMemory:
        """After `tokens` more tokens, with their gradients in `total`; a full mini-batch moves the anchor."""
        elapsed = self.elapsed + tokens
        if elapsed < inner.mini_batch:
            return FastMemory(self.anchor, total, elapsed)
        anchor = FastMemory(self.anchor, total, elapsed).weights(inner.tau[-1])
        return FastMemory(anchor, anchor.combine(torch.zeros_like), 0)


class InnerLoop(NamedTuple):
    """Learned constants of the inner loop."""

    tau: Tensor  # [b]: step size at each position of a mini-batch
    norm_weight: Tensor  # [H, F]
    norm_bias: Tensor  # [H, F]

    @property
    def mini_batch(self) -> int:
        return self.tau.shape[0]


class TokenGradient(NamedTuple):
    """The gradient of some tokens' losses, times their learning rates, as the factors of its outer products.

    The gradient of W1 is `key^T hidden`, that of b1 `hidden`, of W2 `features^T output`, and of b2 `output`.
    """

    hidden: Tensor  # [B, H, n, M]
    features: Tensor  # [B, H, n, M]
    output: Tensor  # [B, H, n, F]


class GeluWithSlope(torch.autograd.Function):
    """Tanh-GELU of z and its derivative, `[...]` each: the formula written out would take five times the passes.

    With h = (1 + tanh u) / 2, u = c (z + a z^3) and s = 1 - tanh^2 u:

        gelu = z h        slope = h + z s u' / 2        slope' = s (u' + z u'' / 2 - z tanh(u) u'^2)
    """

    C, A = math.sqrt(2 / math.pi), 0.044715

    @staticmethod
    def parts(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """tanh u, u' and s."""
        C, A = GeluWithSlope.C, GeluWithSlope.A
        square = z * z
        tanh = (square * A).add_(1).mul_(z).mul_(C).tanh_()
        return tanh, square.mul_(3 * A * C).add_(C), torch.addcmul(z.new_ones(()), tanh, tanh, value=-1)

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        tanh, rise, s = GeluWithSlope.parts(z)
        h = tanh.add_(1).mul_(0.5)
        return h * z, torch.addcmul(h, s.mul_(rise), z, value=0.5)

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_value, grad_slope):
        (z,) = ctx.saved_tensors
        tanh, rise, s = GeluWithSlope.parts(z)
        bend = torch.add(rise, z * z, alpha=3 * GeluWithSlope.A * GeluWithSlope.C)
        bend.addcmul_(z * tanh, rise * rise, value=-1).mul_(s)
        slope = torch.addcmul(tanh.add_(1).mul_(0.5), s.mul_(rise), z, value=0.5)
        return slope.mul_(grad_value).addcmul_(grad_slope, bend)


def normalise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean and unit variance over the last axis, and one over the standard deviation used."""
    variance, mean = torch.var_mean(z, -1, correction=0, keepdim=True)
    scale = (variance + EPS).rsqrt()
    return (z - mean) * scale, scale


def token_gradient(k: Tensor, v: Tensor, lr: Tensor, anchor: FastWeights, inner: InnerLoop) -> TokenGradient:
    """Gradients of n tokens at the anchor.

    Args:
        k, v: `[B, H, n, F]`.
        lr: `[B, H, n]`.
    """
    features, slope = GeluWithSlope.apply(k @ anchor.W1 + anchor.b1.unsqueeze(2))
    unit, scale = normalise(features @ anchor.W2 + anchor.b2.unsqueeze(2))
    weight, bias = inner.norm_weight.unsqueeze(1), inner.norm_bias.unsqueeze(1)
    error = (unit * weight + bias - (v - k)) * weight
    along = (error * unit).mean(-1, keepdim=True)
    output = (error - error.mean(-1, keepdim=True) - unit * along) * (scale * lr.unsqueeze(-1))
    return TokenGradient((output @ anchor.W2.transpose(-1, -2)) * slope, features, output)


def query_output(q: Tensor, z: Tensor, inner: InnerLoop) -> Tensor:
    """`q + LN(z)`, both `[B, H, n, F]`."""
    return q + torch.addcmul(inner.norm_bias.unsqueeze(1), normalise(z)[0], inner.norm_weight.unsqueeze(1))
