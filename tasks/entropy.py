"""Low-entropy streams: random variable-order n-gram sources, kept when the realised stream is regular enough.

A *rule set* (paper, A.1) maps contexts of one to eight symbols to up to four next-symbol probabilities; the mass left
over is spread evenly over the other symbols. At each position the longest context that ends the stream so far decides;
where none does, the next symbol is uniform over the vocabulary. Rule sets are drawn afresh until the whole stream's
Lempel-Ziv rate (tasks/lempel_ziv.py) is acceptable, and the first acceptable stream is kept, with its rules, so that
every stream can be explained:

    s = low_stream(EntropyConfig(), seed=0, index=3, length=64, split="test")
    s.symbols, s.rate, s.tries, s.rules.contexts(s.symbols)

The paper does not say how rule sets are drawn. Two samplers fit its description:

`independent`  8-64 contexts of i.i.d. symbols: the literal reading. Most contexts never come up, and few streams pass.
`closed`       2-6 active symbols that lead to each other, plus longer contexts cut from a trace of these rules, so that
               every rule has a chance to apply (default: ten times fewer tries).

and two ways to accept:

`band`  the rate lies within [low, high].
`aim`   each stream first draws its own target rate, normal and truncated to the band, and the rate must also lie
        within `tolerance` of it (default: with `closed` it gives the paper's mean .67, standard deviation .16 and
        range [.33, .99], pooled over lengths).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import NormalDist

import numpy as np

from tasks.batch import SPLITS, VOCABULARY, check_name
from tasks.lempel_ziv import rate
from tasks.rng import fold, unit, words

MAX_CONTEXT = 8
SAMPLERS = ("closed", "independent")
ACCEPTANCES = ("aim", "band")
_LEFTOVERS = (0.0, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class EntropyConfig:
    """Which low-entropy streams to make; the defaults reproduce the paper's pooled rates."""

    sampler: str = "closed"
    """How rule sets are drawn: "closed" or "independent"."""
    acceptance: str = "aim"
    """When a stream is kept: "aim" or "band"."""
    low: float = 0.33
    """Lowest rate of the band, bits per symbol (paper A.1)."""
    high: float = 0.99
    """Highest rate of the band, bits per symbol (paper A.1)."""
    mean: float = 0.67
    """Mean of the target rate, for "aim" (paper A.1)."""
    std: float = 0.16
    """Standard deviation of the target rate, for "aim" (paper A.1)."""
    tolerance: float = 0.08
    """How far the rate may lie from its target, for "aim"."""
    max_tries: int = 10_000
    """Rule sets drawn for one stream before giving up."""

    def __post_init__(self) -> None:
        check_name("sampler", self.sampler, SAMPLERS)
        check_name("acceptance", self.acceptance, ACCEPTANCES)
        if not 0 < self.low < self.high:
            raise ValueError(f"the band [low, high] = [{self.low}, {self.high}] must satisfy 0 < low < high")
        if self.std <= 0 or self.tolerance <= 0:
            raise ValueError(f"std={self.std} and tolerance={self.tolerance} must be positive")
        if self.max_tries < 1:
            raise ValueError(f"max_tries={self.max_tries} must be at least 1")


@dataclass(frozen=True)
class RuleSet:
    """A variable-order n-gram source over symbols 0 .. vocabulary - 1."""

    rules: dict[tuple[int, ...], dict[int, float]]
    """Context (1-8 symbols, oldest first) -> {next symbol: probability}; the rest is even over the other symbols."""
    vocabulary: int = VOCABULARY

    def context(self, history: Sequence[int]) -> tuple[int, ...]:
        """The longest context that `history` ends with; () where none does."""
        recent = tuple(history[-MAX_CONTEXT:])
        return next((recent[i:] for i in range(len(recent)) if recent[i:] in self.rules), ())

    def contexts(self, symbols: Sequence[int]) -> list[tuple[int, ...]]:
        """For each position of a stream, the context that decided its symbol."""
        symbols = [int(s) for s in symbols]
        return [self.context(symbols[max(0, i - MAX_CONTEXT) : i]) for i in range(len(symbols))]

    def distribution(self, context: tuple[int, ...]) -> dict[int, float]:
        """The probability of every next symbol after a context of this set, named symbols first."""
        named = self.rules.get(context, {})
        others = [s for s in range(self.vocabulary) if s not in named]
        share = max(0.0, 1 - sum(named.values())) / max(1, len(others))
        return named | dict.fromkeys(others, share)

    def generate(self, length: int, draws: Iterator[float]) -> bytes:
        """A stream of `length` symbols from uniform draws on [0, 1)."""
        # The part of the past that can still matter is the longest suffix that begins some context. There are few of
        # these, so each becomes a node with its cumulative probabilities and, as they are met, its successors.
        beginnings = {context[:i] for context in self.rules for i in range(len(context) + 1)} | {()}
        nodes: dict[tuple[int, ...], tuple] = {}

        def node(history: tuple[int, ...]) -> tuple:
            while history not in beginnings:
                history = history[1:]
            if history not in nodes:
                table = {s: p for s, p in self.distribution(self.context(history)).items() if p > 0}
                cumulative = np.cumsum(list(table.values())).tolist()
                cumulative[-1] = 1.0  # rounding must not leave a gap above the last entry
                nodes[history] = (cumulative, list(table), [None] * len(table), history)
            return nodes[history]

        out = bytearray()
        here = node(())
        for draw in islice(draws, length):
            cumulative, symbols, successors, history = here
            which = bisect_right(cumulative, draw)
            out.append(symbols[which])
            here = successors[which]
            if here is None:
                here = successors[which] = node((*history, symbols[which]))
        return bytes(out)


@dataclass(frozen=True)
class LowStream:
    """A low-entropy stream and where it came from."""

    symbols: np.ndarray
    """uint8 [L]."""
    rules: RuleSet
    rate: float
    """Realised Lempel-Ziv rate, bits per symbol."""
    tries: int
    """Rule sets drawn until this stream was acceptable."""
    target: float | None
    """The rate aimed at; None for acceptance by the band alone."""


def low_stream(
    config: EntropyConfig, seed: int, index: int, length: int, *, split: str, vocabulary: int = VOCABULARY
) -> LowStream:
    """Stream `index` of its split: a pure function of the arguments.

    Raises:
        ValueError: for an unknown split, or when `max_tries` rule sets gave no acceptable stream; names the length
            and the band.
    """
    check_name("split", split, SPLITS)
    key = fold(seed, SPLITS.index(split), index, length)
    target = _target(config, float(unit(fold(key, 0)))) if config.acceptance == "aim" else None
    low, high = config.low, config.high
    if target is not None:
        low, high = max(low, target - config.tolerance), min(high, target + config.tolerance)
    sampler = _closed_rules if config.sampler == "closed" else _independent_rules
    for attempt in range(1, config.max_tries + 1):
        draws = _uniform_draws(fold(key, attempt))
        rules = RuleSet(sampler(draws, vocabulary), vocabulary)
        symbols = rules.generate(length, draws)
        found = rate(symbols)
        if low <= found <= high:
            return LowStream(np.frombuffer(symbols, np.uint8), rules, found, attempt, target)
    raise ValueError(
        f"no stream of L={length} with a Lempel-Ziv rate in [{low:.2f}, {high:.2f}] (band [{config.low}, "
        f"{config.high}], acceptance={config.acceptance}, sampler={config.sampler}) among {config.max_tries} rule "
        f"sets; widen the band or the tolerance, take longer streams, or raise max_tries"
    )


def low_streams(
    config: EntropyConfig,
    seed: int,
    indices: Sequence[int],
    length: int,
    *,
    split: str,
    vocabulary: int = VOCABULARY,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[LowStream]:
    """Many low-entropy streams, in the order of `indices`, the same for any number of processes.

    Args:
        processes: worker processes; 1 works in this one.
        progress: called as progress(done, total) after each stream.
    """
    make = partial(_make, config, seed, length, split, vocabulary)
    indices = [int(i) for i in indices]
    made: list[LowStream] = []
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            for stream in pool.map(make, indices, chunksize=max(1, len(indices) // (8 * processes))):
                _collect(made, stream, len(indices), progress)
    else:
        for stream in map(make, indices):
            _collect(made, stream, len(indices), progress)
    return made


def _make(config: EntropyConfig, seed: int, length: int, split: str, vocabulary: int, index: int) -> LowStream:
    return low_stream(config, seed, index, length, split=split, vocabulary=vocabulary)


def _collect(made: list[LowStream], stream: LowStream, total: int, progress: Callable[[int, int], None] | None) -> None:
    made.append(stream)
    if progress is not None:
        progress(len(made), total)


def _target(config: EntropyConfig, u: float) -> float:
    """The u-quantile of a normal distribution truncated to the band."""
    normal = NormalDist(config.mean, config.std)
    below, above = normal.cdf(config.low), normal.cdf(config.high)
    return normal.inv_cdf(below + u * (above - below))


def _uniform_draws(key: np.ndarray, block: int = 512) -> Iterator[float]:
    start = 0
    while True:
        yield from unit(words(key, block, start)).tolist()
        start += block


def _pick(draws: Iterator[float], options: Sequence) -> object:
    return options[int(next(draws) * len(options))]


def _pick_several(draws: Iterator[float], options: Sequence[int], count: int) -> list[int]:
    """`count` different options, in random order (all of them if there are fewer)."""
    options = list(options)
    for i in range(min(count, len(options))):
        j = i + int(next(draws) * (len(options) - i))
        options[i], options[j] = options[j], options[i]
    return options[:count]


def _shares(draws: Iterator[float], symbols: list[int], top: float, leftover: float) -> dict[int, float]:
    """`top` for the first symbol; what top and leftover leave is split at random over the rest."""
    parts = [next(draws) for _ in symbols[1:]]
    rest = max(0.0, 1 - top - leftover)
    return {symbols[0]: top} | {s: rest * part / sum(parts) for s, part in zip(symbols[1:], parts, strict=True)}


def _independent_rules(draws: Iterator[float], vocabulary: int) -> dict[tuple[int, ...], dict[int, float]]:
    everything = range(vocabulary)
    rules = {}
    for _ in range(_pick(draws, (8, 16, 32, 64))):
        context = tuple(_pick(draws, everything) for _ in range(1 + int(next(draws) * MAX_CONTEXT)))
        following = _pick_several(draws, everything, 1 + int(next(draws) * 4))
        rules[context] = _shares(draws, following, 0.6 + 0.39 * next(draws), _pick(draws, _LEFTOVERS))
    return rules


def _closed_rules(draws: Iterator[float], vocabulary: int) -> dict[tuple[int, ...], dict[int, float]]:
    order = _pick_several(draws, range(vocabulary), vocabulary)
    size = min(vocabulary, 2 + int(next(draws) * 5))
    active, strays = order[:size], order[size : size + int(next(draws) * 5)]
    peak = 1 - 10 ** (-2.5 + 2 * next(draws))

    def rule() -> dict[int, float]:
        following = _pick_several(draws, active, 1 + int(next(draws) * 4))
        return _shares(draws, following, peak, 0.0)

    rules = {(symbol,): rule() for symbol in (*active, *strays)}
    trace = tuple(RuleSet(rules, vocabulary).generate(64, draws))
    for _ in range(int(next(draws) * 17)):
        n = 2 + int(next(draws) * (MAX_CONTEXT - 1))
        start = int(next(draws) * (len(trace) - n + 1))
        rules[trace[start : start + n]] = rule()
    return rules
