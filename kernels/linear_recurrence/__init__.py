"""One recurrence, many memories: per head a matrix state that decays, erases and writes at every token.

    no erase      S_t = Diag(e^g_t) S_{t-1} + k_t v_t^T
    delta rule    S_t = Diag(e^g_t) S_{t-1} + beta_t k_t (v_t - k_t^T Diag(e^g_t) S_{t-1})^T
    low rank      S_t = Diag(e^g_t) S_{t-1} + a_t (b_t^T S_{t-1}) + k_t v_t^T

    output        o_t = scale * S_t^T q_t

`S_t` is `K x V`: keys address its rows, values fill them. What an architecture chooses is the log decay g (none, one
constant per head, one number per head and token, one per channel and token) and the erase:

    ===============  ============  ==========  ===========================================
    architecture     log_decay     erase       what else
    ===============  ============  ==========  ===========================================
    RetNet           [H]           none
    GLA              [B, L, H, K]  none
    Mamba-2          [B, L, H]     none        one head of q and k for all heads of v
    DeltaNet         none          beta
    Gated DeltaNet   [B, L, H]     beta        the old value is read from the decayed state
    RWKV-7           [B, L, H, K]  (a, b)      b reads the state before it decays
    MoM's memories   [B, L, H]     beta
    ===============  ============  ==========  ===========================================

Four functions compute it: `linear_recurrence` for a stream, `linear_state` for the state that a stream leaves,
`linear_read` for many independent next tokens off one state, `linear_step` for one token. All work in float32, or in
float64 if any argument is, also under autocast: decays and solves lose too much in 16 bits. Outputs come back in v's
dtype, states in the dtype of the computation.

The forms: `reference.py` is the loop over tokens; `native.py` is C, for a CPU, and for small states or heads that share
their q and k; `chunked.py`, made of matrix products, is for everything else.

`B` batch, `L` stream length, `Q` queries, `H` heads, `K` key dim, `V` value dim, `C` chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.choice import pick_name
from kernels.linear_recurrence import chunked, native, reference
from kernels.linear_recurrence.arguments import Rule, cast, check
from kernels.linear_recurrence.read import read

FORMS = {
    "native": lambda rule, chunk: native.recurrence(rule),
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
    """Run a stream, or its next piece, through the recurrence.

    Args:
        q, k: `[B, L, H, K]`, `L >= 1`; or `[B, L, 1, K]`, one head shared by all.
        v: `[B, L, H, V]`.
        log_decay: g, at most 0; none, `[H]`, `[B, L, H]` or `[B, L, H, K]`.
        erase: none; beta `[B, L, H]` for the delta rule; or a pair `(a, b)`, each `[B, L, H, K]`.
        state: the state before the first token `[B, H, K, V]`; none means zeros.
        scale: factor on the outputs.
        kernel: `"auto"`, `"native"`, `"chunk"` or `"reference"`.
        chunk: tokens per chunk, at least 1, to override the measured default; asking for it is asking for the form
            `"chunk"`.
        min_log_decay: the caller's promise that no log decay is below this, for a gate per channel: the smaller its
            size, the longer the chunks may be. Without it the data is looked at, which on a GPU means waiting for it.

    Returns:
        `(o [B, L, H, V], state [B, H, K, V])`.

    Raises:
        ValueError: shapes do not fit, a log decay is positive or breaks the promise (noticed on a CPU only), or there
            is no such kernel, or it cannot run here.
    """
    with torch.autocast(v.device.type, enabled=False):
        rule = check(_scaled(q, scale), k, v, log_decay, erase, state, min_log_decay)
        o, state = _form(kernel, rule, chunk)(rule, chunk)
        return o.to(v.dtype), state


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
    """The state that `linear_recurrence` would leave, `[B, H, K, V]`, and nothing else: no queries, no outputs.

    For a layer whose outputs at stream positions nobody reads. Arguments as there; exact, and cheaper.
    """
    with torch.autocast(v.device.type, enabled=False):
        rule = check(None, k, v, log_decay, erase, state, min_log_decay)
        return _form(kernel, rule, chunk)(rule, chunk)[1]


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
    """Outputs at `Q` independent candidates for the next token, `[B, Q, H, V]`.

    Each equals the output of `linear_recurrence` on that one token from `state`. No state is built for a query, the
    state given is left alone, and queries cannot affect each other. Arguments as there, with `Q` for `L`.
    """
    with torch.autocast(v.device.type, enabled=False):
        return read(check(_scaled(q, scale), k, v, log_decay, erase, state)).to(v.dtype)


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
    """One token of the reference: q, k `[B, H, K]`, v `[B, H, V]`, and so on, all without the axis `L`.

    Every pass over the state is a matmul, so `torch.utils.flop_counter` sees the recurrence's whole price.

    Returns:
        `(o [B, H, V], state [B, H, K, V])`.
    """
    with torch.autocast(v.device.type, enabled=False):
        rule = cast(_scaled(q, scale), k, v, log_decay, erase, state)
        o, state = reference.step(rule.q, rule.k, rule.v, rule.log_decay, rule.erase, rule.state)
        return o.to(v.dtype), state


def explain_recurrence(
    kernel: str, device: str, gate: str, erase: str, shared_heads: bool, key_dim: int, value_dim: int
) -> tuple[str, str]:
    """The form that `kernel` picks, and a few words about it; arguments as in `kernels.explain`."""
    algorithm = chunked.algorithm(erase, shared_heads, gate)
    against = _against_native(device, algorithm, key_dim, value_dim)
    form = pick_name("linear_recurrence", FORMS, kernel, *against)
    sizes = {"native": native.tokens_at_once(algorithm, key_dim, value_dim), "chunk": chunked.CHUNKS[algorithm]}
    size = sizes.get(form, 1)
    how = "token by token" if size == 1 else f"{size} tokens at a time"
    reason = next((why["native"] for why in against if why["native"]), None)
    return form, f"{how}; not native: {reason}" if reason and device == "cpu" and kernel == "auto" else how


def _form(kernel: str, rule: Rule, chunk: int | None) -> Callable:
    sizes = rule.k.shape[-1], rule.v.shape[-1]
    unable, slow = _against_native(rule.v.device.type, chunked.algorithm_of(rule), *sizes)
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk={chunk} must be at least 1")
        unable = {"native": "it has no chunks to choose"}
    return FORMS[pick_name("linear_recurrence", FORMS, kernel, unable, slow)]


def _against_native(
    device: str, algorithm: str, key_dim: int, value_dim: int
) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """What makes the native form unable, and what makes it slow."""
    return {"native": native.unable(device)}, {"native": native.slow(algorithm, key_dim, value_dim)}


def _scaled(q: Tensor, scale: float) -> Tensor:
    return q if scale == 1.0 else q * scale
