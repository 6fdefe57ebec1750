"""Negative candidates: windows that did not occur, drawn so that knowing something less than the stream is not enough.

`uniform`  symbols drawn uniformly (the paper's negatives). Nearly free on a regular stream: most hold a symbol pair
           that occurs nowhere in it.
`near`     a true window with exactly one symbol changed, every symbol pair of the result seen in the prefix: a table
           of pairs does not reject it.
`order`    the window of the positive candidate it is paired with, its symbols permuted: symbol counts say nothing. So
           positives against negatives of this set are the *order probe*: a memory that ignores order answers both
           alike.

"Prefix" is x[:t], what had been seen at the query's time t; every negative is verified absent from it. A candidate is
drawn uniformly over what its set allows: for `near`, over the (window start, place, symbol) triples whose result is
absent with all pairs seen; for `order`, over the permutations of its window that are absent. A few vectorised tries by
rejection settle most; the rest are drawn from the exhaustive list of choices, which is the same distribution. Where
that list is empty (a run of one symbol has no other order, a periodic stream no `near` negative) a `uniform` negative
of the same length stands in, and says so in the returned kinds; `Batch.scored` leaves it and its positive out. Lengths
are never redrawn, so they carry no label.

Letters: K queries, M tries at once, B streams.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace

import numpy as np

from tasks.batch import KINDS, MAX_CANDIDATE, VOCABULARY
from tasks.rng import below, fold, words
from tasks.windows import WindowIndex, decode, mask

# Tries by rejection, in blocks: most queries are settled by the first block, and only the others pay for the second.
_BLOCKS = {"uniform": ((0, 1), (1, 32)), "near": ((0, 8), (8, 64)), "order": ((0, 1), (1, 16))}
_WORDS = 3  # random words per try


def _permutation_table() -> tuple[np.ndarray, np.ndarray]:
    """All permutations of 0..n-1 for n = 0..6, rows padded with their own place, and the first row for each n."""
    rows, first = [], []
    for n in range(MAX_CANDIDATE + 1):
        first.append(len(rows))
        rows += [(*p, *range(n, MAX_CANDIDATE)) for p in itertools.permutations(range(n))]
    return np.array(rows), np.array(first)


_PERMUTATIONS, _FIRST_PERMUTATION = _permutation_table()
_FACTORIAL = np.array([math.factorial(n) for n in range(MAX_CANDIDATE + 1)])


@dataclass(frozen=True)
class Slots:
    """K places to fill with a candidate each; every field is an array [K]."""

    row: np.ndarray
    """Which stream of the batch."""
    time: np.ndarray
    """Query time t: the candidate is judged against x[row, :t]."""
    n: np.ndarray
    """Symbols in the candidate."""
    end: np.ndarray
    """Where the paired positive's window ends."""
    key: np.ndarray
    """Random key, uint64."""

    def take(self, which: np.ndarray) -> Slots:
        return Slots(*(getattr(self, field.name)[which] for field in fields(self)))


class NegativeSampler:
    """Draws negatives for the streams x [B, L] behind `index`."""

    def __init__(self, x: np.ndarray, index: WindowIndex, vocabulary: int):
        self._index = index
        self._vocabulary = vocabulary
        self._length = x.shape[1]
        self._first_seen: np.ndarray | None = None

    def draw(self, query_set: str, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
        """Codes [K] of absent candidates and their kinds [K] (indices into KINDS).

        Raises:
            ValueError: where every window of the wanted length occurs, so that no negative exists at all.
        """
        codes = self._search(query_set, slots)
        kinds = np.full(len(codes), KINDS.index(query_set))
        missing = np.flatnonzero(codes < 0)
        if missing.size and query_set != "uniform":
            codes[missing] = self._search("uniform", slots.take(missing))
            kinds[missing] = KINDS.index("uniform")
            missing = np.flatnonzero(codes < 0)
        if missing.size:
            n, time = slots.n[missing[0]], slots.time[missing[0]]
            raise ValueError(
                f"no negative of {n} symbols exists: all {self._vocabulary**n} windows of that length occur in the "
                f"first {time} symbols of a stream; use longer candidates or shorter streams"
            )
        return codes, kinds

    def _search(self, query_set: str, slots: Slots) -> np.ndarray:
        """Codes [K], -1 where the query set has no candidate."""
        propose = getattr(self, f"_propose_{query_set}")
        slots = replace(slots, key=fold(slots.key, KINDS.index(query_set)))
        codes = np.full(len(slots.row), -1)
        todo = np.arange(len(codes))
        for first, last in _BLOCKS[query_set]:
            tries, allowed = propose(slots.take(todo), first, last)  # [K, M] each
            query, attempt = np.nonzero(allowed)
            where = todo[query]
            seen = self._index.latest(slots.row[where], tries[query, attempt], slots.n[where], slots.time[where]) >= 0
            allowed[query[seen], attempt[seen]] = False
            settled = allowed.any(axis=1)
            codes[todo[settled]] = tries[settled, allowed[settled].argmax(axis=1)]
            todo = todo[~settled]
        choices: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        for k in todo:
            group = int(slots.row[k]), int(slots.time[k]), int(slots.n[k]), int(slots.end[k])
            if query_set != "order":
                group = (*group[:3], 0)  # does not depend on the positive
            if group not in choices:
                choices[group] = self._choices(query_set, *group)
            options, weight = choices[group]
            if options.size:
                draw = below(words(slots.key[k], 1), weight[-1])[0]
                codes[k] = options[np.searchsorted(weight, draw, side="right")]
        return codes

    # -- by rejection: [K, M] codes, and whether each meets its set's rule (absence is checked by the caller) ---------

    def _propose_uniform(self, slots: Slots, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        places = mask(slots.n)[:, None] & self._symbol_bits
        codes = self._words(slots, first, last)[..., 0].astype(np.int64) & places
        return codes, np.ones(codes.shape, bool)

    def _propose_near(self, slots: Slots, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        word = self._words(slots, first, last)
        row, time, n = (a[:, None] for a in (slots.row, slots.time, slots.n))
        window = self._index.window(row, n + below(word[..., 0], time - n + 1), n)
        place = 4 * below(word[..., 1], n)
        codes = self._change(window, place, 1 + below(word[..., 2], self._vocabulary - 1))
        return codes, self._pairs_seen(row, codes, n, time)

    def _propose_order(self, slots: Slots, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        word = self._words(slots, first, last)[..., 0]
        n = slots.n[:, None]
        permutation = _PERMUTATIONS[_FIRST_PERMUTATION[n] + below(word, _FACTORIAL[n])]
        codes = _permute(self._index.window(slots.row, slots.end, slots.n)[:, None], n, permutation)
        return codes, np.ones(codes.shape, bool)

    # -- by exhaustion: every choice for one candidate, with cumulative weights ---------------------------------------

    def _choices(self, query_set: str, row: int, time: int, n: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        windows, count = np.unique(self._index.codes[row, n - 1 : time] & mask(n), return_counts=True)
        allowed: np.ndarray | bool = True
        weight: np.ndarray | int = 1
        if query_set == "uniform":
            codes = np.zeros(1, np.int64)
            for _ in range(n):
                codes = (codes[:, None] << 4 | np.arange(self._vocabulary)).ravel()
        elif query_set == "near":
            place = 4 * np.arange(n)[:, None]
            codes = self._change(windows[:, None, None], place, np.arange(1, self._vocabulary))
            allowed = self._pairs_seen(np.array(row), codes, np.array(n), np.array(time))
            weight = count[:, None, None]
        else:
            table = _PERMUTATIONS[_FIRST_PERMUTATION[n] : _FIRST_PERMUTATION[n] + _FACTORIAL[n]]
            codes = _permute(np.array(self._index.codes[row, end - 1] & mask(n)), np.array(n), table)
        allowed = allowed & ~np.isin(codes, windows)
        return codes[allowed], np.cumsum(np.broadcast_to(weight, codes.shape)[allowed])

    # -- shared -------------------------------------------------------------------------------------------------------

    @property
    def _symbol_bits(self) -> int:
        return (self._vocabulary - 1) * 0x111111  # the bits that a symbol may use, in each of the six places

    @staticmethod
    def _words(slots: Slots, first: int, last: int) -> np.ndarray:
        """[K, M, 3] random words of tries first .. last - 1."""
        return words(slots.key, (last - first) * _WORDS, start=1 + first * _WORDS).reshape(-1, last - first, _WORDS)

    def _change(self, window: np.ndarray, place: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Windows with the symbol at bit `place` moved on by `step` (1 .. vocabulary - 1, cyclically)."""
        old = window >> place & 15
        return window ^ (old ^ (old + step) % self._vocabulary) << place

    def _pairs_seen(self, row: np.ndarray, codes: np.ndarray, n: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Whether every pair of neighbouring symbols of a code occurs in the prefix."""
        if self._first_seen is None:
            self._first_seen = self._first_ends()
        seen = np.ones(codes.shape, bool)
        for place in range(MAX_CANDIDATE - 1):
            seen &= (place >= n - 1) | (self._first_seen[row, codes >> 4 * place & 255] <= time)
        return seen

    def _first_ends(self) -> np.ndarray:
        """[B, 256] where each symbol pair first ends, past the stream's end if it never occurs."""
        pairs = self._index.codes[:, 1:] & 255
        first = np.full((len(pairs), VOCABULARY**2), self._length + 1)
        ends = np.broadcast_to(np.arange(2, self._length + 1), pairs.shape)
        np.minimum.at(first, (np.arange(len(pairs))[:, None], pairs), ends)
        return first


def _permute(codes: np.ndarray, n: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    """Codes with their symbols in the order of `permutation` [..., 6], which leaves places beyond n alone."""
    symbols = decode(codes, n)
    symbols, permutation = np.broadcast_arrays(symbols, permutation)
    symbols = np.take_along_axis(symbols, permutation, axis=-1)
    place = np.arange(MAX_CANDIDATE)
    last = np.asarray(n)[..., None] - 1
    return np.where(place <= last, symbols << 4 * np.maximum(last - place, 0), 0).sum(axis=-1)
