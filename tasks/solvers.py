"""Reference solvers: memories that know one simple thing about the stream, to read a backbone's accuracy against.

    memory = solver("hist")
    state = memory.write(stream)                       # [B, L] -> state; write(more, state) continues
    p_yes = memory.read(candidates, lengths, state)    # [B, Q, 6], [B, Q] -> [B, Q]; above 0.5 means yes

    name               knows                          says yes when
    coin               nothing                        a fixed pseudo-random number of (stream, candidate) says so
    hist               the counts of the 16 symbols   the candidate is likelier by the counts than by uniform symbols
    hist2              the counts of the 256 pairs    the same for a first-order Markov chain
    set1, set2, set3   which 1-, 2-, 3-grams occur    all of the candidate's occur
    exact              the stream                     the candidate occurs
    recent16 .. 256    the last symbols, so many      it occurs there
                       bytes (tasks/memories.py)
    bloom16 .. 4096    a Bloom filter of the grams    all its bits are set
    counts16 .. 4096   hashed counts of the grams     its counter is above the mean

Positives are copied from the stream and so favour its frequent symbols; on uniform streams of 64 symbols `hist` is
right 70 % of the time with no memory of order. A backbone has learned the task only above `hist`. Likelihood ratios
become probabilities through a sigmoid; their thresholds are not tuned, so each accuracy is a lower bound for such a
memory.

Each says how many bits it keeps of a stream, all that a later write or read needs included. `tasks.limit` bounds what
any memory of so many bits can do.

Letters: B streams, L symbols, Q queries, k symbols per gram.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from tasks.batch import VOCABULARY, check_name
from tasks.grams import candidate_grams, grams, look_up, occurs, tail_of
from tasks.memories import MEMORIES, SYMBOL_BITS, memory


class Solver(Protocol):
    """A memory with nothing to train."""

    name: str

    def write(self, stream: torch.Tensor, state: Any = None) -> Any:
        """Read symbols [B, L] into a new state, or on from a given one."""

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
        """Probability of yes, float32 [B, Q]."""

    def state_bits(self, length: int) -> int:
        """Bits kept of a stream of that length."""


class GramCounts(NamedTuple):
    """How often each k-gram has occurred."""

    counts: torch.Tensor
    """int64 [B, 16**k]."""
    tail: torch.Tensor
    """int64 [B, at most k - 1]: the last symbols, which begin the grams still to come."""
    length: int
    """Symbols read."""


class _Counting:
    """Shared by all solvers that count k-grams."""

    def __init__(self, name: str, k: int):
        self.name, self.k = name, k

    def write(self, stream: torch.Tensor, state: GramCounts | None = None) -> GramCounts:
        if state is None:
            counts = stream.new_zeros((stream.shape[0], VOCABULARY**self.k))
            state = GramCounts(counts, stream[:, :0], 0)
        symbols = torch.cat((state.tail, stream), dim=1)
        new = grams(symbols, self.k)
        counts = state.counts.scatter_add(1, new, torch.ones_like(new))
        return GramCounts(counts, tail_of(symbols, self.k - 1), state.length + stream.shape[1])

    def state_bits(self, length: int) -> int:
        """A counter to `length` per gram, and the tail; the sum of the counts gives the length away."""
        return VOCABULARY**self.k * length.bit_length() + (self.k - 1) * SYMBOL_BITS


class Histogram(_Counting):
    """Log-likelihood ratio of the symbol counts against uniform symbols."""

    def __init__(self, name: str):
        super().__init__(name, k=1)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        symbols, there = candidate_grams(candidates, lengths, self.k)
        ratio = torch.log(VOCABULARY * look_up(state.counts, symbols) / state.length)
        return torch.sigmoid(torch.where(there, ratio, 0.0).sum(-1))


class PairHistogram(_Counting):
    """Log-likelihood ratio of the first-order Markov chain of the pair counts against uniform symbols."""

    def __init__(self, name: str):
        super().__init__(name, k=2)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        pairs, there = candidate_grams(candidates, lengths, self.k)
        starts = state.counts.unflatten(1, (VOCABULARY, VOCABULARY)).sum(-1)  # [B, 16] pairs that begin with a symbol
        symbols = starts.scatter_add(1, state.tail, torch.ones_like(state.tail))  # the last symbol begins none
        first = look_up(symbols, candidates[..., :1]) / state.length
        following = look_up(state.counts, pairs) / look_up(starts, pairs // VOCABULARY).clamp(min=1)
        ratio = torch.where(there, torch.log(VOCABULARY * following), 0.0).sum(-1)
        return torch.sigmoid(torch.log(VOCABULARY * first[..., 0]) + ratio)


class GramSet(_Counting):
    """Yes when every k-gram of the candidate has occurred (a candidate shorter than k has none, so always yes)."""

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        own, there = candidate_grams(candidates, lengths, self.k)
        return ((look_up(state.counts, own) > 0) | ~there).all(-1).float()

    def state_bits(self, length: int) -> int:
        """A bit per gram (the counts are for convenience) and the tail."""
        return VOCABULARY**self.k + (self.k - 1) * SYMBOL_BITS


class ExactStore:
    """Keeps the stream and searches it."""

    def __init__(self, name: str):
        self.name = name

    def write(self, stream: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        return stream if state is None else torch.cat((state, stream), dim=1)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return occurs(candidates, lengths, state).float()

    def state_bits(self, length: int) -> int:
        return length * SYMBOL_BITS


class Coin:
    """A fixed pseudo-random number in [0, 1) for each stream and candidate: right half the time, however confident."""

    def __init__(self, name: str):
        self.name = name

    def write(self, stream: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        state = stream.new_zeros(stream.shape[0]) if state is None else state
        for symbol in stream.unbind(1):
            state = _scramble(state * 17 + symbol)
        return state

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        number = state[:, None].expand(lengths.shape)
        for symbol in candidates.unbind(-1):
            number = _scramble(number * 17 + symbol)
        return number.float() / _PRIME

    def state_bits(self, length: int) -> int:
        return _PRIME.bit_length()


_PRIME = 2**31 - 1


def _scramble(x: torch.Tensor) -> torch.Tensor:
    """One step of a linear congruential generator modulo the prime 2**31 - 1, in int64 without overflow."""
    return (x * 48271 + 11) % _PRIME


_MAKERS: dict[str, Callable[[str], Solver]] = {
    "coin": Coin,
    "hist": Histogram,
    "hist2": PairHistogram,
    "set1": lambda name: GramSet(name, 1),
    "set2": lambda name: GramSet(name, 2),
    "set3": lambda name: GramSet(name, 3),
    "exact": ExactStore,
}
SOLVERS = tuple(_MAKERS)
_MAKERS |= dict.fromkeys(MEMORIES, memory)


def solver(name: str) -> Solver:
    """The reference solver or bounded memory of that name.

    Raises:
        ValueError: for an unknown name; lists the known ones.
    """
    check_name("solver", name, tuple(_MAKERS))
    return _MAKERS[name](name)
