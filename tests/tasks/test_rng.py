"""The counter-based generator: uniform, independent across keys and counters, and a function of its arguments alone."""

import numpy as np
import pytest
from scipy import stats

from tasks.rng import below, fold, mix, unit, words

SIGNIFICANCE = 1e-4  # all seeds are fixed, so these tests give the same verdict each time


def uniform(values: np.ndarray, bins: int) -> bool:
    return stats.chisquare(np.bincount(values.ravel(), minlength=bins)).pvalue > SIGNIFICANCE


def test_each_input_bit_flips_each_output_bit_half_of_the_time():
    x = words(fold(1), 4000)
    for bit in range(64):
        changed = mix(x) ^ mix(x ^ np.uint64(1 << bit))
        share = (changed[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.05


@pytest.mark.parametrize("shift", [0, 4, 28, 60])
def test_symbols_are_uniform_over_counters_and_over_neighbouring_keys(shift):
    by_counter = words(fold(3), 40_000)
    by_key = words(fold(3, np.arange(40_000)), 1)[:, 0]
    for word in (by_counter, by_key):
        symbols = (word >> np.uint64(shift) & np.uint64(15)).astype(np.int64)
        assert uniform(symbols, 16)
        assert uniform(symbols[:-1] * 16 + symbols[1:], 256)


def test_neighbouring_seeds_indices_and_counters_are_uncorrelated():
    grid = unit(words(fold(np.arange(40)[:, None], np.arange(50)), 60))  # [seed, index, counter]
    for axis in range(3):
        a, b = (np.moveaxis(grid, axis, 0)[part].ravel() for part in (slice(0, -1), slice(1, None)))
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.015
    assert len(np.unique(grid)) == grid.size


def test_keys_depend_on_every_part_and_on_order():
    keys = [fold(1, 2), fold(2, 1), fold(1, 2, 0), fold(0, 1, 2), fold(1), fold(-1, 2), fold(1 + 2**40, 2)]
    assert len({int(key) for key in keys}) == len(keys)


def test_keys_and_words_do_not_depend_on_what_is_computed_beside_them():
    together = words(fold(5, np.arange(10)), 8)
    for i in range(10):
        np.testing.assert_array_equal(words(fold(5, i), 8), together[i])
    np.testing.assert_array_equal(words(fold(5, np.arange(10)), 3, start=4), together[:, 4:7])


def test_below_is_uniform_and_in_range():
    word = words(fold(7), 60_000)
    for bound in (1, 3, 7, 16, 1000):
        values = below(word, bound)
        assert values.min() >= 0
        assert values.max() == bound - 1
        assert bound == 1 or uniform(values, bound)
    np.testing.assert_array_equal(
        below(word[:3], np.array([1, 5, 9])), [below(word[i], b) for i, b in enumerate((1, 5, 9))]
    )


def test_unit_is_uniform_on_the_half_open_interval():
    u = unit(words(fold(8), 60_000))
    assert 0 <= u.min() < u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > SIGNIFICANCE
    assert unit(np.array([2**64 - 1], np.uint64))[0] < 1


def test_the_values_of_version_1_stay():
    """Data on disk and checkpoints rely on these; a change of the generator needs a new data version."""
    assert [int(w) for w in words(fold(0, 1, 2), 2)] == [1523909150204167378, 15432074823079050039]
