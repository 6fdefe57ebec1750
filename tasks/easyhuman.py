"""EasyHuman: a short pattern repeats, one or two breaks occur, and the questions are about the breaks.

    stream      3 9 4 3 9 4 3 7 7 1 9 4 3 9 4 ...      motif 3 9 4, deviation 7 7 1 (it overwrites, nothing shifts)
    question    7 7 1   -> yes                         the deviation
    question    7 2 1   -> no                          the deviation with one symbol changed

Even stream indices are `repeat`: a uniform motif of 3-5 symbols, and deviations as long as the motif. Odd ones are
`count`: the motif counts up or down by one within 0..15 (2 3 4 5, or 13 12 11), and each deviation has a length of its
own, 3-5. Deviations are uniform strings, drawn again until each occurs nowhere in the unbroken stream and exactly once
in the broken one. They lie anywhere, without overlap.

The paper asks about "the deviation and corruptions of it". A positive here is a whole deviation and nothing else:
a window that reached into the motif would show its regularity, and a change there would give the negative away to
someone who never saw the stream. Corruptions are

`symbol`   one symbol replaced by any other (default). Often the new one occurs nowhere in the stream, so knowing which
           symbols occurred is right 77 % of the time (at L = 256 and 1024 alike; which pairs occurred: 98 %);
`order`    the same symbols in another order: which symbols occurred is right exactly half of the time.

Each is verified absent, and is as uniform a string as the deviation itself. A deviation of one repeated symbol has no
other order: there a `symbol` negative stands in, and the pair is not `scored`.

    config = EasyHumanConfig()
    stream = easy_stream(config, seed=0, index=3, length=256, split="test")             # -> EasyStream
    asked = easy_questions(config, 0, 3, stream, queries=2, split="test")               # -> list[Question]
    stream.symbols, stream.rate, stream.rules                                           # StreamRecord's fields
    [(q.candidate, q.label, q.age, q.meta) for q in asked]                              # QueryRecord's fields

A stream holds one or two deviations, so more than one or two pairs (`queries` / 2) ask about the same deviation again,
beside other corruptions: to ask more, take more streams. For video, `tasks.video.assign_belts` and
`tasks.video.with_belts` put the stream and the same questions on belts.

Everything is a pure function of (config, seed, split, length, index). Source: ECCBench, appendix A.2; how many
questions it asks per stream and what its corruptions are is not said there.

Letters: L symbols per stream, m symbols per motif, n symbols per deviation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tasks.batch import SPLITS, VOCABULARY, check_name
from tasks.lempel_ziv import rate
from tasks.question import Question, occurrences
from tasks.rng import below, fold, words

VERSION = 1  # raise it when the same arguments would give other data
STRUCTURES = ("repeat", "count")
CORRUPTIONS = ("symbol", "order")
SHORTEST = 20  # two deviations of five and as much of the pattern

_TASK = 0xEA5  # keeps keys apart from those of other tasks
_SHAPE, _DEVIATIONS, _QUESTIONS = range(3)  # what a key is for


@dataclass(frozen=True)
class EasyHumanConfig:
    """What patterns and deviations look like; the defaults are the paper's."""

    lengths: tuple[int, ...] = (3, 4, 5)
    """Lengths of motifs and deviations, equally likely; each within 3..5."""
    deviations: tuple[int, ...] = (1, 2)
    """How many deviations a stream has, equally likely."""
    version: int = VERSION
    """Version of the generated data; this code makes one only."""

    def __post_init__(self) -> None:
        for name, low, high in (("lengths", 3, 5), ("deviations", 1, 2)):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if not values or list(values) != sorted(set(values)) or values[0] < low or values[-1] > high:
                raise ValueError(f"{name}={values} must be increasing and within {low}..{high}")
        if self.version != VERSION:
            raise ValueError(f"data version {self.version} was asked for, but this code makes version {VERSION}")


@dataclass(frozen=True, eq=False)
class EasyStream:
    """A regular stream and the places where it is not."""

    symbols: np.ndarray
    """uint8 [L]."""
    structure: str
    """"repeat" or "count"."""
    motif: np.ndarray
    """uint8 [m]; without deviations, symbols[i] = motif[i % m]."""
    starts: tuple[int, ...]
    """Where each deviation begins, increasing."""
    deviations: tuple[np.ndarray, ...]
    """The deviations, uint8 [n] each."""

    @property
    def rate(self) -> float:
        """Lempel-Ziv rate of the stream, bits per symbol."""
        return rate(self.symbols)

    @property
    def rules(self) -> dict[str, object]:
        """Everything the stream was made from, in JSON types."""
        return {
            "structure": self.structure,
            "motif": self.motif.tolist(),
            "deviations": [
                {"start": start, "symbols": deviation.tolist()}
                for start, deviation in zip(self.starts, self.deviations, strict=True)
            ],
        }


def easy_stream(config: EasyHumanConfig, seed: int, index: int, length: int, *, split: str) -> EasyStream:
    """Stream `index` of its split.

    Raises:
        ValueError: for an unknown split, or a length below SHORTEST.
    """
    key = _key(config, seed, index, length, split)
    if length < SHORTEST:
        raise ValueError(f"EasyHuman streams need at least {SHORTEST} symbols to show a pattern, got length={length}")
    structure = STRUCTURES[index % 2]
    word = words(fold(_SHAPE, key), 16)
    sizes, counts = np.array(config.lengths), config.deviations
    m = int(sizes[below(word[0], len(sizes))])
    motif = _uniform_motif(word[8:], m) if structure == "repeat" else _counting_motif(word[8:], m)
    count = counts[int(below(word[1], len(counts)))]
    lengths = [m] * count if structure == "repeat" else sizes[below(word[2 : 2 + count], len(sizes))].tolist()

    base = np.resize(motif, length)
    for attempt in itertools.count():  # ends: the pattern's five windows cannot be all 4096 strings of three
        word = words(fold(_DEVIATIONS, key, attempt), 2 + sum(lengths))
        starts = _places(word[:2], lengths, length)
        deviations = np.split(below(word[2:], VOCABULARY).astype(np.uint8), np.cumsum(lengths)[:-1])
        symbols = base.copy()
        for start, deviation in zip(starts, deviations, strict=True):
            symbols[start : start + len(deviation)] = deviation
        if all(not occurrences(base, d).size and occurrences(symbols, d).size == 1 for d in deviations):
            return EasyStream(symbols, structure, motif, starts, tuple(deviations))


def easy_questions(
    config: EasyHumanConfig,
    seed: int,
    index: int,
    stream: EasyStream,
    queries: int,
    *,
    split: str,
    query_set: str = "symbol",
) -> list[Question]:
    """Questions about a stream's deviations, positives and negatives in equal numbers and shuffled.

    Args:
        seed, index, split: of the stream; they choose the questions. Positives and places do not depend on `query_set`.
        queries: how many, even.
        query_set: how negatives are made, one of CORRUPTIONS.

    Raises:
        ValueError: for an unknown split or query set, or a number of queries that has no equal halves.
    """
    check_name("query_set", query_set, CORRUPTIONS)
    if queries < 2 or queries % 2:
        raise ValueError(f"{queries} queries have no equal numbers of positives and negatives; use an even number")
    length = len(stream.symbols)
    word = words(fold(_QUESTIONS, _key(config, seed, index, length, split)), 1 + queries)
    first = int(below(word[0], len(stream.deviations)))
    choices = {which: _corruptions(stream, which, query_set, word[0]) for which in range(len(stream.deviations))}
    asked = []
    for pair in range(queries // 2):
        which = (first + pair) % len(stream.deviations)
        deviation = stream.deviations[which]
        kind, corrupted = choices[which]
        common = {"pair": pair, "scored": kind == query_set, "detail": which}
        negative = corrupted[pair // len(stream.deviations) % len(corrupted)]
        age = length - stream.starts[which] - len(deviation)
        asked += [Question(deviation, 1, age, "positive", **common), Question(negative, 0, -1, kind, **common)]
    return [asked[i] for i in np.argsort(word[1:], kind="stable")]


def _key(config: EasyHumanConfig, seed: int, index: int, length: int, split: str) -> np.ndarray:
    check_name("split", split, SPLITS)
    return fold(_TASK, config.version, seed, SPLITS.index(split), length, index)


def _uniform_motif(word: np.ndarray, m: int) -> np.ndarray:
    return below(word[:m], VOCABULARY).astype(np.uint8)


def _counting_motif(word: np.ndarray, m: int) -> np.ndarray:
    up = below(word[0], VOCABULARY - m + 1) + np.arange(m, dtype=np.uint8)
    return (up if below(word[1], 2) else up[::-1]).astype(np.uint8)


def _places(word: np.ndarray, lengths: list[int], length: int) -> tuple[int, ...]:
    """Starts of one or two windows in a stream, uniform over all ways to lie in this order without overlap."""
    free = length - sum(lengths)
    if len(lengths) == 1:
        return (int(below(word[0], free + 1)),)
    # Two gaps out of free + 2 "stars and bars" places: distinct, sorted.
    one, other = int(below(word[0], free + 2)), int(below(word[1], free + 1))
    one, other = sorted((one, other + (other >= one)))
    return (one, other - 1 + lengths[0])


def _corruptions(stream: EasyStream, which: int, query_set: str, key: np.ndarray) -> tuple[str, list[np.ndarray]]:
    """Every corruption of a deviation that is absent from the stream, in random order, and of which kind they are."""
    deviation = stream.deviations[which]
    n = len(deviation)
    if query_set == "order":
        rows = np.unique(np.array(list(itertools.permutations(deviation.tolist())), np.uint8), axis=0)
    else:
        step = np.arange(1, VOCABULARY)
        rows = np.tile(deviation, (n, VOCABULARY - 1, 1))
        for place in range(n):
            rows[place, :, place] = (deviation[place] + step) % VOCABULARY
        rows = rows.reshape(-1, n)
    windows = np.lib.stride_tricks.sliding_window_view(stream.symbols, n)
    seen = {w.tobytes() for w in np.unique(windows, axis=0)}
    absent = [row for row in rows if row.tobytes() not in seen]
    if not absent:  # only an order can be missing: 45 or more changed strings outnumber the windows of such a stream
        return _corruptions(stream, which, "symbol", key)
    order = np.argsort(words(fold(key, which, CORRUPTIONS.index(query_set)), len(absent)), kind="stable")
    return query_set, [absent[i] for i in order]
