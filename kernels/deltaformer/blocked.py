"""Corrected values by blocks of rows: one triangular solve per block, and a backward pass that stores no scores.

With P the strictly lower matrix of softmax rows, U solves (I + Diag(beta) P) U = V. A block I of rows sees finished
rows to its left, so

    W_I = P_{I,<I} U_<I + P_II U_I                         what the past predicts for the rows of I
    U_I = (I + beta P_II)^-1 (V_I - beta P_{I,<I} U_<I)    unit lower triangular

Backward, for the gradient G of U, blocks run from the last to the first:

    dV_I    = (I + beta P_II)^-T G_I,     G_<I -= (beta P_{I,<I})^T dV_I
    dbeta_I = -dV_I . W_I
    dS_I    = P_I * beta (-dV_I U^T - dbeta_I)             S the scores; the sum over j is already in dbeta

so P is computed again from q and k instead of being kept: L^2 floats per head would leave the cache, and reading them
back costs more than the two products and the softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.first_order import differentiable_once
from kernels.slabs import slabs

BLOCK = 64
"""Rows per block: fastest of 32, 64, 128 and 256 on a CPU."""


def corrected_values(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, past_k: Tensor, past_u: Tensor, scale: float
) -> Tensor:
    """Arguments and result as the public `corrected_values`, with a past that may be empty."""

    def heads_first(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    keys = heads_first(torch.cat([past_k, k], 1))
    q_, v_, beta_, past = (heads_first(x) for x in (q, v, beta, past_u))
    u = _CorrectedValues.apply(q_, keys, v_, beta_.unsqueeze(-1), past, scale)
    return u.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


def _strict_softmax(q: Tensor, k: Tensor, scale: float, above: Tensor) -> Tensor:
    """Softmax rows of a block over everything before each token.

    Args:
        q: the block's rows `[G, n, K]`.
        k: keys up to the block's end `[G, J, K]`.
        scale: factor on the scores.
        above: `[n, n]`, true on and above the diagonal.

    Returns:
        `[G, n, J]`; a row with nothing before it is zero.
    """
    n, seen = q.shape[1], k.shape[1] - q.shape[1]
    scores = torch.baddbmm(q.new_zeros(()), q, k.transpose(1, 2), beta=0, alpha=scale)
    scores[:, :, seen:].masked_fill_(above[:n, :n], -torch.inf)
    if seen == 0:
        scores[:, 0, 0] = 0  # a row of -inf alone would be NaN
    weights = scores.softmax(-1)
    if seen == 0:
        weights[:, 0, 0] = 0
    return weights


class _CorrectedValues(torch.autograd.Function):
    """G heads of all streams: q `[G, L, K]`, k `[G, P + L, K]`, v `[G, L, V]`, beta `[G, L, 1]`, past u `[G, P, V]`."""

    @staticmethod
    def forward(ctx, q, k, v, beta, past_u, scale):
        (G, L, _), P = v.shape, past_u.shape[1]
        u, predicted = torch.cat([past_u, v], 1), torch.empty_like(v)
        above = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=v.device).triu()
        for g in slabs(G, BLOCK * (P + L) * v.element_size(), v.device):
            for start in range(0, L, BLOCK):
                stop, seen = min(start + BLOCK, L), P + start
                p = _strict_softmax(q[g, start:stop], k[g, : P + stop], scale, above)
                beta_I, u_I, own = beta[g, start:stop], u[g, seen : P + stop], p[:, :, seen:]
                left = p[:, :, :seen] @ u[g, :seen]
                solved = torch.linalg.solve_triangular(
                    beta_I * own, u_I - beta_I * left, upper=False, unitriangular=True
                )
                u_I.copy_(solved)
                predicted[g, start:stop] = torch.baddbmm(left, own, solved)
        ctx.save_for_backward(q, k, beta, u, predicted)
        ctx.past, ctx.scale = P, scale
        return u[:, P:].clone() if P else u

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        q, k, beta, u, predicted = ctx.saved_tensors
        P, scale = ctx.past, ctx.scale
        G, L, V = grad.shape
        grad_u = torch.cat([grad.new_zeros(G, P, V), grad], 1)
        grad_q, grad_k = torch.empty_like(q), torch.zeros_like(k)
        above = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=q.device).triu()
        for g in slabs(G, BLOCK * (P + L) * grad.element_size(), grad.device):
            for start in reversed(range(0, L, BLOCK)):
                stop, seen = min(start + BLOCK, L), P + start
                p = _strict_softmax(q[g, start:stop], k[g, : P + stop], scale, above)
                beta_I, grad_I = beta[g, start:stop], grad_u[g, seen : P + stop]
                grad_v = torch.linalg.solve_triangular(
                    (beta_I * p[:, :, seen:]).transpose(1, 2), grad_I, upper=True, unitriangular=True
                )
                grad_I.copy_(grad_v)
                pulled = beta_I * grad_v
                grad_u[g, :seen].baddbmm_(p[:, :, :seen].transpose(1, 2), pulled, alpha=-1)
                # The row sum that the softmax's gradient subtracts: no pass over the scores is needed for it.
                row = (pulled * predicted[g, start:stop]).sum(-1, keepdim=True)
                grad_scores = torch.baddbmm(row, pulled, u[g, : P + stop].transpose(1, 2), alpha=-1).mul_(p)
                grad_q[g, start:stop] = torch.bmm(grad_scores, k[g, : P + stop])
                grad_k[g, : P + stop].baddbmm_(grad_scores.transpose(1, 2), q[g, start:stop])
        grad_v = grad_u[:, P:]
        grad_beta = -(grad_v * predicted).sum(-1, keepdim=True)
        return grad_q.mul_(scale), grad_k.mul_(scale), grad_v, grad_beta, grad_u[:, :P], None
