"""One yes/no question about one stream, as the generators of EasyHuman and of video make it.

Letters: L symbols per stream, n symbols per candidate (3 to 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Question:
    """Did this candidate occur in the stream as a contiguous window, belts included where there are belts?"""

    candidate: np.ndarray
    """uint8 [n] symbols."""
    label: int
    """1 where it occurred, else 0."""
    age: int
    """Symbols between the end of its latest occurrence and the end of the stream; -1 for negatives."""
    kind: str
    """"positive", or how the negative was made."""
    pair: int
    """Which pair it belongs to: one positive and one negative of the same length."""
    scored: bool = True
    """False for both of a pair whose negative is a stand-in, because the stream has none of the kind asked for."""
    belts: np.ndarray | None = None
    """uint8 [n] belt of each symbol, for video."""
    detail: int | None = None
    """EasyHuman: which deviation is asked about. Spatial video, negatives: which place changed its belt."""

    @property
    def meta(self) -> dict[str, object]:
        """What else is known of the question, for a split's `meta` column: JSON types only."""
        known = {"kind": self.kind, "pair": self.pair, "scored": self.scored}
        return known if self.detail is None else known | {"detail": self.detail}


def occurrences(stream: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Starts of every occurrence of `window` [n] in `stream` [L] as a contiguous run, increasing."""
    windows = np.lib.stride_tricks.sliding_window_view(stream, len(window))
    return np.flatnonzero((windows == window).all(axis=1))
