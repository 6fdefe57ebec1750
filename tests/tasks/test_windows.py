"""Window codes and the index of when each window was last seen, against plain search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.windows import WindowIndex, decode, mask, suffix_codes


def code_of(window: list[int]) -> int:
    return int("".join(f"{s:x}" for s in window), 16)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=6))
def test_decode_inverts_the_code_and_pads(window):
    symbols = decode(np.array([code_of(window)]), np.array([len(window)]))[0]
    assert symbols.tolist() == window + [16] * (6 - len(window))


def test_suffix_codes_hold_the_last_symbols():
    x = np.random.default_rng(0).integers(0, 16, (3, 40))
    codes = suffix_codes(x)
    for b in range(3):
        for i in range(40):
            assert codes[b, i] == code_of(x[b, max(0, i - 5) : i + 1].tolist())


@settings(max_examples=60, deadline=None)
@given(
    alphabet=st.sampled_from([1, 2, 3, 16]),
    length=st.integers(6, 40),
    lengths=st.sampled_from([(3,), (2, 6), (3, 4, 5, 6)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_latest_agrees_with_a_plain_search(alphabet, length, lengths, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, alphabet, (2, length))
    index = WindowIndex(x, lengths)
    row, time = rng.integers(0, 2, 50), rng.integers(1, length + 1, 50)
    n = rng.choice(lengths, 50)
    windows = [rng.integers(0, alphabet, k).tolist() for k in n]
    found = index.latest(row, np.array([code_of(w) for w in windows]), n, time)
    for k, window in enumerate(windows):
        ends = [e for e in range(n[k], time[k] + 1) if x[row[k], e - n[k] : e].tolist() == window]
        assert found[k] == max(ends, default=-1)


def test_too_large_a_batch_is_refused_before_its_keys_overflow():
    with pytest.raises(ValueError, match="make several batches"):
        WindowIndex(np.zeros((70_000, 8), np.uint8), (3,))


def test_mask_keeps_n_symbols():
    assert [mask(n) for n in (1, 2, 6)] == [0xF, 0xFF, 0xFFFFFF]
