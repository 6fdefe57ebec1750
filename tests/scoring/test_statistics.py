"""The bootstrap: who is redrawn, which intervals come out, and whether they cover."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from scoring import Settings, score
from scoring.statistics import Redraws, estimate, ratio


def test_the_same_questions_are_redrawn_together():
    one, two = (np.concatenate(list(Redraws(9, 50, "questions").blocks())) for _ in range(2))
    assert (one == two).all()
    assert (one != np.concatenate(list(Redraws(9, 50, "others").blocks()))).any()


def test_redraws_do_not_depend_on_the_block_size():
    whole = np.concatenate(list(Redraws(9, 50, "x").blocks()))
    pieces = np.concatenate(list(Redraws(9, 50, "x").blocks(row_cost=1 << 15)))
    assert (whole == pieces).all()


def test_percentiles_by_hand():
    found = estimate(50.0, np.arange(101.0), n=7, streams=3)
    assert (found.low, found.high, found.n, found.streams) == (2.5, 97.5, 7, 3)


def test_undefined_redraws_are_left_out_and_too_many_give_no_interval():
    draws = np.concatenate([np.full(70, np.nan), np.arange(30.0)])
    found = estimate(1.0, draws, 7, 3)
    assert (found.low, found.high) == pytest.approx((0.725, 28.275))
    none = estimate(1.0, np.concatenate([np.full(80, np.nan), np.arange(20.0)]), 7, 3)
    assert (none.low, none.high) == (None, None)
    assert none.note == "no interval: defined in 20 of 100 redraws"


def test_unbounded_redraws_open_the_interval():
    found = estimate(5.0, np.array([4.0] * 50 + [np.inf] * 50), 7, 3)
    assert (found.value, found.low, found.high) == (5.0, 4.0, None)
    assert "unbounded" in found.note


def test_one_stream_has_no_interval(rows):
    scores = score(rows([(1, 1, 0.9), (0, 1, 0.8)]), Settings(redraws=30, selectivity_redraws=30))
    for row in scores.rows():
        assert row["low"] is None
        assert row["high"] is None
    assert scores.value("accuracy").note == "no interval: one stream"
    assert scores.value("aurc").value == 0.25


def test_ratio_is_nan_where_there_is_nothing():
    np.testing.assert_array_equal(ratio(np.array([1, 0, 3]), np.array([2, 0, 4])), [0.5, np.nan, 0.75])


def test_questions_of_one_stream_count_together(simulate):
    """Asking everything three times over must not narrow the interval: the streams are as many as before."""
    table = simulate(0.6, streams=20)
    thrice = pl.concat([table.with_columns(query=table["query"] + 100 * k) for k in range(3)])
    settings = Settings(redraws=500, selectivity_redraws=10)
    once, often = (score(t, settings).value("accuracy") for t in (table, thrice))
    assert (once.low, once.high) == (often.low, often.high)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Streams differ in difficulty; a bootstrap over questions would cover far less than 95%."""
    rng, hits, naive = np.random.default_rng(5), 0, 0
    repeats, streams, queries = 300, 40, 20
    for _ in range(repeats):
        difficulty = rng.beta(3, 1, streams)
        right = rng.binomial(queries, difficulty)
        sums = np.stack([right, np.full(streams, queries)], axis=1).astype(float)
        draws = Redraws(streams, 300, str(rng.integers(1 << 40))).totals(sums)
        value = right.sum() / (streams * queries)
        found = estimate(value, draws[:, 0] / draws[:, 1], streams * queries, streams)
        hits += found.low <= 0.75 <= found.high
        naive += abs(value - 0.75) <= 1.96 * np.sqrt(value * (1 - value) / (streams * queries))
    assert 0.90 <= hits / repeats <= 0.98
    assert naive / repeats < 0.75
