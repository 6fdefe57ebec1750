"""DeltaFormer's corrected values: a token stores what its past would not have predicted for it.

    u_t = v_t - beta_t sum_{j < t} p_tj u_j,      p_t = softmax over j < t of scale * q_t . k_j,      u_1 = v_1

This is the first of DeltaFormer's two stages (Xu et al., "Understanding Transformer from the Perspective of Associative
Memory", 2025, arXiv 2505.19488); the second is ordinary causal attention over the corrected values u. `beta = 0` leaves
an ordinary Transformer. The cache of keys and corrected values is all that a continuation or a read needs.

`B` batch, `L` stream length, `P` tokens before it, `Q` queries, `H` heads, `K` key dim, `V` value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.choice import pick
from kernels.deltaformer import blocked, reference

FORMS = {"block": blocked.corrected_values, "reference": reference.corrected_values}


def corrected_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    past: tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Correct the values of a stream, or of its next piece.

    Args:
        q, k: `[B, L, H, K]`, `L >= 1`.
        v: `[B, L, H, V]`.
        beta: strength of the correction, `[B, L, H]`.
        past: `(k, u)` of the tokens before, `[B, P, H, K]` and `[B, P, H, V]`; none means none.
        scale: factor on the scores, `K ** -0.5` if none.
        kernel: `"auto"`, `"block"` or `"reference"`.

    Returns:
        u `[B, L, H, V]`, float32 (float64 if v is): it is the memory's state.
    """
    if q.ndim != 4 or q.shape != k.shape or v.shape[:3] != q.shape[:3] or beta.shape != q.shape[:3] or not q.shape[1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v, beta))
        raise ValueError(f"corrected_values takes q, k, v [B, L >= 1, H, *] and beta [B, L, H] alike, got {shapes}")
    if past is None:
        past = k[:, :0], v[:, :0]
    past_k, past_u = past
    expected = q.shape[0], past_k.shape[1], q.shape[2]
    if past_k.shape != (*expected, q.shape[3]) or past_u.shape != (*expected, v.shape[3]):
        raise ValueError(
            f"the past must be [B, P, H, *] = [{expected[0]}, P, {expected[2]}, *] like k and v, "
            f"got {tuple(past_k.shape)} and {tuple(past_u.shape)}"
        )
    dtype = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        tensors = (x.to(dtype) for x in (q, k, v, beta, past_k, past_u))
        return pick("corrected_values", FORMS, kernel)(*tensors, q.shape[-1] ** -0.5 if scale is None else scale)


def corrected_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    *,
    address: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Both stages for `Q` independent next tokens, which never see each other.

    Args:
        q, k, v, beta: the queries' own, as in `corrected_values` with `Q` for `L`.
        past_k, past_u: the cache, `[B, P, H, K]` and `[B, P, H, V]`; `P` may be 0.
        address: what scores the keys in the first stage, if not q: `[B, Q, H, K]`.
        scale: factor on the scores, `K ** -0.5` if none.

    Returns:
        `[B, Q, H, V]`: what the second stage gives at each query.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, past_k, past_u = (x.to(dtype).transpose(1, 2) for x in (q, k, v, past_k, past_u))
        own_score = (q * k).sum(-1, keepdim=True) * scale  # [B, H, Q, 1]
        log_mass, mean = _attend(q, past_k, past_u, scale)
        predicted = mean if address is None else _attend(address.to(dtype).transpose(1, 2), past_k, past_u, scale)[1]
        u = v - beta.to(dtype).transpose(1, 2).unsqueeze(-1) * predicted
        own_weight = (own_score - log_mass).sigmoid()  # the softmax over the cache and the token itself, factored
        return torch.lerp(mean, u, own_weight).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, u: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Log of the summed exponentials `[B, H, Q, 1]` and softmax mean of u `[B, H, Q, V]`; -inf and 0 over nothing."""
    if k.shape[2] == 0:
        return q.new_full((*q.shape[:3], 1), -torch.inf), q.new_zeros(*q.shape[:3], u.shape[-1])
    scores = q @ k.transpose(-1, -2) * scale
    log_mass = scores.logsumexp(-1, keepdim=True)
    return log_mass, (scores - log_mass).exp() @ u
