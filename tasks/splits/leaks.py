"""Can an answer be guessed without the stream? Tests for any split, ours or a user's.

Exact checks (facts.py): every yes occurs, every no is absent, ages and kinds are as stated; and no uniform stream of
the split begins like a training stream. One counterexample fails.

Statistical tests, each with a p-value that is valid whatever made the split:

    balance     as many yes as no: two-sided binomial test
    look        candidate length, symbols, belts and place in the list are distributed alike in both classes. For each
                feature the difference d of the class means is formed within every stream (queries of one stream are
                not independent, streams are). On regular streams d is skewed (a symbol is rare in most, frequent in
                some), which misleads t-tests; Bernstein's inequality holds for any distribution with mean zero:
                P(|sum d| >= t) <= 2 exp(-t**2 / (2 V + 2 b t / 3)). V is the sum of d**2, or its mean over features of
                the kind (lengths, symbols ...) where that is larger; b is the largest |d| of the kind; and the bound is
                multiplied by the number of features. Streams of a band are taken together over lengths; groups of
                fewer than 100 are not tested
    position    positives lie anywhere: one occurrence of each is drawn, its rank among all places where such a window
                could have been taken is uniform, and a Kolmogorov-Smirnov test looks at all of them

The p-values of a split are judged together: it fails where one is below `alpha` / (number of tests), so a sound split
fails with probability at most `alpha` (0.001: one seed in a thousand).

What these tests do not see is measured instead and written to each manifest: on the low band uniform negatives seldom
repeat a symbol and true windows often do. Symbols are equally frequent in both classes, and a candidate's look gives
its label away all the same (reference solver `repeats`); that is the paper's construction. `order` negatives have the
symbols of their positive and give nothing away; `near` ones give away little (on long low-entropy streams up to 60 %).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from tasks.batch import MAX_CANDIDATE, VOCABULARY
from tasks.membership import MembershipConfig, streams
from tasks.splits.facts import wrong_facts
from tasks.splits.records import Cell, QueryRecord, Split, StreamRecord
from tasks.splits.reference import joint

ALPHA = 1e-3
FEWEST = 100  # streams in a group whose look is tested
_PREFIX = 16  # symbols by which streams are told apart: two uniform ones agree once in 1.8e19
_POSITIVES = 5000  # looked at per cell and query set for their positions


@dataclass(frozen=True)
class Test:
    """One statistical test."""

    where: str
    name: str
    p: float
    about: str


@dataclass
class Report:
    """What was found in a split."""

    alpha: float = ALPHA
    wrong: list[str] = field(default_factory=list)
    """Exact checks that failed, one line each."""
    tests: list[Test] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many streams, queries and training streams were looked at."""

    @property
    def threshold(self) -> float:
        """A p-value below this fails."""
        return self.alpha / max(1, len(self.tests))

    @property
    def leaks(self) -> list[Test]:
        return [test for test in self.tests if test.p < self.threshold]

    @property
    def sound(self) -> bool:
        return not self.wrong and not self.leaks


def check(
    split: Split,
    *,
    alpha: float = ALPHA,
    training_seeds: Sequence[int] = (0, 1, 2, 3),
    training_streams: int = 20_000,
    report: Callable[[str], None] | None = None,
) -> Report:
    """Every check and test of a split.

    Args:
        alpha: probability with which a sound split may fail.
        training_seeds: seeds of training whose streams must not be in the split; the split's own is added.
        training_streams: how many of each seed and length to look at.
        report: called with each cell's key before its turn.
    """
    found = Report(alpha)
    groups: dict[tuple, list[np.ndarray]] = defaultdict(list)
    for cell in split.cells:
        if report is not None:
            report(cell.key)
        records, queries = cell.streams(), cell.queries()
        found.checked["streams"] += len(records)
        found.checked["queries"] += len(queries)
        found.wrong += [f"{cell.key}: {what}" for what in wrong_facts(cell, records, queries)]
        for query_set in cell.query_sets:
            asked = [query for query in queries if query.query_set == query_set]
            where = f"{cell.key} {query_set}"
            found.tests.append(balance(asked, where))
            found.tests.append(position(cell, records, asked, where))
            differences = class_differences(asked)
            groups[cell.band, cell.medium, cell.variant, query_set].append(differences)
            if len(differences) >= FEWEST:
                found.tests.append(look(differences, where))
        if cell.band == "max" and cell.length >= _PREFIX:
            found.wrong += _repeated(cell, records, {*training_seeds, split.seed}, training_streams, found)
    for group, parts in groups.items():
        differences = np.concatenate(parts)
        if len(differences) >= FEWEST and len(parts) > 1:
            found.tests.append(look(differences, " ".join(str(part) for part in group if part)))
    return found


def balance(queries: Sequence[QueryRecord], where: str = "") -> Test:
    """As many yes as no."""
    yes = sum(query.label for query in queries)
    p = stats.binomtest(yes, len(queries)).pvalue if queries else 1.0
    return Test(where, "balance", float(p), f"{yes} yes of {len(queries)}")


def class_differences(queries: Iterable[QueryRecord]) -> np.ndarray:
    """Mean feature of a stream's positives minus that of its negatives: [streams, features].

    Features: shares of each candidate length (by symbols), of each symbol and of each belt, and the place in the list.
    Streams without both classes are left out.
    """
    by_stream: dict[str, tuple[list, list]] = defaultdict(lambda: ([], []))
    for query in queries:
        place = sum(map(len, by_stream[query.stream_id]))
        by_stream[query.stream_id][query.label].append(_features(query, place))
    both = [np.mean(yes, axis=0) - np.mean(no, axis=0) for no, yes in by_stream.values() if no and yes]
    return np.array(both).reshape(len(both), len(FEATURES))


FEATURES = (
    *(f"length {n}" for n in range(2, MAX_CANDIDATE + 1)),
    *(f"symbol {s}" for s in range(VOCABULARY)),
    *(f"belt {b}" for b in range(3)),
    "place in the list",
)


_KINDS = [name.split()[0] for name in FEATURES]


def _features(query: QueryRecord, place: int) -> np.ndarray:
    n = len(query.candidate)
    length = np.arange(2, MAX_CANDIDATE + 1) == n
    symbols = np.bincount(query.candidate, minlength=VOCABULARY) / n
    belts = np.zeros(3) if query.candidate_belts is None else np.bincount(query.candidate_belts, minlength=3) / n
    return np.concatenate((length, symbols, belts, [place]))


def look(differences: np.ndarray, where: str = "") -> Test:
    """The two classes look alike, from `class_differences`."""
    total = np.abs(differences.sum(axis=0))
    exponent = np.zeros(len(FEATURES))
    for kind in set(_KINDS):
        members = [i for i, other in enumerate(_KINDS) if other == kind]
        squares = (differences[:, members] ** 2).sum(axis=0)
        variance = np.maximum(squares, squares.mean())
        largest = np.abs(differences[:, members]).max(initial=0)
        if largest:
            exponent[members] = total[members] ** 2 / (2 * variance + 2 * largest * total[members] / 3)
    worst = int(exponent.argmax())
    p = min(1.0, 2 * len(FEATURES) * math.exp(-exponent[worst]))
    mean = differences[:, worst].sum() / max(1, len(differences))
    about = f"{FEATURES[worst]} differs most, by {mean:+.3f} in positives, {len(differences)} streams"
    return Test(where, "look", p, about)


def position(cell: Cell, records: Sequence[StreamRecord], queries: Sequence[QueryRecord], where: str = "") -> Test:
    """Positives lie uniformly over the places where they could."""
    by_id = {record.stream_id: record for record in records}
    random = np.random.default_rng(0)  # which occurrence, and where within a rank: not what is tested
    positives = _independent([query for query in queries if query.label], cell)[:_POSITIVES]
    places: dict[tuple[str, int], np.ndarray] = {}
    uniform = []
    for query in positives:
        stream = by_id[query.stream_id]
        text, n = joint(stream.symbols, stream.belts), len(query.candidate)
        if (query.stream_id, n) not in places:
            places[query.stream_id, n] = np.cumsum(list(_possible(cell, query.query_set, stream, text, n)))
        rank = places[query.stream_id, n]
        start = random.choice(_starts(text, joint(query.candidate, query.candidate_belts)))
        uniform.append((rank[start] - random.random()) / rank[-1])
    if not uniform:
        return Test(where, "position", 1.0, "no positives")
    test = stats.kstest(uniform, "uniform")
    about = f"largest gap of the distribution function {test.statistic:.3f}, {len(uniform)} positives"
    return Test(where, "position", float(test.pvalue), about)


def _independent(positives: list[QueryRecord], cell: Cell) -> list[QueryRecord]:
    """EasyHuman asks about one break again and again: only the first question of each stream is a new draw."""
    if cell.band != "easyhuman":
        return positives
    return list({query.stream_id: query for query in reversed(positives)}.values())


def _possible(cell: Cell, query_set: str, stream: StreamRecord, text: bytes, n: int) -> Iterator[bool]:
    """For each start, whether a positive of n symbols could have been taken there: its pair needs a negative."""
    windows = [text[i : i + n] for i in range(len(text) - n + 1)]
    if query_set == "order" and cell.band != "easyhuman":
        seen = set(windows)
        known = {w: any(bytes(p) not in seen for p in itertools.permutations(w)) for w in seen}
    elif query_set == "spatial" and _one_belt_each(stream):
        known = {w: any(w.count(letter) == 1 for letter in w) for w in set(windows)}
    else:
        known = dict.fromkeys(windows, True)
    return (known[w] for w in windows)


def _one_belt_each(stream: StreamRecord) -> bool:
    return len(set(zip(stream.symbols.tolist(), stream.belts.tolist(), strict=True))) == len(
        set(stream.symbols.tolist())
    )


def _starts(text: bytes, window: bytes) -> list[int]:
    starts, at = [], text.find(window)
    while at >= 0:
        starts.append(at)
        at = text.find(window, at + 1)
    return starts


def _repeated(
    cell: Cell, records: Sequence[StreamRecord], seeds: Iterable[int], count: int, found: Report
) -> Iterator[str]:
    """Uniform streams that are there twice, or that begin like a training stream of one of the seeds."""
    ours = _beginnings(np.stack([record.symbols for record in records]))
    twice = len(ours) - len(np.unique(ours))
    if twice:
        yield f"{cell.key}: {twice} streams begin like another with the same {_PREFIX} symbols"
    step = max(1, (1 << 22) // cell.length)
    for seed in sorted(seeds):
        for start in range(0, count, step):
            indices = range(start, min(start + step, count))
            training = streams(MembershipConfig(), seed, indices, cell.length, split="train")
            found.checked["training streams"] += len(indices)
            for row in np.flatnonzero(np.isin(ours, _beginnings(training))):
                yield f"{cell.key}: stream {records[row].stream_id} begins like a training stream of seed {seed}"


def _beginnings(x: np.ndarray) -> np.ndarray:
    """The first 16 symbols of each stream as one number."""
    return (x[:, :_PREFIX].astype(np.uint64) << 4 * np.arange(_PREFIX, dtype=np.uint64)).sum(axis=1)
