"""Counter-based random numbers: every draw is a function of *what it is for*, never of what was drawn before.

A generator with hidden state gives item 7 another value when item 6 is skipped, when two workers share the work, or
when training resumes. Here a 64-bit key is folded from the seed and everything that names a draw (split, stream index,
length, purpose ...), and the draw is the key's word number `counter`:

    key  = fold(seed, split, index, length, purpose)      # arrays broadcast: one key per item
    word = words(key, n)                                  # [..., n] uint64, word i depends on (key, i) alone

The mixing function is the 64-bit finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
generators", 2014); `words` walks its Weyl sequence from the key. Uniformity, avalanche and independence of neighbouring
keys are tested in tests/tasks/test_rng.py. Not for cryptography.
"""

from __future__ import annotations

import numpy as np

_WEYL = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: the Weyl sequence visits every word once
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


def mix(x: np.ndarray) -> np.ndarray:
    """A bijection of uint64 in which each input bit flips every output bit with probability one half."""
    with np.errstate(over="ignore"):  # numpy warns of the intended wrap-around on 0-d arrays only
        x = (x ^ (x >> np.uint64(30))) * _MULTIPLY_1
        x = (x ^ (x >> np.uint64(27))) * _MULTIPLY_2
        return x ^ (x >> np.uint64(31))


def fold(*parts: int | np.ndarray) -> np.ndarray:
    """A uint64 key from integers or integer arrays, which broadcast; order matters, and so does every part."""
    key = np.zeros((), np.uint64)
    for part in parts:
        part = np.asarray(part % 2**64 if isinstance(part, int) else part).astype(np.uint64)
        with np.errstate(over="ignore"):
            key = mix((key ^ mix(part + _WEYL)) + _WEYL)
    return key


def words(key: np.ndarray, n: int, start: int = 0) -> np.ndarray:
    """Words start .. start + n - 1 of each key: uint64 of shape key.shape + (n,)."""
    counters = np.arange(start + 1, start + n + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return mix(np.asarray(key)[..., None] + counters * _WEYL)


def below(word: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Integers uniform on 0 .. bound - 1 (int64) from words, for bounds below 2**31.

    Multiply-and-shift on the high half: a value's probability is off by less than bound / 2**32, relatively.
    """
    return ((word >> np.uint64(32)) * np.asarray(bound).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def unit(word: np.ndarray) -> np.ndarray:
    """Floats uniform on [0, 1) from words, with 53 random bits."""
    return (word >> np.uint64(11)) * 2.0**-53
