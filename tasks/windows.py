"""Windows of a stream as integers, and an index that says when each was last seen.

A symbol takes four bits, so a window of n <= 6 symbols is an integer below 2**24, its *code*, first symbol highest.
`WindowIndex` sorts all windows of all streams once as (stream, n, code, end); "did this candidate occur in x[:t], and
how long ago?" is then one binary search, for any number of candidates at once.

Letters: B streams, L symbols per stream, K candidates (of any streams), n symbols per window.
"""

from __future__ import annotations

import numpy as np

from tasks.batch import MAX_CANDIDATE, PAD

# Bits of a sorted key, from the top: stream row, n, code, end.
_END_BITS = 20
_CODE_BITS = 4 * MAX_CANDIDATE
_LENGTH_BITS = 3
_MAX_ROWS = 1 << 63 - _END_BITS - _CODE_BITS - _LENGTH_BITS


def mask(n: np.ndarray | int) -> np.ndarray | int:
    """The bits of a code of n symbols."""
    return (1 << 4 * n) - 1


def decode(code: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Symbols [..., 6] of codes [...] with n [...] symbols: left-justified, padded with PAD."""
    place = np.arange(MAX_CANDIDATE)
    n = np.asarray(n)[..., None]
    shift = 4 * np.maximum(n - 1 - place, 0)
    return np.where(place < n, np.asarray(code)[..., None] >> shift & 15, PAD)


def suffix_codes(x: np.ndarray) -> np.ndarray:
    """[B, L] int64: entry i is the code of the (up to six) symbols that end with x[:, i]."""
    x = x.astype(np.int64)
    codes = x.copy()
    for back in range(1, min(MAX_CANDIDATE, x.shape[1])):
        codes[:, back:] |= x[:, :-back] << 4 * back
    return codes


class WindowIndex:
    """Every window of the given lengths of x [B, L], searchable by (stream row, code, n, time)."""

    def __init__(self, x: np.ndarray, lengths: tuple[int, ...]):
        rows, length = x.shape
        if rows >= _MAX_ROWS or length >= 1 << _END_BITS:
            raise ValueError(
                f"{rows} streams of {length} symbols in one batch; at most {_MAX_ROWS - 1} streams of "
                f"{(1 << _END_BITS) - 1} can be indexed: make several batches"
            )
        self.codes = suffix_codes(x)
        keys = np.empty((rows, sum(max(length - n + 1, 0) for n in lengths)), np.int64)
        filled = 0
        for n in lengths:
            block = keys[:, filled : filled + max(length - n + 1, 0)]
            np.bitwise_and(self.codes[:, n - 1 :], mask(n), out=block)  # in place: this is most of a batch's cost
            block <<= _END_BITS
            block += self._key(np.arange(rows)[:, None], n, 0, np.arange(n, length + 1))
            filled += block.shape[1]
        keys.sort(axis=1)  # the row is the top of the key, so sorted rows are a sorted whole
        self._keys = keys.ravel()

    @staticmethod
    def _key(row, n, code, end):
        return ((((row << _LENGTH_BITS) + n) << _CODE_BITS) + code << _END_BITS) + end

    def window(self, row: np.ndarray, end: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Codes [K] of the windows x[row, end - n : end]."""
        return self.codes[row, end - 1] & mask(n)

    def latest(self, row: np.ndarray, code: np.ndarray, n: np.ndarray, time: np.ndarray) -> np.ndarray:
        """[K] int64: where the latest occurrence within x[row, :time] ends, or -1 if there is none."""
        wanted = self._key(row, n, code, time)
        found = np.searchsorted(self._keys, wanted, side="right") - 1
        key = self._keys[np.maximum(found, 0)]
        hit = (found >= 0) & (key >> _END_BITS == wanted >> _END_BITS)
        return np.where(hit, key & (1 << _END_BITS) - 1, -1)
