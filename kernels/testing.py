"""Inputs for testing and timing the operators, usual and harsh, and the measure of error.

The usual inputs are drawn as the architectures make them: normalised keys, gates from a log-sigmoid, betas from a
sigmoid. The harsh ones are what a stream of 16 symbols and an unlucky layer can produce: log decays of -20 beside 0,
keys that repeat exactly, betas of 0, 1 and 2, keys of size 30 where nothing forbids them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

SYMBOLS = 16
"""Different keys in a harsh stream."""


@dataclass(frozen=True)
class Case:
    """A rule of the linear recurrence with its sizes, as functions of the number of heads."""

    gate: str
    """`"none"`, `"constant"`, `"head"` or `"channel"`."""
    erase: str
    """`"none"`, `"delta"` or `"low rank"`."""
    key_dim: int = 16
    value_dim: int = 16
    shared_heads: bool = False
    """One head of q and k for all."""
    width_per_head: int = 16
    """Channels of the layer per head."""
    lowest: float | None = None
    """The architecture's own bound on the log decay."""


CASES = {
    "retnet": Case("constant", "none", value_dim=32),
    "gla": Case("channel", "none", key_dim=8, lowest=-5.0),
    "mamba2": Case("head", "none", key_dim=128, value_dim=64, shared_heads=True, width_per_head=32),
    "deltanet": Case("none", "delta"),
    "gated_deltanet": Case("head", "delta", value_dim=32),
    "rwkv7": Case("channel", "low rank", lowest=-0.6066),
    "linear attention": Case("none", "none"),
    "simple gla": Case("head", "none"),
    "constant delta": Case("constant", "delta"),
    "channel delta": Case("channel", "delta", key_dim=8),
    "low rank": Case("none", "low rank", key_dim=8),
    "head low rank": Case("head", "low rank", value_dim=32),
    "shared": Case("none", "none", key_dim=64, value_dim=32, shared_heads=True),
    "shared constant": Case("constant", "none", key_dim=64, value_dim=64, shared_heads=True),
    "shared channel": Case("channel", "none", key_dim=8, shared_heads=True),
    "shared delta": Case("head", "delta", shared_heads=True),
}
"""The architectures, then the rest of what the operator can do."""


@dataclass
class RecurrenceInputs:
    """Arguments of `linear_recurrence`, by their names."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    erase: Tensor | tuple[Tensor, Tensor] | None
    state: Tensor | None

    def arguments(self) -> dict:
        """Keyword arguments of `linear_recurrence`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def tensors(self) -> list[Tensor]:
        """All tensors, the pair of a low-rank erase one by one."""
        flat = []
        for x in self.arguments().values():
            flat.extend(x if isinstance(x, tuple) else [x])
        return [x for x in flat if x is not None]

    def map(self, f) -> RecurrenceInputs:
        """The same with `f` applied to every tensor."""

        def one(x):
            return None if x is None else tuple(map(f, x)) if isinstance(x, tuple) else f(x)

        return RecurrenceInputs(**{name: one(x) for name, x in self.arguments().items()})

    def leaves(self, dtype: torch.dtype) -> RecurrenceInputs:
        """Copies in another dtype, each asking for its gradient."""
        return self.map(lambda x: x.detach().to(dtype).clone().requires_grad_())

    def tokens(self, part: slice) -> RecurrenceInputs:
        """The tokens of a part of the stream, with no state."""

        def cut(x: Tensor) -> Tensor:
            return x if x.ndim == 1 else x[:, part]

        inputs = RecurrenceInputs(self.q, self.k, self.v, self.log_decay, self.erase, None).map(cut)
        return inputs


def recurrence_inputs(
    case: Case,
    *,
    batch: int = 2,
    length: int = 64,
    heads: int = 2,
    with_state: bool = True,
    harsh: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> RecurrenceInputs:
    """Random arguments of a rule; the same for the same seed, whatever the dtype."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def pick(choices: list[float], *shape: int) -> Tensor:
        index = torch.randint(len(choices), shape, generator=generator)
        return torch.tensor(choices, dtype=torch.float64)[index]

    key_heads = 1 if case.shared_heads else heads
    q, v = normal(batch, length, key_heads, case.key_dim), normal(batch, length, heads, case.value_dim)
    k = normal(batch, length, key_heads, case.key_dim)
    if harsh:
        symbol = torch.randint(SYMBOLS, (batch, length), generator=generator)
        k = normal(batch, SYMBOLS, key_heads, case.key_dim)[torch.arange(batch)[:, None], symbol]
    if case.erase != "none":
        k = F.normalize(k, dim=-1)
    elif harsh:
        k = k * pick([1.0, 30.0], batch, length, key_heads, 1)

    per_head = v.shape[:3]
    shape = {"none": None, "constant": (heads,), "head": per_head, "channel": (*per_head, case.key_dim)}[case.gate]
    if shape is None:
        log_decay = None
    elif case.gate == "constant":
        log_decay = torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))))
    elif case.lowest is not None:
        log_decay = case.lowest * uniform(*shape)
    else:
        log_decay = F.logsigmoid(3 * normal(*shape))
    if harsh and shape is not None:
        lowest = -20.0 if case.lowest is None else case.lowest
        log_decay = pick([lowest, 0.0, -0.01], *shape)

    erase = None
    if case.erase == "delta":
        erase = pick([0.0, 1.0, 2.0, 0.999], *v.shape[:3]) if harsh else torch.sigmoid(normal(*v.shape[:3]))
    elif case.erase == "low rank":
        if key_heads != heads:
            raise ValueError("a low-rank erase has its own vectors per head, so its keys are not shared")
        removal = k if harsh else F.normalize(normal(*k.shape), dim=-1)
        strength = pick([0.0, 1.0, 0.99], *k.shape[:3], 1) if harsh else torch.sigmoid(normal(*k.shape))
        erase = (removal * strength, -removal)
    state = normal(batch, heads, case.key_dim, case.value_dim) if with_state else None
    return RecurrenceInputs(q, k, v, log_decay, erase, state).map(lambda x: x.to(dtype))


def rms_ratio(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the error over that of what is expected: one number, scale-free, NaN if anything is."""
    if found.shape != expected.shape:
        raise ValueError(f"comparing {tuple(found.shape)} with {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny))
