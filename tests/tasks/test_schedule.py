"""Schedules: the recipe's lengths and times, the paper's data set, and nothing remembered between steps."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks import EpochSchedule, OnlineSchedule

SMALL = dict(epochs=3, batch_size=4, streams=400, lengths=(8, 16, 24))


# -- online --------------------------------------------------------------------------------------


def test_the_length_limit_grows_geometrically_over_sixty_percent_of_training():
    schedule = OnlineSchedule(steps=1000)
    # 16 * 8 ** (step / 600), rounded down to a multiple of 16.
    assert [schedule.limit(s) for s in (0, 199, 200, 300, 400, 599, 600, 999)] == [16, 16, 32, 32, 64, 112, 128, 128]
    assert OnlineSchedule(steps=10, growth=0).limit(0) == 128
    assert [OnlineSchedule(steps=10, max_length=n).limit(10) for n in (16, 48, 80, 1024)] == [16, 48, 80, 1024]


def test_lengths_are_uniform_up_to_the_limit():
    schedule = OnlineSchedule(steps=4000, growth=0)
    count = Counter(schedule.at(s).length for s in range(4000))
    assert sorted(count) == list(range(16, 129, 16))
    assert stats.chisquare(list(count.values())).pvalue > 1e-4
    growing = OnlineSchedule(steps=500)
    assert all(growing.at(s).length <= growing.limit(s) for s in range(500))


def test_query_times_are_the_end_and_random_earlier_multiples():
    schedule = OnlineSchedule(steps=2000, growth=0)
    earlier = Counter()
    for s in range(2000):
        step = schedule.at(s)
        units = step.length // 16
        assert len(step.times) == {1: 1, 2: 2, 3: 2}.get(units, 4)  # 3 times would not split 32 pairs evenly
        assert step.times[-1] == step.length
        assert list(step.times) == sorted(set(step.times))
        assert step.queries == 64
        if units == 8:
            earlier.update(step.times[:-1])
    assert sorted(earlier) == list(range(16, 128, 16))
    assert stats.chisquare(list(earlier.values())).pvalue > 1e-4


def test_no_stream_is_seen_twice_online():
    schedule = OnlineSchedule(steps=50, batch_size=8)
    np.testing.assert_array_equal(np.concatenate([schedule.at(s).indices for s in range(50)]), np.arange(400))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"max_length": 100}, "max_length=100 must be a multiple of min_length=16"),
        ({"max_length": 8}, "must be a multiple of min_length=16"),
        ({"growth": 1.5}, "growth=1.5 is a share of training"),
        ({"queries": 7}, "queries=7 must be even"),
    ],
)
def test_bad_online_schedules_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        OnlineSchedule(**{"steps": 10} | change)


# -- epochs --------------------------------------------------------------------------------------


def test_the_papers_data_set():
    schedule = EpochSchedule()
    assert (schedule.epochs, schedule.streams, schedule.training_streams) == (125, 500_000, 475_000)
    assert schedule.queries == 32
    lengths = schedule.length_of(np.arange(schedule.streams))
    assert (lengths.min(), lengths.max()) == (32, 1024)
    assert stats.chisquare(np.bincount(lengths // 32)[1:]).pvalue > 1e-4
    assert 475_000 / 64 - 32 < schedule.steps_per_epoch <= 475_000 / 64
    assert sum(len(schedule.validation(n, None)[1]) for n in schedule.lengths) == 25_000
    step = schedule.at(900_000)  # deep into training, without walking there
    assert step.times == (step.length,)


def test_an_epoch_visits_each_stream_once_in_batches_of_equal_length():
    schedule = EpochSchedule(**SMALL)
    batches = []
    for epoch in range(3):
        steps = [schedule.at(epoch * schedule.steps_per_epoch + s) for s in range(schedule.steps_per_epoch)]
        seen = np.concatenate([step.indices for step in steps])
        assert len(set(seen.tolist())) == len(seen) > schedule.training_streams - 4 * 3
        assert seen.max() < schedule.training_streams
        for step in steps:
            assert set(schedule.length_of(step.indices)) == {step.length}
        lengths = [step.length for step in steps]
        assert sum(a != b for a, b in pairwise(lengths)) > len(steps) / 3  # mixed, not sorted
        batches.append({frozenset(step.indices.tolist()) for step in steps})
    # New company in every epoch, not only a new order.
    assert not batches[0] & batches[1]
    assert not batches[1] & batches[2]


def test_held_out_streams_are_never_trained_on():
    schedule = EpochSchedule(**SMALL)
    trained = {int(i) for s in range(schedule.steps) for i in schedule.at(s).indices}
    for length in schedule.lengths:
        split, held_out = schedule.validation(length, None)
        assert split == "train"  # of the same data set, apart by index
        assert not trained & set(held_out.tolist())
        assert set(schedule.length_of(held_out)) == {length}
        assert len(schedule.validation(length, 2)[1]) == 2
    with pytest.raises(ValueError, match="no stream has length 40"):
        schedule.validation(40, None)


def test_length_weights():
    schedule = EpochSchedule(epochs=1, batch_size=4, streams=20_000, lengths=(8, 16), weights=(3, 1))
    share = (schedule.length_of(np.arange(20_000)) == 8).mean()
    assert share == pytest.approx(0.75, abs=0.015)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"validation_share": 1.0}, "validation_share=1.0 must lie within 0 and 1"),
        ({"lengths": (16, 8)}, "must be positive and increasing"),
        ({"weights": (1, 2)}, "one for each of 3 lengths"),
        ({"queries": 31}, "queries=31 must be even"),
        ({"streams": 5}, "do not fill one batch of 4 streams of equal length; use more streams"),
    ],
)
def test_bad_epoch_schedules_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        EpochSchedule(**SMALL | change)


# -- both ----------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**40), steps=st.permutations(range(8)))
def test_a_step_does_not_depend_on_which_steps_were_taken_before(seed, steps):
    for make in (lambda: OnlineSchedule(8, seed=seed), lambda: EpochSchedule(seed=seed, **SMALL)):
        jumping = make()
        visited = {s: jumping.at(s) for s in steps}
        for s in range(8):
            fresh = make().at(s)
            np.testing.assert_array_equal(visited[s].indices, fresh.indices)
            assert (visited[s].length, visited[s].times) == (fresh.length, fresh.times)
