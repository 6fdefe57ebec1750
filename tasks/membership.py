"""The membership task: read a stream of symbols, then say of short candidates whether they occurred in it.

    stream      8 1 4 6 2 1 1 2 13 1 2 9 ...        x[:t] has been seen when a query is asked at time t
    candidate   4 6 2       -> yes                  3-6 symbols, copied from a uniform position of x[:t]
    candidate   4 2 6       -> no                   verified absent from x[:t] (it may occur later)

Half of the queries of every stream and time are positives. Each positive is paired with a negative of the same length
(uniform on 3-6), and places in the batch are shuffled, so neither length nor place carries the label. tasks/queries.py
says which negatives there are; the paper's are `uniform`. Streams are i.i.d. uniform (band `max`, 4 bits per symbol) or
from low-entropy sources (band `low`, tasks/entropy.py).

Everything is a pure function of (config, seed, split, band, length, index, time, query): an item is the same whatever
its batch, worker or resume point, and the splits never share a stream even under one seed. Streams of one index but
different length or band are unrelated. Positives, lengths and places do not depend on the query set: only negatives
differ, and recall only by the pairs that have no negative of the set's kind (`Batch.scored`).

    batch = sample(MembershipConfig(), seed=0, indices=range(16), length=128, queries=32, split="test")

To time it:

    python -m timeit -p -s "import tasks; c = tasks.MembershipConfig()" \\
        "tasks.sample(c, 0, range(16), 128, 64, split='train', times=(32, 64, 96, 128))"

Source: ECCBench, section 4.1 and appendix A.1. Letters: B streams, L symbols, T times, Q queries, P = Q / 2T pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tasks.batch import BANDS, KINDS, MAX_CANDIDATE, QUERY_SETS, SPLITS, VOCABULARY, Batch, check_name
from tasks.entropy import EntropyConfig, low_streams
from tasks.queries import NegativeSampler, Slots
from tasks.rng import below, fold, words
from tasks.windows import WindowIndex, decode

VERSION = 1  # raise it when the same arguments would give other data
_STREAM, _PAIR, _PLACE = range(3)  # what a key is for


@dataclass(frozen=True)
class MembershipConfig:
    """What streams and candidates look like."""

    vocabulary: int = VOCABULARY
    """Symbols: 2, 4, 8 or 16."""
    candidate_lengths: tuple[int, ...] = (3, 4, 5, 6)
    """Candidate lengths, equally likely; each within 2..6."""
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    """Which streams make the low band."""
    version: int = VERSION
    """Version of the generated data; this code makes one only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidate_lengths", tuple(self.candidate_lengths))
        lengths = self.candidate_lengths
        if self.vocabulary not in (2, 4, 8, 16):
            raise ValueError(f"vocabulary={self.vocabulary} must be 2, 4, 8 or 16")
        if not lengths or sorted(set(lengths)) != list(lengths) or lengths[0] < 2 or lengths[-1] > MAX_CANDIDATE:
            raise ValueError(f"candidate_lengths={lengths} must be increasing and within 2..{MAX_CANDIDATE}")
        if self.version != VERSION:
            raise ValueError(f"data version {self.version} was asked for, but this code makes version {VERSION}")


def streams(
    config: MembershipConfig, seed: int, indices: Sequence[int], length: int, *, split: str, band: str = "max"
) -> np.ndarray:
    """Streams of the given indices: uint8 [B, L].

    For the low band's rules and rates, or for many processes, call `tasks.entropy.low_streams`.
    """
    check_name("split", split, SPLITS)
    check_name("band", band, BANDS)
    if length < 1 or not len(indices):
        raise ValueError(f"length={length} must be at least 1, and indices must name at least one stream")
    if band == "low":
        made = low_streams(config.entropy, seed, indices, length, split=split, vocabulary=config.vocabulary)
        return np.stack([stream.symbols for stream in made])
    key = fold(config.version, seed, SPLITS.index(split), BANDS.index(band), length, _STREAM, np.asarray(indices))
    word = words(key, -(-length // 16))
    symbols = word[..., None] >> 4 * np.arange(16, dtype=np.uint64) & np.uint64(config.vocabulary - 1)
    return symbols.astype(np.uint8).reshape(len(word), -1)[:, :length]


def sample(
    config: MembershipConfig,
    seed: int,
    indices: Sequence[int],
    length: int,
    queries: int,
    *,
    split: str,
    times: Sequence[int] | None = None,
    query_set: str = "uniform",
    band: str = "max",
) -> Batch:
    """Streams and their queries; see `ask` for the arguments and what is refused."""
    x = streams(config, seed, indices, length, split=split, band=band)
    return ask(config, seed, x, indices, queries, split=split, times=times, query_set=query_set, band=band)


def ask(
    config: MembershipConfig,
    seed: int,
    x: np.ndarray,
    indices: Sequence[int],
    queries: int,
    *,
    split: str,
    times: Sequence[int] | None = None,
    query_set: str = "uniform",
    band: str = "max",
) -> Batch:
    """Queries about streams that are already at hand.

    Args:
        x: [B, L] symbols.
        indices: B stream indices; they choose the queries.
        queries: Q, over all times together.
        times: query times, strictly increasing, each at least the longest candidate; None asks at the end only.

    Raises:
        ValueError: for a length or time too short for the candidates, queries that cannot be split into equal halves
            at every time, unknown names or symbols, or streams that hold every window there is.
    """
    check_name("split", split, SPLITS)
    check_name("band", band, BANDS)
    check_name("query_set", query_set, QUERY_SETS)
    rows, length = x.shape
    times = (length,) if times is None else tuple(int(t) for t in times)
    _check(config, rows, length, indices, queries, times)
    if x.min() < 0 or x.max() >= config.vocabulary:
        raise ValueError(f"streams hold symbols {x.min()}..{x.max()}, outside 0..{config.vocabulary - 1}")
    pairs = queries // (2 * len(times))

    key_B = fold(config.version, seed, SPLITS.index(split), BANDS.index(band), length, np.asarray(indices))
    key_BT = fold(key_B[:, None], np.array(times))
    key_BTP = fold(_PAIR, key_BT[..., None], np.arange(pairs))
    row = np.repeat(np.arange(rows), len(times) * pairs)
    time = np.tile(np.repeat(times, pairs), rows)

    word = words(key_BTP.ravel(), 2)
    n = np.array(config.candidate_lengths)[below(word[:, 0], len(config.candidate_lengths))]
    end = n + below(word[:, 1], time - n + 1)
    index = WindowIndex(x, config.candidate_lengths)
    positive = index.window(row, end, n)
    age = time - index.latest(row, positive, n, time)
    slots = Slots(row, time, n, end, key_BTP.ravel())
    negative, kind = NegativeSampler(x, index, config.vocabulary).draw(query_set, slots)

    # Positives then negatives of each time, shuffled: [B, T, 2P] -> [B, Q].
    place = np.argsort(words(fold(_PLACE, key_BT), 2 * pairs), axis=-1, kind="stable")

    def shuffled(of_positives: np.ndarray, of_negatives: np.ndarray) -> np.ndarray:
        both = [np.broadcast_to(part, row.shape).reshape(key_BTP.shape) for part in (of_positives, of_negatives)]
        return np.take_along_axis(np.concatenate(both, axis=-1), place, axis=-1).reshape(rows, queries)

    codes, lengths = shuffled(positive, negative), shuffled(n, n)
    pair = np.tile(np.arange(len(times) * pairs), rows)
    return Batch(
        stream=torch.from_numpy(x.astype(np.int64)),
        candidates=torch.from_numpy(decode(codes, lengths)),
        lengths=torch.from_numpy(lengths),
        labels=torch.from_numpy(shuffled(np.array(1), np.array(0))),
        age=torch.from_numpy(shuffled(age, np.array(-1))),
        kinds=torch.from_numpy(shuffled(np.array(KINDS.index("positive")), kind)),
        pair=torch.from_numpy(shuffled(pair, pair)),
        index=torch.from_numpy(np.array(indices, np.int64)),
        times=times,
        query_set=query_set,
        band=band,
        split=split,
    )


def _check(
    config: MembershipConfig, rows: int, length: int, indices: Sequence[int], queries: int, times: tuple[int, ...]
) -> None:
    longest = config.candidate_lengths[-1]
    if len(indices) != rows or not rows:
        raise ValueError(f"{rows} streams but {len(indices)} indices; there must be one index per stream, and a stream")
    if not times or list(times) != sorted(set(times)) or times[-1] > length:
        raise ValueError(f"query times {times} must be strictly increasing and within the stream's length {length}")
    if times[0] < longest:
        raise ValueError(
            f"a candidate of {longest} symbols is longer than the {times[0]} symbols seen when it is asked about; "
            f"use streams and query times of at least {longest}, or shorter candidate_lengths"
        )
    if queries < 1 or queries % (2 * len(times)):
        raise ValueError(
            f"{queries} queries cannot be split into equal numbers of positives and negatives at {len(times)} query "
            f"times; use a multiple of {2 * len(times)}"
        )
