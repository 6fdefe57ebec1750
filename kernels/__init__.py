"""Sequence operators: few, each in a slow form that is obviously right and fast forms that are tested against it.

`linear_recurrence` carries seven architectures, `attention` the Transformers, `short_conv` and `leaky_average` the
token mixing around them. Every operator takes streams as `[B, L, ...]`, continues from a state or cache that is passed
in and returned, and has a reading form for many independent next tokens off one state.

Each operator is a folder: `reference.py` is the oracle, the files beside it are the fast forms, `__init__.py` the
public function, which picks a form and takes `kernel=` to override. Speed: `python -m benchmarks.kernels`.
"""

from kernels.attention import attention_read, causal_attention, rotary
from kernels.explain import explain
from kernels.leaky_average import leaky_average, leaky_average_read
from kernels.linear_recurrence import linear_read, linear_recurrence, linear_state, linear_step
from kernels.short_conv import short_conv, short_conv_read

__all__ = [
    "attention_read",
    "causal_attention",
    "explain",
    "leaky_average",
    "leaky_average_read",
    "linear_read",
    "linear_recurrence",
    "linear_state",
    "linear_step",
    "rotary",
    "short_conv",
    "short_conv_read",
]
