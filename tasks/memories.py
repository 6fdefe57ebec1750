"""Memories of bounded bytes with nothing to train: what an accuracy is worth in bits.

    recent<bytes>   the last symbols of the stream, two to a byte
    bloom<bytes>    a Bloom filter that holds every 3-, 4-, 5- and 6-gram of the stream
    counts<bytes>   a hash table of 4-bit counters, one hash, over the same grams

All have the interface of `tasks.solvers.Solver`, and know how far to trust themselves. With even odds of yes and no
beforehand, and a negative's hashes falling on uniformly random places:

- Last symbols: found is yes, for certain. Not found, the candidate may have occurred earlier: a positive is a window
  at a uniform place, outside the kept ones with probability u, so p(yes) = u / (u + 1).
- Bloom filter: where a bit is missing the answer is no, for certain. Where all j bits are set, a candidate that
  occurred would set them always, another with probability f = (share of bits set)^j: p(yes) = 1 / (1 + f).
- Counters: a negative's counter is a random one, it reads c with probability N_c / m (N_c of m counters read c); a
  positive, copied from a uniform position, is one of T insertions, and c N_c of these lie in counters that read c.
  The ratio of the two is c m / T: p(yes) = c / (c + T / m). No distribution of the stream is assumed. A counter stops
  at 15; saturated ones are taken at their mean, which follows from T.

Letters: B streams, L symbols, Q queries, m bits or counters, k hashes. Sources: B. Bloom, Space/time trade-offs in hash
coding with allowable errors, CACM 13 (1970); L. Carter and M. Wegman, Universal classes of hash functions, JCSS 18
(1979).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from tasks.batch import MAX_CANDIDATE, VOCABULARY
from tasks.grams import grams, look_up, occurs, tail_of

BYTES = (16, 64, 256, 1024, 4096)
MEMORIES = tuple(
    f"{kind}{size}" for kind, sizes in (("recent", BYTES[:3]), ("bloom", BYTES), ("counts", BYTES)) for size in sizes
)
"""A stream of 512 symbols fits 256 bytes: larger `recent` ones would be the exact store."""
SYMBOL_BITS = (VOCABULARY - 1).bit_length()

GRAMS = (3, 4, 5, 6)
COUNTER_BITS = 4
TALLY_BITS = 32  # a count of what has been read
_PRIME = 2**31 - 1
_TAIL = GRAMS[-1] - 1


class Recent(NamedTuple):
    """The end of a stream."""

    symbols: torch.Tensor
    """int64 [B, at most 2 x bytes]."""
    length: int
    """Symbols read in all."""


class RecentStore:
    """Keeps the last symbols and searches them.

    Args:
        size: bytes, two symbols each.
    """

    def __init__(self, name: str, size: int):
        self.name, self.kept = name, 8 * size // SYMBOL_BITS

    def write(self, stream: torch.Tensor, state: Recent | None = None) -> Recent:
        state = state or Recent(stream[:, :0], 0)
        symbols = torch.cat((state.symbols, stream), dim=1)
        return Recent(tail_of(symbols, self.kept), state.length + stream.shape[1])

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Recent) -> torch.Tensor:
        inside = (state.symbols.shape[1] - lengths + 1).clamp(min=0)
        outside = 1 - inside / (state.length - lengths + 1).clamp(min=1)
        return torch.where(occurs(candidates, lengths, state.symbols), 1.0, outside / (outside + 1)).float()

    def state_bits(self, length: int) -> int:
        return min(self.kept, length) * SYMBOL_BITS + TALLY_BITS


class Hashed(NamedTuple):
    """What a hashing memory holds."""

    cells: torch.Tensor
    """[B, m] bits (bool) or counters (int64, at most 15)."""
    tail: torch.Tensor
    """int64 [B, at most 5]: the last symbols, which begin the grams still to come."""
    insertions: int
    """Grams inserted, repeats included."""


class _Hashing:
    """Shared: the grams of a stream as keys, and their hashes."""

    def __init__(self, name: str, cells: int, hashes: int):
        self.name, self.cells, self.hashes = name, cells, hashes
        generator = np.random.default_rng(20_240_801)
        # Universal hashing: ((a x + b) mod p) mod m; a x stays below 2**56.
        self._a = torch.from_numpy(generator.integers(1, _PRIME, hashes))
        self._b = torch.from_numpy(generator.integers(0, _PRIME, hashes))

    def _places(self, keys: torch.Tensor) -> torch.Tensor:
        """[..., k] places of keys [...]."""
        return (keys[..., None] * self._a.to(keys.device) + self._b.to(keys.device)) % _PRIME % self.cells

    def _new(self, stream: torch.Tensor, tail: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, n] of the grams that end in `stream`, and the tail after it."""
        symbols = torch.cat((tail, stream), dim=1)
        keys = []
        for k in GRAMS:
            reach = min(tail.shape[1], k - 1)
            keys.append(VOCABULARY**k + grams(symbols[:, tail.shape[1] - reach :], k))
        return torch.cat(keys, dim=1), tail_of(symbols, _TAIL)

    @staticmethod
    def _keys(candidates: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Keys [B, Q]: a candidate's base-16 number behind a leading 1, which tells the lengths apart."""
        keys = torch.ones_like(lengths)
        for place in range(MAX_CANDIDATE):
            keys = torch.where(place < lengths, keys * VOCABULARY + candidates[..., place], keys)
        return keys


class BloomFilter(_Hashing):
    """A Bloom filter over all 3- to 6-grams.

    Args:
        size: bytes of the filter.
        design: stream length whose distinct grams the number of hashes is best for (the longest length that
            `preset=cpu` trains on); a memory does not know how long its stream will be.
    """

    def __init__(self, name: str, size: int, design: int = 128):
        best = math.log(2) * 8 * size / (len(GRAMS) * design)
        super().__init__(name, cells=8 * size, hashes=min(max(round(best), 1), 8))

    def write(self, stream: torch.Tensor, state: Hashed | None = None) -> Hashed:
        if state is None:
            cells = torch.zeros((stream.shape[0], self.cells), dtype=torch.bool, device=stream.device)
            state = Hashed(cells, stream[:, :0], 0)
        keys, tail = self._new(stream, state.tail)
        cells = state.cells.scatter(1, self._places(keys).flatten(1), True)
        return Hashed(cells, tail, state.insertions + keys.shape[1])

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Hashed) -> torch.Tensor:
        places = self._places(self._keys(candidates, lengths)).sort(-1).values  # [B, Q, k]
        distinct = 1 + (places.diff(dim=-1) != 0).sum(-1)
        fill = state.cells.double().mean(-1, keepdim=True)
        return torch.where(look_up(state.cells, places).all(-1), 1 / (1 + fill**distinct), 0.0).float()

    def state_bits(self, length: int) -> int:
        return self.cells + _TAIL * SYMBOL_BITS


class CountTable(_Hashing):
    """A hash table of counters over all 3- to 6-grams.

    Args:
        size: bytes of the table.
    """

    def __init__(self, name: str, size: int):
        super().__init__(name, cells=8 * size // COUNTER_BITS, hashes=1)
        self.most = 2**COUNTER_BITS - 1

    def write(self, stream: torch.Tensor, state: Hashed | None = None) -> Hashed:
        if state is None:
            state = Hashed(stream.new_zeros((stream.shape[0], self.cells)), stream[:, :0], 0)
        keys, tail = self._new(stream, state.tail)
        places = self._places(keys).squeeze(-1)
        cells = state.cells.scatter_add(1, places, torch.ones_like(places)).clamp(max=self.most)
        return Hashed(cells, tail, state.insertions + keys.shape[1])

    def read(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Hashed) -> torch.Tensor:
        count = look_up(state.cells, self._places(self._keys(candidates, lengths)).squeeze(-1)).double()
        full = state.cells == self.most
        below = state.cells.masked_fill(full, 0).sum(-1, keepdim=True)
        mean_of_full = (state.insertions - below) / full.sum(-1, keepdim=True).clamp(min=1)
        count = torch.where(count == self.most, mean_of_full, count)
        load = state.insertions / self.cells
        return (count / (count + load)).float() if load else torch.full_like(count, 0.5).float()

    def state_bits(self, length: int) -> int:
        return COUNTER_BITS * self.cells + _TAIL * SYMBOL_BITS + TALLY_BITS


_KINDS = {"recent": RecentStore, "bloom": BloomFilter, "counts": CountTable}


def memory(name: str) -> RecentStore | BloomFilter | CountTable:
    """The bounded memory of that name: `recent`, `bloom` or `counts`, then its bytes.

    Raises:
        ValueError: another name.
    """
    for kind, maker in _KINDS.items():
        size = name.removeprefix(kind)
        if size != name and size.isdigit() and int(size) > 0:
            return maker(name, int(size))
    raise ValueError(f"no bounded memory is called {name!r}: write {', '.join(_KINDS)} and its bytes, e.g. bloom256")
