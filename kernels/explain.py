"""Saying in one line which form of an operator will run."""

from __future__ import annotations

from kernels import attention, leaky_average, linear_recurrence, short_conv
from kernels.choice import pick_name

_OPERATORS = {
    "attention": attention.FORMS,
    "leaky_average": leaky_average.FORMS,
    "linear_recurrence": linear_recurrence.FORMS,
    "short_conv": short_conv.FORMS,
}
_GATES = {"none": "no gate", "constant": "constant decay", "head": "gate per head", "channel": "gate per channel"}
_ERASURES = {"none": "no erase", "delta": "delta rule", "low rank": "low rank erase"}


def explain(
    operator: str = "linear_recurrence",
    *,
    kernel: str = "auto",
    device: str = "cpu",
    gate: str = "head",
    erase: str = "none",
    shared_heads: bool = False,
    key_dim: int = 16,
    value_dim: int = 16,
) -> str:
    """One line such as `linear_recurrence: native (cpu; gate per head, no erase, token by token)`.

    Args:
        operator: `"linear_recurrence"`, `"attention"`, `"short_conv"` or `"leaky_average"`.
        kernel: what would be passed to the operator.
        device: where its tensors are.
        gate: of the recurrence: `"none"`, `"constant"`, `"head"` or `"channel"`.
        erase: of the recurrence: `"none"`, `"delta"` or `"low rank"`.
        shared_heads: whether the recurrence has one head of q and k for several of v.
        key_dim: K, of the recurrence.
        value_dim: V, likewise.

    Raises:
        ValueError: there is no such operator, kernel, gate or erase, or the kernel cannot run on this machine.
    """
    if operator not in _OPERATORS:
        raise ValueError(f"there is no operator {operator!r}; choose from {', '.join(_OPERATORS)}")
    if operator != "linear_recurrence":
        return f"{operator}: {pick_name(operator, _OPERATORS[operator], kernel)} ({device})"
    if gate not in _GATES or erase not in _ERASURES:
        raise ValueError(f"gate={gate!r}, erase={erase!r}: choose of {', '.join(_GATES)} and of {', '.join(_ERASURES)}")
    form, how = linear_recurrence.explain_recurrence(kernel, device, gate, erase, shared_heads, key_dim, value_dim)
    return f"{operator}: {form} ({device}; {_GATES[gate]}, {_ERASURES[erase]}, {how})"
