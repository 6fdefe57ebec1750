"""The fast-weight MLP a mini-batch at a time: two causal linear attentions, in chunks.

Within a mini-batch all gradients are taken at the anchor, so they are known before any weight has moved, and a query
meets the moved weights as

    q_t W1_t = q_t A1 - tau_t ( q_t G1 + sum_{j <= t} (q_t . k_j) e_j )          e_j = lr_j times the error at layer 1

and the same with features for keys in the second layer. The sum is a causal linear attention without normaliser: a
triangular product inside a chunk of 32 tokens, a running sum of k^T e between chunks. Biases ride along: b1 as one more
channel of the query and the key that is always 1. Upstream's dual form has b x b matrices instead, 8 times the
products at b = 256. The only loop left is over mini-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ttt.inner import FastMemory, FastWeights, InnerLoop, TokenGradient, query_output, token_gradient

CHUNK = 32
"""Tokens per chunk of the linear attentions: fastest of 16, 32, 64 and 128 on a CPU."""


def ttt_mlp(
    q: Tensor | None, k: Tensor, v: Tensor, lr: Tensor, memory: FastMemory, inner: InnerLoop, times: Sequence[int]
) -> tuple[Tensor | None, list[FastMemory]]:
    """Arguments as the public `ttt_mlp`, heads before length: `[B, H, L, F]` and `[B, H, L]`."""
    outputs, memories, start, L = [], [], 0, k.shape[2]
    while start < L:
        stop = min(start + inner.mini_batch - memory.elapsed, L)
        part = slice(start, stop)
        step = token_gradient(k[:, :, part], v[:, :, part], lr[:, :, part], memory.anchor, inner)
        if q is not None:
            outputs.append(_outputs(q[:, :, part], k[:, :, part], step, memory, inner))
        stops = [*(t for t in times if start < t < stop), stop]
        totals = _totals(k[:, :, part], step, memory.total, [t - start for t in stops])
        for t, total in zip(stops, totals, strict=True):
            after = memory.advance(total, t - start, inner)
            if t in times:
                memories.append(after)
        memory, start = after, stop
    return (torch.cat(outputs, 2) if outputs else None), memories


def _totals(k: Tensor, step: TokenGradient, total: FastWeights, counts: list[int]) -> Iterator[FastWeights]:
    """The gradients of the first n tokens of a part, on top of what the mini-batch had, for each n of `counts`."""
    sizes = [n - before for before, n in zip([0, *counts], counts, strict=False)]
    pieces = (x.split(sizes, 2) for x in (k, *step))  # split, not slices: its backward is one copy, theirs one each
    for keys, hidden, features, output in zip(*pieces, strict=True):
        gradient = FastWeights(
            keys.transpose(-1, -2) @ hidden, hidden.sum(2), features.transpose(-1, -2) @ output, output.sum(2)
        )
        total = total.combine(torch.add, gradient)
        yield total


def _outputs(q: Tensor, k: Tensor, step: TokenGradient, memory: FastMemory, inner: InnerLoop) -> Tensor:
    """Outputs `[B, H, n, F]` of the n tokens of a part."""
    anchor, total, elapsed = memory
    n = q.shape[2]
    tau = inner.tau[elapsed : elapsed + n, None]
    q1, k1 = (F.pad(x, (0, 1), value=1.0) for x in (q, k))  # one more channel, always 1, carries the bias
    z = q1 @ _with_bias(anchor.W1, anchor.b1)
    z = z - _linear_attention(tau * q1, k1, step.hidden, _with_bias(total.W1, total.b1))
    x = F.gelu(z, approximate="tanh")
    z = x @ anchor.W2 + anchor.b2.unsqueeze(2)
    learned = _linear_attention(x, step.features, step.output, total.W2) + step.output.cumsum(2)
    return query_output(q, z - tau * (learned + total.b2.unsqueeze(2)), inner)


def _with_bias(W: Tensor, b: Tensor) -> Tensor:
    return torch.cat([W, b.unsqueeze(2)], 2)


def _linear_attention(q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """`q_t (start + sum_{j <= t} k_j^T v_j)` for q, k `[B, H, n, K]`, v `[B, H, n, V]` and start `[B, H, K, V]`."""
    n = q.shape[2]
    size = min(CHUNK, n)
    q, k, v = (F.pad(x, (0, 0, 0, -n % size)).unflatten(2, (-1, size)) for x in (q, k, v))
    o = (q @ k.transpose(-1, -2)).tril() @ v
    entering = start.unsqueeze(2)
    if (chunks := k.shape[2]) > 1:  # the sum over earlier chunks as a product: its backward is one too
        earlier = torch.ones(chunks, chunks, dtype=q.dtype, device=q.device).tril(-1)
        gathered = (k.transpose(-1, -2) @ v).flatten(3)
        entering = entering + (earlier @ gathered).unflatten(3, start.shape[2:])
    return (o + q @ entering).flatten(2, 3)[:, :, :n]
