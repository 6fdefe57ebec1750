"""Which streams, of what length, asked when: the training data as a pure function of the optimiser step.

    step = schedule.at(1234)        # Step(indices, length, times, queries): the whole batch of that step

Nothing is remembered between steps, so training may resume at any step, on any number of workers or devices.

`OnlineSchedule` (preset=cpu): every step sees new streams. One length per batch, uniform on the multiples of 16 up to a
limit that grows geometrically over the first 60 % of training; queries at the end and at three other multiples of 16.

`EpochSchedule` (preset=paper): a fixed set of streams, 5 % held out, each with a length drawn once from a mix; epochs
go through the rest in a new order, in batches of equal length; queries at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.rng import below, fold, unit, words

_LENGTH, _TIMES, _ORDER, _BATCHES = range(100, 104)  # what a key is for; apart from the purposes of membership.py


@dataclass(frozen=True)
class Step:
    """One optimiser step's batch, before anything is generated."""

    indices: np.ndarray
    """int64 [B] stream indices of the global batch."""
    length: int
    """L, the same for all of them."""
    times: tuple[int, ...]
    """Query times."""
    queries: int
    """Q per stream, over all times together."""


@dataclass(frozen=True)
class OnlineSchedule:
    """New streams at every step, from short to long (spec: the `cpu` recipe)."""

    steps: int
    """Optimiser steps of the whole training; the curriculum is a function of step / steps."""
    seed: int = 0
    batch_size: int = 16
    """Streams per optimiser step, over all devices together."""
    max_length: int = 128
    min_length: int = 16
    """Shortest length, and the unit of which all lengths and query times are multiples."""
    growth: float = 0.6
    """Share of training over which the length limit grows from min_length to max_length; 0 has no curriculum."""
    query_times: int = 4
    """Query times per stream. Where a stream has too few multiples of min_length, or the queries would not split into
    equal halves, fewer are used; the number of queries per stream stays the same."""
    queries: int = 64
    """Queries per stream, over all times."""

    def __post_init__(self) -> None:
        _positive(self, "steps", "batch_size", "min_length", "query_times")
        if self.max_length < self.min_length or self.max_length % self.min_length:
            raise ValueError(
                f"max_length={self.max_length} must be a multiple of min_length={self.min_length}, the unit of lengths"
            )
        if not 0 <= self.growth <= 1:
            raise ValueError(f"growth={self.growth} is a share of training and must lie within 0..1")
        _even(self.queries)

    def limit(self, step: int) -> int:
        """The longest length at a step."""
        done = 1.0 if self.growth == 0 else min(1.0, step / self.steps / self.growth)
        ratio = (self.max_length / self.min_length) ** done
        return self.min_length * int(ratio + 1e-9)  # 1e-9: the last power must reach max_length despite rounding

    def at(self, step: int) -> Step:
        """The batch of optimiser step 0, 1, 2, ..."""
        word = words(fold(self.seed, _LENGTH, step), 1)
        units = 1 + int(below(word, self.limit(step) // self.min_length)[0])
        indices = step * self.batch_size + np.arange(self.batch_size)
        return Step(indices, units * self.min_length, self._times(step, units), self.queries)

    def _times(self, step: int, units: int) -> tuple[int, ...]:
        halves = self.queries // 2
        count = next(c for c in range(min(self.query_times, units), 0, -1) if halves % c == 0)
        earlier = np.argsort(words(fold(self.seed, _TIMES, step), units - 1), kind="stable")[: count - 1] + 1
        return tuple(self.min_length * int(u) for u in (*sorted(earlier), units))

    def validation(self, length: int, count: int) -> tuple[str, np.ndarray]:
        """Split and indices of `count` validation streams of a length."""
        return "validation", np.arange(count)


@dataclass(frozen=True)
class EpochSchedule:
    """Epochs over a fixed set of streams (paper, C.1)."""

    epochs: int = 125
    seed: int = 0
    batch_size: int = 64
    """Streams per optimiser step, over all devices together."""
    streams: int = 500_000
    """Streams in all; the last `validation` share of the indices is held out."""
    validation_share: float = 0.05
    lengths: tuple[int, ...] = tuple(range(32, 1025, 32))
    """The lengths a stream may have. The paper says 32-1024 and not which in between."""
    weights: tuple[float, ...] = ()
    """Relative frequency of each length; none means equal."""
    queries: int = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "weights", tuple(self.weights))
        _positive(self, "epochs", "batch_size", "streams")
        _even(self.queries)
        if not 0 <= self.validation_share < 1:
            raise ValueError(f"validation_share={self.validation_share} must lie within 0 and 1")
        if not self.lengths or sorted(set(self.lengths)) != list(self.lengths) or self.lengths[0] < 1:
            raise ValueError(f"lengths={self.lengths} must be positive and increasing")
        if self.weights and (len(self.weights) != len(self.lengths) or min(self.weights) <= 0):
            raise ValueError(f"weights={self.weights} must be positive, one for each of {len(self.lengths)} lengths")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{self.training_streams} training streams in {len(self.lengths)} lengths do not fill one batch of "
                f"{self.batch_size} streams of equal length; use more streams, fewer lengths or a smaller batch"
            )

    @property
    def training_streams(self) -> int:
        """Streams that are trained on: indices 0 .. training_streams - 1."""
        return self.streams - round(self.streams * self.validation_share)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches of equal length in an epoch. What is left of each length sits this epoch out; the order is new
        every epoch, so it is a different part each time."""
        return int(sum(len(bucket) // self.batch_size for bucket in _buckets(self)))

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def length_of(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The length [B] of each stream, a function of (seed, index)."""
        cumulative = np.cumsum(self.weights or np.ones(len(self.lengths)))
        draw = unit(words(fold(self.seed, _LENGTH, np.asarray(indices)), 1)[..., 0])
        return np.array(self.lengths)[np.searchsorted(cumulative, draw * cumulative[-1], side="right")]

    def at(self, step: int) -> Step:
        """The batch of optimiser step 0, 1, 2, ...; the first of each epoch sorts the whole epoch (tens of ms)."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        indices = _epoch(self, epoch)[batch]
        length = int(self.length_of(indices[:1])[0])
        return Step(indices, length, (length,), self.queries)

    def validation(self, length: int, count: int | None = None) -> tuple[str, np.ndarray]:
        """Split and indices of the held-out streams of a length, `count` of them at most."""
        if length not in self.lengths:
            raise ValueError(f"no stream has length {length}; the held-out streams have lengths {self.lengths}")
        held_out = np.arange(self.training_streams, self.streams)
        return "train", held_out[self.length_of(held_out) == length][:count]


@lru_cache(maxsize=2)
def _buckets(schedule: EpochSchedule) -> list[np.ndarray]:
    """The training streams of each length."""
    lengths = schedule.length_of(np.arange(schedule.training_streams))
    return [np.flatnonzero(lengths == length) for length in schedule.lengths]


@lru_cache(maxsize=2)
def _epoch(schedule: EpochSchedule, epoch: int) -> np.ndarray:
    """[steps_per_epoch, batch_size] the streams of each step of an epoch."""
    batches = []
    for bucket in _buckets(schedule):
        order = np.argsort(words(fold(schedule.seed, _ORDER, epoch, bucket), 1)[:, 0], kind="stable")
        full = len(bucket) // schedule.batch_size * schedule.batch_size
        batches.append(bucket[order[:full]].reshape(-1, schedule.batch_size))
    steps = np.concatenate(batches)
    return steps[np.argsort(words(fold(schedule.seed, _BATCHES, epoch), len(steps)), kind="stable")]


def _positive(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 1")


def _even(queries: int) -> None:
    if queries < 2 or queries % 2:
        raise ValueError(f"queries={queries} must be even, half of them positives and half negatives")
