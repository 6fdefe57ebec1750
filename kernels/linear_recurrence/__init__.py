"""One recurrence, many memories: per head a matrix state that decays, erases and writes at every token.

    no erase     S_t = Diag(e^g_t) S_{t-1} + k_t v_t^T
    delta rule   S_t = Diag(e^g_t) S_{t-1} + beta_t k_t (v_t - k_t^T Diag(e^g_t) S_{t-1})^T
    low rank     S_t = Diag(e^g_t) S_{t-1} + a_t (b_t^T S_{t-1}) + k_t v_t^T

    o_t = scale * S_t^T q_t

The log decay g is absent, one constant per head (RetNet), one number per head and token (Mamba-2, Gated DeltaNet), or
one per channel (GLA, RWKV-7).

`B` batch, `L` stream length, `Q` queries, `H` heads, `K` key dim, `V` value dim, `C` chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.choice import pick
from kernels.linear_recurrence import chunked, reference
from kernels.linear_recurrence.arguments import cast, check
from kernels.linear_recurrence.read import read as _read

FORMS = {
    "chunk": chunked.recurrence,
    "reference": lambda rule, chunk: reference.recurrence(rule),
}


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | tuple[Tensor, Tensor] | None = None,
    state: Tensor | None = None,
    scale: float = 1.0,
    kernel: str = "auto",
    chunk: int | None = None,
    min_log_decay: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`(o [B, L, H, V], state [B, H, K, V])` of a stream."""
    with torch.autocast(v.device.type, enabled=False):
        rule = check(q, k, v, log_decay, erase, state, min_log_decay)
        o, state = pick("linear_recurrence", FORMS, kernel)(rule, chunk)
        return (scale * o).to(v.dtype), state


def linear_state(
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | tuple[Tensor, Tensor] | None = None,
    state: Tensor | None = None,
    kernel: str = "auto",
    chunk: int | None = None,
    min_log_decay: float | None = None,
) -> Tensor:
    """The final state of `linear_recurrence` alone: no queries, no outputs, and cheaper."""
    with torch.autocast(v.device.type, enabled=False):
        rule = check(None, k, v, log_decay, erase, state, min_log_decay)
        return pick("linear_recurrence", FORMS, kernel)(rule, chunk)[1]


def linear_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | tuple[Tensor, Tensor] | None = None,
    state: Tensor,
    scale: float = 1.0,
) -> Tensor:
    """Outputs `[B, Q, H, V]` of `Q` independent next tokens off one state, which is left alone."""
    with torch.autocast(v.device.type, enabled=False):
        return (scale * _read(check(q, k, v, log_decay, erase, state))).to(v.dtype)


def linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | tuple[Tensor, Tensor] | None = None,
    state: Tensor,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One token: q, k `[B, H, K]`, v `[B, H, V]`; `(o [B, H, V], state)`."""
    with torch.autocast(v.device.type, enabled=False):
        rule = cast(q, k, v, log_decay, erase, state)
        o, state = reference.step(rule.q, rule.k, rule.v, rule.log_decay, rule.erase, rule.state)
        return (scale * o).to(v.dtype), state
