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

Positives are copied from the stream and so favour its frequent symbols; on uniform streams of 64 symbols `hist` is
right 70 % of the time with no memory of order. A backbone has learned the task only above `hist`. Likelihood ratios
become probabilities through a sigmoid; their thresholds are not tuned, so each accuracy is a lower bound for such a
memory.

Letters: B streams, L symbols, Q queries, k symbols per gram.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from tasks.batch import MAX_CANDIDATE, PAD, VOCABULARY, check_name


class Solver(Protocol):
    """A memory with nothing to train."""

    name: str

    def write(self, stream: torch.Tensor, state: Any = None) -> Any:
        """Read symbols [B, L] into a new state, or on from a given one."""

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
        """Probability of yes, float32 [B, Q]."""


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
        grams = _grams(symbols, self.k)
        counts = state.counts.scatter_add(1, grams, torch.ones_like(grams))
        tail = symbols[:, max(symbols.shape[1] - self.k + 1, 0) :]
        return GramCounts(counts, tail, state.length + stream.shape[1])

    def _of(self, candidates: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The k-grams of the candidates [B, Q, 7 - k] and which of them are there (not padding)."""
        grams = _grams(candidates.masked_fill(candidates == PAD, 0), self.k)
        there = torch.arange(grams.shape[-1], device=grams.device) <= lengths[..., None] - self.k
        return grams, there


class Histogram(_Counting):
    """Log-likelihood ratio of the symbol counts against uniform symbols."""

    def __init__(self, name: str):
        super().__init__(name, k=1)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        symbols, there = self._of(candidates, lengths)
        ratio = torch.log(VOCABULARY * _look_up(state.counts, symbols) / state.length)
        return torch.sigmoid(torch.where(there, ratio, 0.0).sum(-1))


class PairHistogram(_Counting):
    """Log-likelihood ratio of the first-order Markov chain of the pair counts against uniform symbols."""

    def __init__(self, name: str):
        super().__init__(name, k=2)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        pairs, there = self._of(candidates, lengths)
        starts = state.counts.unflatten(1, (VOCABULARY, VOCABULARY)).sum(-1)  # [B, 16] pairs that begin with a symbol
        symbols = starts.scatter_add(1, state.tail, torch.ones_like(state.tail))  # the last symbol begins none
        first = _look_up(symbols, candidates[..., :1]) / state.length
        following = _look_up(state.counts, pairs) / _look_up(starts, pairs // VOCABULARY).clamp(min=1)
        ratio = torch.where(there, torch.log(VOCABULARY * following), 0.0).sum(-1)
        return torch.sigmoid(torch.log(VOCABULARY * first[..., 0]) + ratio)


class GramSet(_Counting):
    """Yes when every k-gram of the candidate has occurred (a candidate shorter than k has none, so always yes)."""

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: GramCounts) -> torch.Tensor:
        grams, there = self._of(candidates, lengths)
        return ((_look_up(state.counts, grams) > 0) | ~there).all(-1).float()


class ExactStore:
    """Keeps the stream and searches it."""

    def __init__(self, name: str):
        self.name = name

    def write(self, stream: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        return stream if state is None else torch.cat((state, stream), dim=1)

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(state, (0, MAX_CANDIDATE - 1), value=-1)  # no symbol is -1: windows end in x
        match = torch.ones((*lengths.shape, state.shape[1]), dtype=torch.bool, device=state.device)  # [B, Q, start]
        for place in range(MAX_CANDIDATE):
            shifted = padded[:, None, place : place + state.shape[1]]
            match &= (shifted == candidates[..., place, None]) | (place >= lengths)[..., None]
        return match.any(-1).float()


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


_PRIME = 2**31 - 1


def _scramble(x: torch.Tensor) -> torch.Tensor:
    """One step of a linear congruential generator modulo the prime 2**31 - 1, in int64 without overflow."""
    return (x * 48271 + 11) % _PRIME


def _grams(symbols: torch.Tensor, k: int) -> torch.Tensor:
    """All k-grams [..., L - k + 1] of symbols [..., L] as base-16 numbers."""
    if symbols.shape[-1] < k:
        return symbols[..., :0]
    weights = VOCABULARY ** torch.arange(k - 1, -1, -1, device=symbols.device)
    return (symbols.unfold(-1, k, 1) * weights).sum(-1)


def _look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """table[b, at[b, ...]] for a table [B, N] and places [B, ...]."""
    return table.gather(1, at.flatten(1)).view(at.shape)


_MAKERS = {
    "coin": Coin,
    "hist": Histogram,
    "hist2": PairHistogram,
    "set1": lambda name: GramSet(name, 1),
    "set2": lambda name: GramSet(name, 2),
    "set3": lambda name: GramSet(name, 3),
    "exact": ExactStore,
}
SOLVERS = tuple(_MAKERS)


def solver(name: str) -> Solver:
    """The reference solver of that name.

    Raises:
        ValueError: for an unknown name; lists the known ones.
    """
    check_name("solver", name, SOLVERS)
    return _MAKERS[name](name)
