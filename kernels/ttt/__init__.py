"""Fast-weight MLP that learns while it reads: the memory of TTT-MLP (Sun et al., 2024, arXiv 2407.04620).

Per head, a two-layer network W = (W1, b1, W2, b2) with F inputs and outputs and M hidden units is trained to map each
key to its value minus the key, one gradient step per token, all gradients of a mini-batch of `b` tokens being taken at
the weights it began with, the anchor A:

    f(x; W) = gelu(x W1 + b1) W2 + b2                     gelu in its tanh form
    loss_t  = 1/2 | LN(f(k_t; A)) - (v_t - k_t) |^2       LN over F with a weight and a bias per head, eps 1e-6
    G_t     = G_{t-1} + lr_t d loss_t / d A               G = 0 when a mini-batch begins
    W_t     = A - tau_p G_t                               p = 0 .. b - 1 within the mini-batch, tau_p near 1 / (p + 1)
    o_t     = q_t + LN(f(q_t; W_t))
    A <- W_t, G <- 0                                      after p = b - 1

So within a mini-batch W_t is the anchor minus a running mean of gradients, the token's own included. The memory is A, G
and p; a read is one such step that leaves them as they are.

`B` batch, `L` stream length, `Q` queries, `H` heads, `F` channels of a head, `M` hidden units, `b` mini-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.choice import pick
from kernels.ttt import dual, reference
from kernels.ttt.inner import FastMemory, FastWeights, InnerLoop, query_output, token_gradient

__all__ = ["FastMemory", "FastWeights", "InnerLoop", "ttt_mlp", "ttt_mlp_read"]

FORMS = {"dual": dual.ttt_mlp, "reference": reference.ttt_mlp}


def ttt_mlp(
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    memory: FastMemory,
    inner: InnerLoop,
    *,
    times: Sequence[int] | None = None,
    kernel: str = "auto",
) -> tuple[Tensor | None, list[FastMemory]]:
    """Learn from a stream, or from its next piece.

    Args:
        q: `[B, L, H, F]`, or None when nobody reads the outputs.
        k, v: `[B, L, H, F]`, `L >= 1`.
        lr: learning rate of each token, `[B, L, H]`.
        memory: where to continue from.
        inner: the learned constants of the inner loop.
        times: the memory is returned after each of these numbers of tokens, increasing; `(L,)` if none.
        kernel: `"auto"`, `"dual"` or `"reference"`.

    Returns:
        `(o [B, L, H, F] in v's dtype or None, one memory per time, in float32 or float64)`.
    """
    if (
        k.ndim != 4
        or k.shape != v.shape
        or lr.shape != k.shape[:3]
        or not k.shape[1]
        or (q is not None and q.shape != k.shape)
    ):
        found = [tuple(x.shape) for x in (q, k, v, lr) if x is not None]
        raise ValueError(f"ttt_mlp takes q, k, v [B, L >= 1, H, F] alike and lr [B, L, H], got {found}")
    times = (k.shape[1],) if times is None else tuple(times)
    with torch.autocast(k.device.type, enabled=False):
        wide = torch.promote_types(v.dtype, torch.float32)
        streams = [None if x is None else x.to(wide).transpose(1, 2) for x in (q, k, v, lr)]
        o, memories = pick("ttt_mlp", FORMS, kernel)(*streams, memory, inner, times)
    return None if o is None else o.transpose(1, 2).to(v.dtype), memories


def ttt_mlp_read(q: Tensor, k: Tensor, v: Tensor, lr: Tensor, memory: FastMemory, inner: InnerLoop) -> Tensor:
    """Outputs `[B, Q, H, F]` at `Q` independent candidates for the next token; the memory is left alone.

    A query's own gradient has rank one, so its weights are never formed: with `W` the weights before it,
    `q W1_q = q W1 - tau lr (q . k) g1`, and likewise for the second layer.
    """
    with torch.autocast(k.device.type, enabled=False):
        wide = torch.promote_types(v.dtype, torch.float32)
        q_, k_, v_, lr_ = (x.to(wide).transpose(1, 2) for x in (q, k, v, lr))
        step = token_gradient(k_, v_, lr_, memory.anchor, inner)
        tau = inner.tau[memory.elapsed]
        before = memory.weights(tau)

        def own(x: Tensor, y: Tensor) -> Tensor:
            return tau * ((x * y).sum(-1, keepdim=True) + 1)

        z = q_ @ before.W1 + before.b1.unsqueeze(2) - own(q_, k_) * step.hidden
        hidden = F.gelu(z, approximate="tanh")
        z = hidden @ before.W2 + before.b2.unsqueeze(2) - own(hidden, step.features) * step.output
        return query_output(q_, z, inner).transpose(1, 2).to(v.dtype)
