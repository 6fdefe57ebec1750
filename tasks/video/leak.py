"""What a candidate's look gives away: a classifier that sees rendered candidates and never a stream.

For every candidate clip it is told its length, how often each belt, each letter and each letter on each belt is shown,
how many letters come again (at once, and at all), how many are seen on two belts, and the mean picture. A logistic
regression learns the labels from some streams and is asked about the others (cross-validation by stream). On sound
questions it stays at 50 %: `Appearance.interval`, at 99 % since there are several kinds of questions, must hold 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.video.belts import BELTS, joint
from tasks.video.render import LETTERS, SIZE, read_frames, render_stream

_CELL = 32  # pixels averaged for the mean picture
_Z = 2.576  # 99 %: several kinds of questions are judged, and each must pass


@dataclass(frozen=True)
class Appearance:
    """How well candidates alone predict their labels."""

    accuracy: float
    """Mean accuracy over streams."""
    interval: tuple[float, float]
    """99 % interval, from the spread between streams."""
    items: int
    """Candidates judged."""

    @property
    def at_chance(self) -> bool:
        return self.interval[0] <= 0.5 <= self.interval[1]


def appearance(
    clips: Iterable[Sequence[np.ndarray]], labels: Sequence[int], streams: Sequence[int], seed: int = 0
) -> Appearance:
    """Cross-validated accuracy of a classifier of rendered candidates.

    Args:
        clips: a list of frames for each of N candidates.
        labels: [N] 0 or 1.
        streams: [N] which stream each candidate belongs to; at least ten streams.
        seed: the texture with which the clips were rendered.

    Raises:
        ValueError: for fewer than ten streams, or frames that the renderer cannot have drawn.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels, streams = np.asarray(labels), np.asarray(streams)
    names, of_stream = np.unique(streams, return_inverse=True)
    if len(names) < 10:
        raise ValueError(f"{len(names)} streams are too few for an interval; give candidates of at least 10")
    seen = np.stack([_features(clip, seed) for clip in clips])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    said = cross_val_predict(model, seen, labels, groups=streams, cv=GroupKFold(5))
    right = np.bincount(of_stream, said == labels) / np.bincount(of_stream)
    error = _Z * right.std(ddof=1) / np.sqrt(len(right))
    mean = float(right.mean())
    return Appearance(mean, (mean - float(error), mean + float(error)), len(labels))


def _features(clip: Sequence[np.ndarray], seed: int) -> np.ndarray:
    symbols, belts = read_frames(clip, seed)
    placed = np.bincount(joint(symbols, belts), minlength=len(LETTERS) * BELTS)
    by_letter = placed.reshape(-1, BELTS)
    distinct = np.count_nonzero(by_letter.any(axis=1))
    counts = [len(clip), len(clip) - distinct, np.sum(symbols[1:] == symbols[:-1]), np.count_nonzero(placed) - distinct]
    picture = placed @ _pictures(seed) / len(clip)
    return np.concatenate([counts, by_letter.sum(axis=0), by_letter.sum(axis=1), placed, picture])


@lru_cache(maxsize=1)
def _pictures(seed: int) -> np.ndarray:
    """Every frame made small: [48, 196] brightness, in the order of `joint`."""
    side = SIZE // _CELL
    everything = render_stream(np.repeat(range(len(LETTERS)), BELTS), np.tile(range(BELTS), len(LETTERS)), seed)
    return np.stack([f[..., 1].reshape(side, _CELL, side, _CELL).mean(axis=(1, 3)).ravel() for f in everything])
