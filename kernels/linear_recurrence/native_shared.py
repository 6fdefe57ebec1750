"""Decayed linear attention whose heads share one q and one k, in C (`native_shared.c`): Mamba-2 on a CPU.

The algorithm is that of `shared.py`. Its products are large enough to run near a core's peak, but between them lie
small ones and elementwise steps by the dozen, each a pass through memory and a call: a third of the time. Here they
happen while their numbers are in the first-level cache, and products with a triangular factor skip its zeros.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from kernels import native
from kernels.first_order import differentiable_once
from kernels.linear_recurrence.frame import gate_gradient, sums
from kernels.linear_recurrence.tiles import Tiling

CHUNK = 64
"""Tokens in a chunk: its pairs are a sixth of the work on a state of 256 x 64."""

ROWS = {64: 8, 32: 4}
"""Rows of a product taken together, by bytes in a vector register: with two vectors each they fill half of the 32 or 16
that there are. CPUs with shorter registers were not measured, and some have faster units for matrix products."""

MIN_KEY_DIM = 64
"""Below it, a column of a state stays in registers token by token, which makes that the faster forward pass."""

THREAD_NUMBERS = 1 << 22
"""Numbers of states, over all tokens, that are worth a thread: about 0.2 ms of products."""

SOURCE = Path(__file__).with_suffix(".c")
STREAMS = ("q", "k", "v", "o", "dq", "dk", "dv", "dout")
ARRAYS = ("sum", "rest", "start", "end", "first", "last", "dfirst", "dlast", "saved", "products")
ARRAYS += ("crossing", "leaving", "through")


class Job(ctypes.Structure):
    """The struct of native_shared.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "length", "gates")),
        *((name, native.Strided) for name in STREAMS),
        *((name, ctypes.c_void_p) for name in ARRAYS),
    )


def unfit(key_dim: int, value_dim: int, dtype: torch.dtype = torch.float32) -> str | None:
    """Why states of this size are not for this form, in words; None if they are."""
    if native.register_bytes() not in ROWS:
        return "this CPU has neither AVX2 nor AVX-512"
    if key_dim < MIN_KEY_DIM:
        return f"token by token is faster with fewer than {MIN_KEY_DIM} channels of q"
    panel = 2 * native.register_bytes() // dtype.itemsize
    return f"its sizes are not multiples of {panel}" if key_dim % panel or value_dim % panel else None


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """`(o, state)`; shapes as in `Rule`, with one head in q and k; a gate per head or, as `[1, L, H]`, constant."""
    tensors = q, k, v, log_decay, state
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return _Shared.apply(training, *tensors)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, training, q, k, v, log_decay, state):
        ctx.tiling = Tiling(*v.shape[:2], CHUNK, 1, v.device)
        gate = ()
        if log_decay is not None:
            decays = sums(ctx.tiling.natural(log_decay, ctx.tiling.everything))
            gate = decays.c, decays.rest, decays.start, decays.end
        o, last, products, saved = torch.ops.ecclab.shared(training, q, k, v, gate, state)
        ctx.gates = len(gate)
        ctx.save_for_backward(q, k, v, log_decay, products, *gate, *saved)
        return o, last

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_o, grad_state):
        q, k, v, log_decay, products, *rest = ctx.saved_tensors
        gate, saved = rest[: ctx.gates], rest[ctx.gates :]
        learning = ctx.needs_input_grad[4]
        dq, dk, dv, dfirst, *through = torch.ops.ecclab.shared_backward(
            learning, q, k, v, gate, products, saved, grad_o, grad_state
        )
        gradient = None
        if learning:
            gradient = torch.zeros_like(log_decay)
            ctx.tiling.add(gradient, ctx.tiling.everything, gate_gradient(*through))
        return None, dq, dk, dv, gradient, dfirst


@torch.library.custom_op(
    "ecclab::shared",
    mutates_args=(),
    device_types="cpu",
    schema="(bool training, Tensor q, Tensor k, Tensor v, Tensor[] gate, Tensor state) -> "
    "(Tensor, Tensor, Tensor, Tensor[])",
)
def _forward(training, q, k, v, gate, state):
    """Output, last state, and for the backward pass (else empty) the products of pairs and, by stream, the states that
    entered chunks."""
    o, last, products, saved = found = _results(training, q, k, v, gate, state)
    streams = {"q": q, "k": k, "v": v, "o": o}
    arrays = {"first": state.contiguous(), "last": last, "products": products if training else None}
    _run("forward", streams, arrays, gate, saved)
    return found


@_forward.register_fake
def _results(training, q, k, v, gate, state):
    batch, length, heads, value_dim = v.shape
    count = -(-length // CHUNK)
    # A tensor for each stream: an allocator gives one of tens of megabytes back to the system, and getting it again
    # costs a tenth of a training step.
    entering = count, heads * q.shape[-1] * value_dim
    saved = [state.new_empty(entering) for _ in range(batch if training else 0)]
    products = v.new_empty((batch, count, CHUNK, CHUNK) if training else 0)
    return v.new_empty(v.shape), state.new_empty(state.shape), products, saved


@torch.library.custom_op(
    "ecclab::shared_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(bool learning, Tensor q, Tensor k, Tensor v, Tensor[] gate, Tensor products, Tensor[] saved, "
    "Tensor dout, Tensor dlast) -> Tensor[]",
)
def _backward(learning, q, k, v, gate, products, saved, dout, dlast):
    """Gradients of q, k, v and the first state; for a gate that learns also the arguments of `gate_gradient`."""
    found = _gradients(learning, q, k, v, gate, products, saved, dout, dlast)
    dq, dk, dv, dfirst, *gates = found
    streams = {"q": q, "k": k, "v": v, "dq": dq, "dk": dk, "dv": dv, "dout": dout}
    arrays = {"dfirst": dfirst, "dlast": dlast.contiguous(), "products": products}
    arrays |= dict(zip(("crossing", "leaving", "through"), gates, strict=True)) if learning else {}
    _run("backward", streams, arrays, gate, saved)
    return found


@_backward.register_fake
def _gradients(learning, q, k, v, gate, products, saved, dout, dlast):
    batch, _, heads, _ = v.shape
    found = [x.new_empty(x.shape) for x in (q, k, v, dlast)]
    if learning:
        count = products.shape[1]
        found += [v.new_zeros(batch, count, size, heads) for size in (CHUNK, CHUNK, 1)]
    return found


def _run(name: str, streams: dict[str, Tensor | None], arrays: dict[str, Tensor | None], gate, saved) -> None:
    """Call a function of native_shared.c on every stream."""
    k, v = streams["k"], streams["v"]
    (batch, length, heads, value_dim), key_dim = v.shape, k.shape[-1]
    library = native.load(
        SOURCE,
        exact=True,
        **native.C_TYPES[v.dtype],
        K=key_dim,
        V=value_dim,
        LANES=native.register_bytes() // v.dtype.itemsize,
        ROWS=ROWS[native.register_bytes()],
        CHUNK=CHUNK,
    )
    job = Job(heads=heads, length=length, gates=gate[0].shape[1] if gate else 0)
    if gate:
        arrays |= dict(zip(("sum", "rest", "start", "end"), (x.contiguous() for x in gate), strict=True))
    places = (ctypes.c_void_p * len(saved))(*(x.data_ptr() for x in saved))
    job.saved = ctypes.addressof(places) if saved else None
    least = -(-THREAD_NUMBERS // (length * heads * key_dim * value_dim))
    native.call(getattr(library, name), job, streams, arrays, batch, least)
