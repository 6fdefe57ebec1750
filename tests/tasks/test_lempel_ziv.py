"""The entropy estimators: hand cases, the definition written out, and the figures they are known to give."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.lempel_ziv import _matches_by_search, _matches_by_sorting, lz78_rate, match_lengths, rate

PAPER_LOW = [8, 1, 4, 6, 2, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]  # A.1's printed example, "about 0.7"


def definition(x: list[int]) -> list[int]:
    """Lambda_i = 1 + the longest match of x[i:] with an earlier start, by comparing every pair of positions."""

    def common(j: int, i: int) -> int:
        length = 0
        while i + length < len(x) and x[j + length] == x[i + length]:
            length += 1
        return length

    return [1 + max(common(j, i) for j in range(i)) for i in range(1, len(x))]


def test_match_lengths_by_hand():
    #               a  b  a  b  a  c  a        bab... hand-matched: at 1 nothing, at 2 "aba" from 0 (overlapping)
    assert match_lengths([0, 1, 0, 1, 0, 2, 0]).tolist() == [1, 4, 3, 2, 1, 2]
    assert match_lengths([5, 5, 5, 5]).tolist() == [4, 3, 2]
    assert match_lengths([1, 2, 3]).tolist() == [1, 1]


def test_rate_by_hand():
    # [0, 0, 1]: Lambda = 2 at i=1, 1 at i=2, so h = 3 / (2 / log2 2 + 1 / log2 3).
    assert rate([0, 0, 1]) == pytest.approx(3 / (2 + 1 / math.log2(3)))
    assert rate([7] * 8) == pytest.approx(8 / sum((9 - i) / math.log2(i + 1) for i in range(1, 8)))


@settings(max_examples=80, deadline=None)
@given(
    alphabet=st.sampled_from([1, 2, 3, 16]),
    length=st.integers(2, 90),
    repeats=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_algorithms_compute_the_definition(alphabet, length, repeats, seed):
    x = np.random.default_rng(seed).integers(0, alphabet, length).tolist() * repeats
    expected = definition(x)
    for algorithm in (_matches_by_search, _matches_by_sorting):
        assert (algorithm(bytes(x)) + 1).tolist() == expected


def test_both_algorithms_agree_on_long_texts():
    rng = np.random.default_rng(0)
    for text in (bytes(2000), bytes(rng.integers(0, 16, 2000).tolist()), bytes([1, 2, 3, 4, 5, 6, 7] * 300)):
        np.testing.assert_array_equal(_matches_by_search(text), _matches_by_sorting(text))


def test_the_papers_example_lies_in_its_band_only_by_match_lengths():
    assert rate(PAPER_LOW) == pytest.approx(0.80, abs=0.005)
    assert lz78_rate(PAPER_LOW) == pytest.approx(1.78, abs=0.005)


@pytest.mark.parametrize(
    ("length", "match", "lz78"),
    [(8, 1.91, 2.36), (32, 2.24, 3.01), (128, 2.60, 3.29), (512, 2.87, 3.51), (2048, 3.07, 3.56), (4096, 3.15, 3.61)],
)
def test_uniform_streams_give_the_known_means(length, match, lz78):
    rng = np.random.default_rng(length)
    x = rng.integers(0, 16, (max(6, min(400, 20_000 // length)), length)).tolist()
    assert np.mean([rate(row) for row in x]) == pytest.approx(match, abs=0.06)
    assert np.mean([lz78_rate(row) for row in x]) == pytest.approx(lz78, abs=0.08)


@pytest.mark.parametrize(("length", "match", "lz78"), [(8, 0.38, 0.59), (64, 0.11, 0.52), (4096, 0.005, 0.14)])
def test_constant_streams_give_the_known_values(length, match, lz78):
    assert rate([3] * length) == pytest.approx(match, abs=0.005)
    assert lz78_rate([3] * length) == pytest.approx(lz78, abs=0.01)


def test_sequences_too_short_to_estimate_are_refused():
    with pytest.raises(ValueError, match="at least 2 symbols, got 1"):
        rate([1])
    with pytest.raises(ValueError, match="at least 1 symbol"):
        lz78_rate([])
