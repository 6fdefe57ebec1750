"""The recurrence in C, for a CPU: token by token for states small enough for its registers (`native.c`).

Where all heads share one q and one k, `native_shared.py` takes its place, for states of any size. Token by token, the
mathematics is the reference's, and so is its accuracy: no chunk, no inverse, no exponent above 0. What a chunk
saves, passes over the state, costs nothing where the state never leaves the core. The backward pass walks the stream
in reverse, over states that it makes again, `SPAN` tokens at a time, from those that the forward pass saved.

PyTorch's FLOP counter sees nothing of it: count the step form (`linear_step`), as `python -m flops` does.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kernels import native
from kernels.first_order import differentiable_once
from kernels.linear_recurrence import chunked, native_shared
from kernels.linear_recurrence.arguments import LowRank, Rule

SPAN = 32
"""Tokens between saved states: 32 states of 16 x 16 fill a first-level cache."""

THREAD_NUMBERS = 1 << 20
"""Numbers of states, over all tokens, that are worth a thread: about 0.2 ms of work, twice what starting one costs."""

MAX_STATE = 64 * 64
"""Numbers in a head's state beyond which products of chunks are faster (`python -m benchmarks.kernels --states`)."""

SOURCE = Path(__file__).with_suffix(".c")
GATES = {"none": 0, "head": 1, "channel": 2}
ERASURES = {"none": 0, "delta": 1, "low rank": 2}
INPUTS = ("q", "k", "v", "decay", "a", "b")
STREAMS = (*INPUTS, "o", *(f"d{name}" for name in INPUTS), "dout")
STATES = ("first", "last", "saved", "dfirst", "dlast")


class Job(ctypes.Structure):
    """The struct of native.c."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("length", ctypes.c_int64),
        *((name, native.Strided) for name in STREAMS),
        *((name, ctypes.c_void_p) for name in STATES),
    )


def unable(device: str) -> str | None:
    """Why this form cannot run, in words; None if it can."""
    return "it runs on a CPU only" if device != "cpu" else native.missing()


def tokens_at_once(algorithm: str, key_dim: int, value_dim: int, dtype: torch.dtype = torch.float32) -> int:
    """Tokens that are worked on together; `algorithm` is a name from `chunked.algorithm`."""
    return native_shared.CHUNK if algorithm == "shared" and not native_shared.unfit(key_dim, value_dim, dtype) else 1


def slow(algorithm: str, key_dim: int, value_dim: int) -> str | None:
    """Why another form is faster, in words; None if this one is. Arguments as in `tokens_at_once`."""
    if key_dim * value_dim <= MAX_STATE or tokens_at_once(algorithm, key_dim, value_dim) > 1:
        return None
    reason = f"a head's state of {key_dim} x {value_dim} is too large to stay in the core"
    return reason if algorithm != "shared" else f"{reason}, and {native_shared.unfit(key_dim, value_dim)}"


def recurrence(rule: Rule) -> tuple[Tensor | None, Tensor]:
    """`(o [B, L, H, V], state [B, H, K, V])`, unscaled; no output if the rule has no q."""
    heads, (key_dim, value_dim) = rule.v.shape[2], rule.state.shape[2:]
    if tokens_at_once(chunked.algorithm_of(rule), key_dim, value_dim, rule.v.dtype) > 1:
        return native_shared.recurrence(rule.q, rule.k, rule.v, chunked.summable(rule), rule.state)
    q, k = (None if x is None else x.expand(-1, -1, heads, -1) for x in (rule.q, rule.k))
    decay = None if rule.log_decay is None else rule.log_decay.exp()
    if rule.gate == "constant":
        decay = decay.expand(rule.v.shape[:3])
    a, b = rule.erase if isinstance(rule.erase, LowRank) else (rule.erase, None)
    tensors = q, k, rule.v, decay, a, b, rule.state
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    o, state = _Native.apply(rule.erasure, training, *tensors)
    return (None if q is None else o), state


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx, erasure, training, *tensors):
        o, last, saved = torch.ops.ecclab.recurrence(erasure, training, *tensors)
        ctx.erasure = erasure
        ctx.save_for_backward(saved, *tensors[:-1])
        return o, last

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_o, grad_state):
        saved, *tensors = ctx.saved_tensors
        gate_wanted = ctx.needs_input_grad[2 + INPUTS.index("decay")]
        found = torch.ops.ecclab.recurrence_backward(ctx.erasure, gate_wanted, *tensors, saved, grad_o, grad_state)
        found = dict(zip(_wanted(gate_wanted, tensors), found, strict=True))
        return None, None, *(found.get(name) for name in (*INPUTS, "state"))


# PyTorch's dispatcher stands between autograd and C: it brings lazily negated tensors to memory, and gives tracers and
# fake tensors the shapes below in place of addresses that do not exist.
_TENSORS = "Tensor? q, Tensor k, Tensor v, Tensor? decay, Tensor? a, Tensor? b"


@torch.library.custom_op(
    "ecclab::recurrence",
    mutates_args=(),
    device_types="cpu",
    schema=f"(str erasure, bool training, {_TENSORS}, Tensor state) -> (Tensor, Tensor, Tensor)",
)
def _forward(erasure, training, q, k, v, decay, a, b, state):
    """Output (empty without q), last state, and the states that the backward pass starts from (none without one)."""
    o, last, saved = _results(erasure, training, q, k, v, decay, a, b, state)
    streams = dict(zip(INPUTS, (q, k, v, decay, a, b), strict=True)) | {"o": None if q is None else o}
    states = {"first": state.contiguous(), "last": last, "saved": saved if training else None}
    _run("forward", erasure, streams, states)
    return o, last, saved


@_forward.register_fake
def _results(erasure, training, q, k, v, decay, a, b, state):
    batch, length, heads, _ = v.shape
    o = v.new_empty(0 if q is None else v.shape)
    saved = state.new_empty(batch, heads, -(-length // SPAN) if training else 0, *state.shape[2:])
    return o, state.new_empty(state.shape), saved


@torch.library.custom_op(
    "ecclab::recurrence_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(str erasure, bool gate_wanted, {_TENSORS}, Tensor saved, Tensor dout, Tensor dlast) -> Tensor[]",
)
def _backward(erasure, gate_wanted, q, k, v, decay, a, b, saved, dout, dlast):
    """Gradients of what `_wanted` names, in its order."""
    inputs = q, k, v, decay, a, b
    found = _gradients(erasure, gate_wanted, *inputs, saved, dout, dlast)
    *wanted, _state = _wanted(gate_wanted, inputs)
    streams = dict(zip(INPUTS, inputs, strict=True)) | {"dout": None if q is None else dout}
    streams |= {f"d{name}": x for name, x in zip(wanted, found[:-1], strict=True)}
    _run("backward", erasure, streams, {"saved": saved, "dlast": dlast.contiguous(), "dfirst": found[-1]})
    return found


@_backward.register_fake
def _gradients(erasure, gate_wanted, q, k, v, decay, a, b, saved, dout, dlast):
    like = dict(zip((*INPUTS, "state"), (q, k, v, decay, a, b, dlast), strict=True))
    return [like[name].new_empty(like[name].shape) for name in _wanted(gate_wanted, (q, k, v, decay, a, b))]


def _wanted(gate_wanted: bool, inputs: Sequence[Tensor | None]) -> list[str]:
    """What has a gradient: the inputs that there are, the gate if asked for, and the state before the first token."""
    there = [name for name, x in zip(INPUTS, inputs, strict=True) if x is not None]
    return [name for name in there if gate_wanted or name != "decay"] + ["state"]


def _run(name: str, erasure: str, streams: dict[str, Tensor | None], states: dict[str, Tensor | None]) -> None:
    """Call a function of native.c on every head of every stream."""
    k, v, decay = streams["k"], streams["v"], streams["decay"]
    (batch, length, heads, value_dim), key_dim = v.shape, k.shape[-1]
    kind = "none" if decay is None else {3: "head", 4: "channel"}[decay.ndim]
    library = native.load(
        SOURCE,
        **native.C_TYPES[v.dtype],
        K=key_dim,
        V=value_dim,
        LANES=math.gcd(value_dim, native.register_bytes() // v.dtype.itemsize),
        GATE=GATES[kind],
        ERASE=ERASURES[erasure],
        SPAN=SPAN,
    )
    least = -(-THREAD_NUMBERS // (length * key_dim * value_dim))
    native.call(getattr(library, name), Job(heads=heads, length=length), streams, states, batch * heads, least)
