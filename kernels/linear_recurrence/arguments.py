"""What the public functions accept: checked once, at the door, and brought to one dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class LowRank(NamedTuple):
    """The general erase: `S <- S + a (b^T S)`; both `[B, L, H, K]`."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Rule:
    """The arguments of a recurrence in its core dtype; see the package's docstring for their meaning.

    Shapes are those of the public functions, with `L` replaced by `Q` in a read. `q` is None when no output is wanted.
    """

    q: Tensor | None
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    erase: Tensor | LowRank | None
    state: Tensor
    lowest: float = 0.0
    """No log decay is below this. Only meant for rules whose decay is `factorised`."""

    @property
    def gate(self) -> str:
        """`"none"`, `"constant"`, `"head"` or `"channel"`."""
        return "none" if self.log_decay is None else {1: "constant", 3: "head", 4: "channel"}[self.log_decay.ndim]

    @property
    def erasure(self) -> str:
        """`"none"`, `"delta"` or `"low rank"`."""
        return "none" if self.erase is None else "low rank" if isinstance(self.erase, LowRank) else "delta"

    @property
    def shared_heads(self) -> bool:
        """Whether one head of q and k serves several of v."""
        return self.v.shape[2] > 1 and self.k.shape[2] == 1 and (self.q is None or self.q.shape[2] == 1)


def factorised(log_decay: Tensor | None, erase: Tensor | tuple | None) -> bool:
    """Whether the chunked form splits the decay between two tokens into two factors, one of which is above 1."""
    return log_decay is not None and (log_decay.ndim == 4 or isinstance(erase, tuple))


def check(q, k, v, log_decay, erase, state, min_log_decay: float | None = None) -> Rule:
    """Validate shapes and gates, and cast.

    Raises:
        ValueError: a shape does not fit the others (the message names the argument, its shape and the shape wanted),
            or a log decay is positive or below the promised minimum (found out on a CPU only).
    """
    if v.ndim != 4 or 0 in v.shape:
        raise ValueError(f"v must be [B, L, H, V] with every size at least 1, got {tuple(v.shape)}")
    batch, length, heads, value_dim = v.shape
    if k.ndim != 4 or 0 in k.shape:
        raise ValueError(f"k must be [B, L, H, K] with every size at least 1, got {tuple(k.shape)}")
    key_dim = k.shape[-1]
    per_head = batch, length, heads
    keys = [(*per_head, key_dim), (batch, length, 1, key_dim)]
    _expect("k", k, *keys)
    if q is not None:
        _expect("q", q, *keys)
    if log_decay is not None:
        _expect("log_decay", log_decay, (heads,), per_head, (*per_head, key_dim))
    if isinstance(erase, Tensor):
        _expect("erase (the delta rule's beta)", erase, per_head)
    elif erase is not None:
        erase = LowRank(*erase)
        for name, vector in erase._asdict().items():
            _expect(f"erase's {name}", vector, (*per_head, key_dim))
    if state is not None:
        _expect("state", state, (batch, heads, key_dim, value_dim))
    low_rank = erase if isinstance(erase, LowRank) else (erase,)
    for x in (q, k, log_decay, state, *low_rank):
        if x is not None and x.device != v.device:
            raise ValueError(f"v is on {v.device} and another argument on {x.device}; move one of them")
    lowest = 0.0 if log_decay is None else _lowest(log_decay, min_log_decay, factorised(log_decay, erase))
    return cast(q, k, v, log_decay, erase, state, lowest)


def _lowest(log_decay: Tensor, promised: float | None, needed: bool) -> float:
    """A lower bound of the gates. Looking at the data is cheap on a CPU; a GPU has to be waited for."""
    if log_decay.device.type != "cpu":
        if promised is None and needed:
            return float(log_decay.detach().amin())
        return promised or 0.0
    low, high = (float(x) for x in log_decay.detach().aminmax())
    if high > 0:
        raise ValueError(
            f"log_decay must be at most 0 (a decay of at most 1), found {high}; pass the log, not the decay"
        )
    if promised is not None and low < promised:
        raise ValueError(
            f"log_decay goes down to {low}, below the promised min_log_decay={promised}; clamp one of them"
        )
    return low if promised is None else promised


def cast(q, k, v, log_decay, erase, state, lowest: float = 0.0) -> Rule:
    """Everything in float32, or in float64 if anything is: decays and solves lose too much in 16 bits."""
    low_rank = erase if isinstance(erase, tuple) else (erase,)
    given = [x for x in (q, k, v, log_decay, state, *low_rank) if x is not None]
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32

    def core(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(dtype)

    if state is None:
        state = v.new_zeros(v.shape[0], v.shape[-2], k.shape[-1], v.shape[-1], dtype=dtype)
    erase = LowRank(*map(core, erase)) if isinstance(erase, tuple) else core(erase)
    return Rule(core(q), core(k), core(v), core(log_decay), erase, core(state), lowest)


def _expect(name: str, x: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(x.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {tuple(x.shape)}; with the v given it must be {wanted}")
