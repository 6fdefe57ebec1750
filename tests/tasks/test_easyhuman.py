"""EasyHuman against its definition, checked slowly and without the generator's own helpers."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from tasks.easyhuman import CORRUPTIONS, EasyHumanConfig, easy_questions, easy_stream

CONFIG = EasyHumanConfig()
PINNED_STREAM = [5, 6, 7, 8, 9, 5, 6, 9, 4, 9, 4, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8]
PINNED_QUESTIONS = [([6, 9, 4, 9, 4], 1, 13), ([14, 9, 4, 9, 4], 0, -1)]


def make(index: int, length: int = 64, queries: int = 4, query_set: str = "symbol", seed: int = 0):
    stream = easy_stream(CONFIG, seed, index, length, split="test")
    return stream, easy_questions(CONFIG, seed, index, stream, queries, split="test", query_set=query_set)


def count(text: list[int], window: list[int]) -> int:
    return sum(text[i : i + len(window)] == window for i in range(len(text) - len(window) + 1))


@pytest.mark.parametrize("length", [20, 21, 64, 257])
def test_streams_are_a_pattern_with_breaks_that_occur_once(length):
    for index in range(60):
        stream, _ = make(index, length)
        motif = stream.motif.tolist()
        base = [motif[i % len(motif)] for i in range(length)]
        rebuilt = list(base)
        for start, deviation in zip(stream.starts, stream.deviations, strict=True):
            assert 0 <= start <= length - len(deviation)
            rebuilt[start : start + len(deviation)] = deviation.tolist()
        symbols = stream.symbols.tolist()
        assert symbols == rebuilt
        for deviation in stream.deviations:
            assert 3 <= len(deviation) <= 5
            assert count(base, deviation.tolist()) == 0
            assert count(symbols, deviation.tolist()) == 1
        if len(stream.starts) == 2:
            assert stream.starts[0] + len(stream.deviations[0]) <= stream.starts[1]
        if index % 2:
            assert stream.structure == "count"
            assert {b - a for a, b in pairwise(motif)} in ({1}, {-1})
        else:
            assert stream.structure == "repeat"
            assert all(len(d) == len(motif) for d in stream.deviations)


@pytest.mark.parametrize("query_set", CORRUPTIONS)
def test_questions_are_deviations_and_absent_corruptions_of_them(query_set):
    for index in range(60):
        stream, asked = make(index, queries=8, query_set=query_set)
        symbols = stream.symbols.tolist()
        for pair in range(4):
            positive, negative = sorted((q for q in asked if q.pair == pair), key=lambda q: -q.label)
            assert (positive.label, negative.label) == (1, 0)
            deviation = stream.deviations[positive.detail]
            assert positive.candidate.tolist() == deviation.tolist()
            assert positive.age == len(symbols) - stream.starts[positive.detail] - len(deviation)
            assert negative.age == -1
            assert count(symbols, negative.candidate.tolist()) == 0
            assert len(negative.candidate) == len(deviation)
            changed = int((negative.candidate != deviation).sum())
            if negative.kind == "symbol":
                assert changed == 1
            else:
                assert sorted(negative.candidate.tolist()) == sorted(deviation.tolist())
                assert changed
            assert positive.scored == negative.scored == (negative.kind == query_set)


def test_a_deviation_of_one_symbol_has_no_other_order():
    stream = next(s for s in (make(i)[0] for i in range(2000)) if any(len(set(d.tolist())) == 1 for d in s.deviations))
    which = next(i for i, d in enumerate(stream.deviations) if len(set(d.tolist())) == 1)
    asked = easy_questions(CONFIG, 0, 0, stream, 8, split="test", query_set="order")
    assert {(q.kind, q.scored) for q in asked if q.detail == which} == {("positive", False), ("symbol", False)}


def test_corruptions_of_one_deviation_differ_while_they_last():
    stream, asked = make(1, queries=40)
    for which in range(len(stream.deviations)):
        negatives = [q.candidate.tobytes() for q in asked if q.detail == which and not q.label]
        assert len(set(negatives)) == len(negatives)


def test_same_item_whatever_was_made_before_and_another_for_every_key():
    first, again = make(7), make(7)
    assert first[0].symbols.tobytes() == again[0].symbols.tobytes()
    assert [q.candidate.tolist() for q in first[1]] == [q.candidate.tolist() for q in again[1]]
    others = [make(8)[0], make(7, seed=1)[0], easy_stream(CONFIG, 0, 7, 64, split="train")]
    assert len({s.symbols.tobytes() for s in [first[0], *others]}) == 4
    orders = make(7, query_set="order")[1]
    assert [q.candidate.tolist() for q in orders if q.label] == [q.candidate.tolist() for q in first[1] if q.label]


def test_the_stream_of_one_seed_stays_what_it_is():
    """A change here changes published data: raise VERSION and say so."""
    stream, asked = make(3, length=24, queries=2)
    assert stream.symbols.tolist() == PINNED_STREAM
    assert [(q.candidate.tolist(), q.label, q.age) for q in asked] == PINNED_QUESTIONS


def test_structures_counts_lengths_and_places_are_spread_as_said():
    streams = [easy_stream(CONFIG, 0, i, 100, split="test") for i in range(2000)]
    assert np.mean([len(s.starts) for s in streams]) == pytest.approx(1.5, abs=0.04)
    for structure in (0, 1):
        lengths = [len(s.motif) for s in streams[structure::2]]
        assert np.bincount(lengths, minlength=6)[3:] / 1000 == pytest.approx([1 / 3] * 3, abs=0.05)
    single = np.array([s.starts[0] / (100 - len(s.deviations[0])) for s in streams if len(s.starts) == 1])
    assert np.histogram(single, 5, (0, 1))[0] / len(single) == pytest.approx([0.2] * 5, abs=0.05)
    rising = [s.motif[1] > s.motif[0] for s in streams[1::2]]
    assert np.mean(rising) == pytest.approx(0.5, abs=0.05)


def test_what_knowing_the_symbols_alone_is_worth():
    def accuracy(query_set: str) -> float:
        right = []
        for index in range(400):
            stream, asked = make(index, 64, 2, query_set)
            known = set(stream.symbols.tolist())
            right += [(set(q.candidate.tolist()) <= known) == q.label for q in asked if q.scored]
        return float(np.mean(right))

    assert accuracy("symbol") == pytest.approx(0.77, abs=0.03)
    assert accuracy("order") == 0.5


def test_rules_and_meta_are_plain_json():
    stream, asked = make(4)
    assert json.loads(json.dumps(stream.rules))["motif"] == stream.motif.tolist()
    assert json.loads(json.dumps(asked[0].meta)) == asked[0].meta
    assert 0 < stream.rate < 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: make(0, length=19), "at least 20"),
        (lambda: make(0, queries=3), "even number"),
        (lambda: make(0, query_set="ordre"), "did you mean 'order'"),
        (lambda: easy_stream(CONFIG, 0, 0, 64, split="tset"), "did you mean 'test'"),
        (lambda: EasyHumanConfig(lengths=(3, 6)), "within 3..5"),
        (lambda: EasyHumanConfig(deviations=()), "within 1..2"),
        (lambda: EasyHumanConfig(version=0), "version 0"),
    ],
)
def test_refusals_say_what_to_do(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
