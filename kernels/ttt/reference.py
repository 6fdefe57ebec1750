"""The fast-weight MLP one token at a time, weights written out: the oracle.

Every product is a matrix product, so a FLOP counter sees the seven passes over a weight matrix that a token costs: the
key through W1 and W2, the error back through W2, an outer product into each, and the query through both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ttt.inner import EPS, FastMemory, FastWeights, InnerLoop


def ttt_mlp(
    q: Tensor | None, k: Tensor, v: Tensor, lr: Tensor, memory: FastMemory, inner: InnerLoop, times: Sequence[int]
) -> tuple[Tensor | None, list[FastMemory]]:
    """Arguments as the public `ttt_mlp`, heads before length: `[B, H, L, F]` and `[B, H, L]`."""
    outputs, memories = [], []
    for t in range(k.shape[2]):
        k_t, target = k[:, :, t], v[:, :, t] - k[:, :, t]
        anchor, total, p = memory
        z1, x2, z2 = _forward(k_t, anchor)
        error = _norm_gradient(z2, target, inner)
        hidden = _row(error, anchor.W2.transpose(-1, -2)) * _gelu_slope(z1)
        gradient = FastWeights(_outer(k_t, hidden), hidden, _outer(x2, error), error)
        rate = lr[:, :, t]
        total = total.combine(lambda s, g: s + rate.view(*rate.shape, *[1] * (g.ndim - 2)) * g, gradient)  # noqa: B023
        memory = FastMemory(anchor, total, p + 1)
        weights = memory.weights(inner.tau[p])
        if q is not None:
            z2 = _forward(q[:, :, t], weights)[2]
            normed = F.layer_norm(z2, z2.shape[-1:], eps=EPS) * inner.norm_weight + inner.norm_bias
            outputs.append(q[:, :, t] + normed)
        if p + 1 == inner.mini_batch:
            memory = FastMemory(weights, total.combine(torch.zeros_like), 0)
        if t + 1 in times:
            memories.append(memory)
    return (torch.stack(outputs, 2) if outputs else None), memories


def _row(x: Tensor, matrix: Tensor) -> Tensor:
    """A row vector of each head `[B, H, n]` times its matrix `[B, H, n, m]`."""
    return (x.unsqueeze(-2) @ matrix).squeeze(-2)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) @ y.unsqueeze(-2)


def _forward(x: Tensor, w: FastWeights) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations, features and output of the network."""
    z1 = _row(x, w.W1) + w.b1
    x2 = F.gelu(z1, approximate="tanh")
    return z1, x2, _row(x2, w.W2) + w.b2


def _gelu_slope(z: Tensor) -> Tensor:
    c = math.sqrt(2 / math.pi)
    tanh = torch.tanh(c * (z + 0.044715 * z**3))
    return 0.5 * (1 + tanh) + 0.5 * z * (1 - tanh**2) * c * (1 + 3 * 0.044715 * z**2)


def _norm_gradient(z: Tensor, target: Tensor, inner: InnerLoop) -> Tensor:
    """d/dz of 1/2 |LN(z) - target|^2."""
    centred = z - z.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    unit = centred / deviation
    error = (unit * inner.norm_weight + inner.norm_bias - target) * inner.norm_weight
    return (error - error.mean(-1, keepdim=True) - unit * (error * unit).mean(-1, keepdim=True)) / deviation
