"""Sound splits pass; a leak of each kind, planted in a user's own split, is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tasks
from tasks.splits import Cell, QueryRecord, Split, StreamRecord
from tasks.splits.facts import wrong_facts
from tasks.splits.leaks import ALPHA, balance, check, class_differences, look, position
from tasks.splits.recipes import EasyHumanRecipe, TextRecipe, VideoRecipe

STREAMS, LENGTH = 120, 32


def cell_of(streams: list[StreamRecord], queries: list[QueryRecord], **changes) -> Cell:
    """A cell that was never on disk."""
    about = {"band": "max", "length": LENGTH, "query_sets": ("uniform",), "medium": "text", "variant": None} | changes
    return Cell("mine", manifest={}, read_streams=lambda: streams, read_queries=lambda: queries, **about)


def split_of(*cells: Cell, seed: int = 100) -> Split:
    return Split("text", "1.1.0", seed, list(cells), {})


def made(recipe: TextRecipe, key: str = "") -> tuple[list[StreamRecord], list[QueryRecord]]:
    plan = next(plan for plan in recipe.plans() if key in plan.key)
    cell = recipe.make(plan)
    return cell.streams, cell.queries


@pytest.fixture(scope="module")
def sound() -> tuple[list[StreamRecord], list[QueryRecord]]:
    return made(TextRecipe(seed=7, streams=300, lengths=(LENGTH,), bands=("max",), query_sets=("uniform",)))


def found_by_tests(queries: list[QueryRecord], streams: list[StreamRecord]) -> set[str]:
    """Names of the tests that fail, at the error rate of a split with fifty tests."""
    cell = cell_of(streams, queries)
    tests = (balance(queries), look(class_differences(queries)), position(cell, streams, queries))
    return {test.name for test in tests if test.p < ALPHA / 50}


# -- sound splits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "easyhuman", "video"])
def test_small_splits_are_sound(built, name):
    report = check(tasks.load(built[name]), training_streams=200)
    assert report.sound, (report.wrong, report.leaks)
    assert report.tests
    assert report.checked["queries"] == sum(len(cell.queries()) for cell in tasks.load(built[name]).cells)


@pytest.mark.parametrize(
    "recipe",
    [
        TextRecipe(seed=7, streams=STREAMS, lengths=(16,)),
        EasyHumanRecipe(seed=7, streams=STREAMS, lengths=(64,), video_lengths=(48,)),
        VideoRecipe(seed=7, streams=STREAMS, lengths=(16,)),
    ],
    ids=lambda recipe: recipe.split,
)
def test_larger_cells_are_sound_and_every_query_set_is_looked_at(recipe):
    cells = []
    for plan in recipe.plans():
        cell = recipe.make(plan)
        cells.append(
            replace(cell_of(cell.streams, cell.queries), **{k: getattr(plan, k) for k in ("key", "band", "length")},
                    query_sets=plan.query_sets, medium=plan.medium, variant=plan.variant)
        )  # fmt: skip
    report = check(split_of(*cells, seed=7), training_streams=2000)
    assert report.sound, (report.wrong, report.leaks)
    for cell in cells:
        for query_set in cell.query_sets:
            where = f"{cell.key} {query_set}"
            assert {test.name for test in report.tests if test.where == where} >= {"balance", "position"}, where


def test_p_values_are_not_too_small_when_nothing_leaks():
    streams, queries = made(TextRecipe(seed=8, streams=2000, queries=4, lengths=(16,), bands=("max",)))
    queries = [query for query in queries if query.query_set == "uniform"]
    differences = class_differences(queries)
    assert all(look(part).p > 0.5 for part in np.array_split(differences, 20))  # a bound, and a cautious one
    cell = cell_of(streams, queries, length=16)
    by_position = [position(cell, streams, queries[start : start + 80]).p for start in range(0, len(queries), 80)]
    assert len(by_position) == 100
    assert sum(p < 0.1 for p in by_position) <= 20  # 10 expected; more than 20 once in a thousand seeds
    assert sum(p < 0.5 for p in by_position) >= 33  # 50 expected: the test is not asleep either


# -- planted leaks -------------------------------------------------------------------------------------------------


def drop_some_positives(queries):
    kept = iter(np.random.default_rng(0).random(len(queries)) < 0.6)
    return [query for query in queries if next(kept) or not query.label]


def long_positives(queries):
    return [query for query in queries if len(query.candidate) >= 5 or not query.label or query.age % 2]


def no_symbol_zero_in_negatives(queries):
    return [query for query in queries if query.label or 0 not in query.candidate]


def late_positives(queries):
    return [query for query in queries if query.age < LENGTH // 2]


def positives_first(queries):
    return sorted(queries, key=lambda query: (query.stream_id, -query.label))


@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (drop_some_positives, "balance"),
        (long_positives, "look"),
        (no_symbol_zero_in_negatives, "look"),
        (positives_first, "look"),
        (late_positives, "position"),
    ],
)
def test_a_planted_leak_is_found(sound, leak: Callable, name: str):
    streams, queries = sound
    assert found_by_tests(queries, streams) == set()
    assert name in found_by_tests(leak(queries), streams)


def test_a_leak_makes_the_whole_split_unsound(sound):
    streams, queries = sound
    report = check(split_of(cell_of(streams, positives_first(queries))), training_streams=100)
    assert not report.sound
    assert [test.name for test in report.leaks] == ["look"]
    assert "place in the list" in report.leaks[0].about


def test_a_belt_that_tells_the_label_is_found():
    recipe = VideoRecipe(seed=7, streams=STREAMS, lengths=(16,), bands=("max",), variants=("spatial",))
    (plan,) = recipe.plans()
    queries = recipe.make(plan).queries
    marked = [replace(q, candidate_belts=q.candidate_belts if q.label else q.candidate_belts * 0) for q in queries]
    assert look(class_differences(queries)).p == 1
    assert look(class_differences(marked)).p < 1e-6


def test_streams_that_training_sees_are_found(sound):
    streams, _ = sound
    seen = tasks.streams(tasks.MembershipConfig(), 2, [5], LENGTH, split="train")[0]
    leaked = [replace(streams[0], symbols=seen), *streams[1:-1], replace(streams[-1], symbols=streams[1].symbols)]
    report = check(split_of(cell_of(leaked, [])), training_seeds=(2,), training_streams=10)
    assert any(
        f"stream {streams[0].stream_id} begins like a training stream of seed 2" in what for what in report.wrong
    )
    assert any("1 streams begin like another" in what for what in report.wrong)
    clean = check(split_of(cell_of(streams, [])), training_seeds=(2,), training_streams=10)
    assert not clean.wrong
    assert clean.checked["training streams"] == 2 * 10  # seed 2 and the split's own


# -- wrong answers -------------------------------------------------------------------------------------------------

STREAM = StreamRecord(
    "s", np.array([1, 2, 3, 4, 1, 2, 3, 5], np.uint8), 4.0, estimate=tasks.lempel_ziv.rate([1, 2, 3, 4, 1, 2, 3, 5])
)


def query(candidate, label, age, kind="uniform", **changes) -> QueryRecord:
    about = {"stream_id": "s", "query_id": "q", "query_set": "uniform", "meta": {"kind": kind}}
    return QueryRecord(candidate=np.array(candidate, np.uint8), label=label, age=age, **(about | changes))


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (query([1, 2, 3], 1, 1, "positive"), None),
        (query([1, 3, 2], 0, -1), None),
        (query([2, 3, 5], 0, -1), "label 0, but [2, 3, 5] occurs 1 times"),
        (query([2, 3, 6], 1, 3), "label 1, but [2, 3, 6] occurs 0 times"),
        (query([1, 2, 3], 1, 5), "age 5, but its latest occurrence begins at 4 of 8"),
        (query([2, 3, 7], 0, -1, "near"), "a pair of [2, 3, 7] occurs nowhere"),
        (query([3, 4, 1, 2, 3, 4], 0, -1, "near"), None),
        (query([2, 3, 5, 1, 2], 0, -1, "near"), "a pair of [2, 3, 5, 1, 2] occurs nowhere"),
        (query([4, 4, 4], 0, -1, "near"), "no window of the stream differs from [4, 4, 4] in one symbol"),
        (query([1], 1, 3), "candidate [1]: expected 2 to 6 symbols below 16"),
        (query([1, 99, 2], 0, -1), "candidate [1, 99, 2]: expected"),
        (query([1, 3, 2], 0, -1, query_set="mine"), "query set mine in a cell of uniform"),
        (query([1, 3, 2], 0, -1, candidate_belts=np.zeros(3, np.uint8)), "belts of the candidate are wrong"),
        (query([1, 3, 2], 0, -1, stream_id="t"), "there is no stream t"),
    ],
)
def test_wrong_answers_are_named(record, complaint):
    found = list(wrong_facts(cell_of([STREAM], [], length=8), [STREAM], [record]))
    assert (found == []) if complaint is None else any(complaint in what for what in found), found


@pytest.mark.parametrize(
    ("kind", "negative", "complaint"),
    [
        ("order", [3, 2, 1], None),
        ("order", [3, 2, 2], "does not have the symbols of [1, 2, 3]"),
        ("symbol", [1, 2, 9], None),
        ("symbol", [1, 9, 9], "does not differ from [1, 2, 3] in one symbol"),
        ("uniform", [1, 3], "candidates of"),
        ("positive", [2, 3, 5], "labels [1, 1] instead of one yes and one no"),
    ],
)
def test_wrong_pairs_are_named(kind, negative, complaint):
    label = int(kind == "positive")
    both = [
        query([1, 2, 3], 1, 1, meta={"kind": "positive", "pair": 0}),
        query(negative, label, 0 if label else -1, query_id="r", meta={"kind": kind, "pair": 0}),
    ]
    found = list(wrong_facts(cell_of([STREAM], [], length=8), [STREAM], both))
    assert (found == []) if complaint is None else any(complaint in what for what in found), found


def test_wrong_streams_are_named(built):
    cell = tasks.load(built["text"]).cell("low-L0032")
    stream = cell.streams()[0]
    unseen = next(s for s in range(16) if s not in stream.symbols)
    other = stream.symbols.copy()
    other[np.flatnonzero(other == other[-1])[0] + 1] = unseen
    cases = {
        "in a cell of 32 below 16": replace(stream, symbols=stream.symbols[:-1]),
        "but its Lempel-Ziv rate is": replace(stream, estimate=stream.estimate + 0.01),
        "belts are there in a cell of text": replace(stream, belts=stream.symbols % 3),
        "its rules cannot have drawn symbol": replace(
            stream,
            rules={
                "vocabulary": 16,
                "rules": [{"context": [int(s)], "next": {str(s): 1.0}} for s in set(stream.symbols)],
            },
        ),
    }
    assert list(wrong_facts(cell, [stream], [])) == []
    assert "is there 2 times" in next(wrong_facts(cell, [stream, stream], []))
    for complaint, wrong in cases.items():
        assert any(complaint in what for what in wrong_facts(cell, [wrong], [])), complaint


def test_a_moved_letter_must_be_the_only_change(built):
    cell = tasks.load(built["video"]).cell("max-L0032-spatial")
    queries = cell.queries()
    assert list(wrong_facts(cell, cell.streams(), queries)) == []
    negative = next(q for q in queries if not q.label)
    moved = negative.candidate_belts.copy()
    moved[:] = (moved + 1) % 3
    wrong = [replace(q, candidate_belts=moved) if q is negative else q for q in queries]
    assert any("belts differ; expected the same letters" in what for what in wrong_facts(cell, cell.streams(), wrong))
