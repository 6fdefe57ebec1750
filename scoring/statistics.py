"""Uncertainty: the bootstrap over streams.

The questions about one stream succeed or fail together, so the unit that is redrawn is the stream. A redraw picks as
many streams as the cell has, with replacement, and keeps every question of each. Most statistics are functions of sums
over questions; with the sums per stream computed once, a redraw costs a row of a matrix product.

Letters: S streams, R redraws, k sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

ENDS = (2.5, 97.5)  # percentiles of a 95% interval
BLOCK = (
    1 << 16
)  # numbers per array while redrawing: a quarter of a megabyte, so that the arrays of a step stay in cache


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval.

    Attributes:
        value: None when undefined, with the reason in `note`; never NaN.
        low, high: ends of the interval; None when undefined or unbounded, again with the reason in `note`.
        n, streams: questions and streams behind the number.
        note: the reason for a None, or a warning such as "ceiling".
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    streams: int = 0
    note: str | None = None

    def noted(self, note: str | None) -> Estimate:
        return replace(self, note=note) if note else self


class Redraws:
    """R bootstrap redraws of S streams, always the same ones for the same `name`, S and R.

    Systems that were asked the same questions share the name and therefore the redraws, so a difference between two of
    them is a paired comparison. Weights are regenerated rather than kept: 31,000 streams x 1,000 redraws would take
    a quarter of a gigabyte.
    """

    def __init__(self, streams: int, redraws: int, name: str) -> None:
        if redraws < 1:
            raise ValueError(f"redraws={redraws}: at least 1 is needed")
        self.streams, self.redraws = streams, redraws
        self._seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")

    def blocks(self, row_cost: int | None = None) -> Iterator[np.ndarray]:
        """Weights int32 [r, S] in blocks, R rows in all; `row_cost` numbers are needed per redraw (default S)."""
        step = max(1, BLOCK // max(row_cost or self.streams, self.streams))
        generator = np.random.Generator(np.random.PCG64(self._seed))
        for start in range(0, self.redraws, step):
            rows = min(step, self.redraws - start)
            picks = generator.integers(self.streams, size=(rows, self.streams))
            picks += np.arange(rows)[:, None] * self.streams
            counts = np.bincount(picks.ravel(), minlength=rows * self.streams)
            yield counts.reshape(rows, self.streams).astype(np.int32)

    def totals(self, sums: np.ndarray) -> np.ndarray:
        """Totals of per-stream sums [S, k] under every redraw: [R, k]."""
        return np.concatenate([weights @ sums for weights in self.blocks()])


def estimate(value: float, draws: np.ndarray, n: int, streams: int, undefined: str = "undefined") -> Estimate:
    """Point value and percentile interval from redraws; NaN means undefined, infinity means unbounded.

    Args:
        value: the statistic on the data; NaN or infinite gives None with the note `undefined`.
        draws: [R], the statistic on each redraw. Undefined ones are left out; when fewer than a quarter remain there
            is no interval.
    """
    if not np.isfinite(value):
        return Estimate(None, n=n, streams=streams, note=undefined)
    value = float(value)
    if streams < 2:
        return Estimate(value, n=n, streams=streams, note="no interval: one stream")
    valid = draws[~np.isnan(draws)]
    if 4 * len(valid) < len(draws):
        return Estimate(
            value, n=n, streams=streams, note=f"no interval: defined in {len(valid)} of {len(draws)} redraws"
        )
    # Interpolating next to an infinite draw gives NaN, so unbounded statistics take the order statistic itself.
    method = "linear" if np.isfinite(valid).all() else "inverted_cdf"
    low, high = (float(x) for x in np.percentile(valid, ENDS, method=method))
    note = None if np.isfinite(low) and np.isfinite(high) else "an end of the interval is unbounded"
    return Estimate(value, low if np.isfinite(low) else None, high if np.isfinite(high) else None, n, streams, note)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, NaN where the denominator is 0."""
    numerator, denominator = np.asarray(numerator, float), np.asarray(denominator, float)
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator > 0)
