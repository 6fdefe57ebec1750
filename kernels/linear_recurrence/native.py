"""The recurrence token by token in C, for a CPU and states small enough for its registers (`native.c`).

The mathematics is the reference's, and so is its accuracy: no chunk, no inverse, no exponent above 0. What a chunk
saves, passes over the state, costs nothing where the state never leaves the core. The backward pass walks the stream
in reverse, over states that it makes again, `SPAN` tokens at a time, from those that the forward pass saved.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels import native
from kernels.linear_recurrence.arguments import LowRank, Rule

SPAN = 32
"""Tokens between saved states: 32 states of 16 x 16 fill a first-level cache."""

THREAD_NUMBERS = 1 << 20
"""Numbers of states, over all tokens, that are worth a thread: about 0.2 ms of work, twice what starting one costs."""

MAX_STATE = 64 * 64
"""Numbers in a head's state beyond which products of chunks are faster (`python -m benchmarks.kernels`)."""

SOURCE = Path(__file__).with_suffix(".c")
GATES = {"none": 0, "head": 1, "channel": 2}
ERASURES = {"none": 0, "delta": 1, "low rank": 2}
STREAMS = ("q", "k", "v", "decay", "a", "b", "o", "dq", "dk", "dv", "dgate", "da", "db", "dout")
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


def slow(key_dim: int, value_dim: int) -> str | None:
    """Why another form is faster, in words; None if this one is."""
    small = key_dim * value_dim <= MAX_STATE
    return None if small else f"a head's state of {key_dim} x {value_dim} is too large to stay in the core"


def recurrence(rule: Rule) -> tuple[Tensor | None, Tensor]:
    """`(o [B, L, H, V], state [B, H, K, V])`, unscaled; no output if the rule has no q."""
    heads = rule.v.shape[2]
    q, k = (None if x is None else x.expand(-1, -1, heads, -1) for x in (rule.q, rule.k))
    gate = rule.log_decay
    if rule.gate == "constant":
        gate = gate.expand(rule.v.shape[:3])
    a, b = rule.erase if isinstance(rule.erase, LowRank) else (rule.erase, None)
    tensors = q, k, rule.v, gate, a, b, rule.state
    training = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    o, state = _Native.apply(rule.erasure, training, *tensors)
    return (None if q is None else o), state


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx, erasure, training, q, k, v, gate, a, b, state):
        decay = None if gate is None else gate.exp()
        streams = {"q": q, "k": k, "v": v, "decay": decay, "a": a, "b": b}
        streams = {name: _rows(x) for name, x in streams.items()}
        streams["o"] = v.new_empty(0) if q is None else v.new_empty(v.shape)
        batch, length, heads, value_dim = v.shape
        state = state.contiguous()
        states = {"first": state, "last": torch.empty_like(state)}
        if training:
            states["saved"] = state.new_empty(batch, heads, -(-length // SPAN), *state.shape[2:])
        ctx.library = _library(k.shape[-1], value_dim, gate, erasure, v.dtype)
        _run(ctx.library.forward, v, streams, states)
        o = streams.pop("o")
        ctx.names = list(streams)
        ctx.save_for_backward(states.get("saved"), *streams.values())
        return o, states["last"]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_o, grad_state):
        saved, *tensors = ctx.saved_tensors
        streams = dict(zip(ctx.names, tensors, strict=True))
        v = streams["v"]
        grads = {name: None if x is None else x.new_empty(x.shape) for name, x in streams.items()}
        if not ctx.needs_input_grad[5]:
            grads["decay"] = None
        found = {f"d{name}": x for name, x in grads.items() if name != "decay"}
        found |= {"dgate": grads["decay"], "dout": None if streams["q"] is None else _rows(grad_o)}
        states = {"saved": saved, "dlast": grad_state.contiguous(), "dfirst": torch.empty_like(grad_state).contiguous()}
        _run(ctx.library.backward, v, streams | found, states)
        return None, None, *grads.values(), states["dfirst"]


def _rows(x: Tensor | None) -> Tensor | None:
    """With channels next to each other in memory; anything else about the strides is fine."""
    return x if x is None or x.ndim == 3 or x.stride(-1) == 1 else x.contiguous()


def _library(key_dim: int, value_dim: int, gate: Tensor | None, erasure: str, dtype: torch.dtype) -> ctypes.CDLL:
    lanes = math.gcd(value_dim, native.register_bytes() // dtype.itemsize)
    kind = "none" if gate is None else {3: "head", 4: "channel"}[gate.ndim]
    sizes = {"K": key_dim, "V": value_dim, "LANES": lanes, "SPAN": SPAN}
    return native.load(SOURCE, **native.C_TYPES[dtype], GATE=GATES[kind], ERASE=ERASURES[erasure], **sizes)


def _run(function, v: Tensor, streams: dict[str, Tensor | None], states: dict[str, Tensor | None]) -> None:
    batch, length, heads, value_dim = v.shape
    job = Job(heads=heads, length=length)
    for name, x in streams.items():
        setattr(job, name, native.strided(x))
    for name, x in states.items():
        setattr(job, name, None if x is None else x.data_ptr())
    function.argtypes = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    least = -(-THREAD_NUMBERS // (length * streams["k"].shape[-1] * value_dim))
    native.spread(partial(function, ctypes.addressof(job)), batch * heads, least)
