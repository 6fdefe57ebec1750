"""Placed streams with questions, and a reader of frames that shares nothing with the renderer but the pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from tasks import MembershipConfig, streams
from tasks.easyhuman import EasyHumanConfig, easy_questions, easy_stream
from tasks.question import Question
from tasks.video import VideoConfig, assign_belts, sequential_questions, spatial_questions, with_belts


@dataclass
class Case:
    symbols: np.ndarray
    belts: np.ndarray
    asked: list[Question]


def make(variant: str, index: int, length: int = 64, queries: int = 8, band: str = "max", mode: str = "per_symbol"):
    """Stream `index` with questions of a variant ("sequential", "near", "spatial" or "easyhuman")."""
    config = VideoConfig(mode)
    if variant == "easyhuman":
        stream = easy_stream(EasyHumanConfig(), 0, index, length, split="test")
        symbols = stream.symbols
        asked = easy_questions(EasyHumanConfig(), 0, index, stream, queries, split="test")
    else:
        symbols = streams(MembershipConfig(), 0, [index], length, split="test", band=band)[0]
    belts = assign_belts(config, 0, index, symbols, split="test")
    place = (config, 0, index, symbols, belts)
    if variant == "easyhuman":
        asked = with_belts(*place, asked, split="test")
    elif variant == "spatial":
        asked = spatial_questions(*place, queries, split="test")
    else:
        query_set = "near" if variant == "near" else "uniform"
        asked = sequential_questions(*place, queries, split="test", band=band, query_set=query_set)
    return Case(symbols, belts, asked)


@pytest.fixture(scope="session")
def case() -> Callable[..., Case]:
    return make


@pytest.fixture(scope="session")
def by_eye() -> Callable[[Iterable[np.ndarray]], list[tuple[bytes, int]]]:
    """Reads (shape of the letter, belt) of frames: white ink in the left, middle or right third, cropped to itself."""

    def read(frames: Iterable[np.ndarray]) -> list[tuple[bytes, int]]:
        seen = []
        for frame in frames:
            ink = frame[..., 0] > 250
            rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
            belts = {int(3 * column // frame.shape[1]) for column in (columns[0], columns[-1])}
            assert len(belts) == 1, "ink on two belts"
            shape = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            seen.append((bytes(shape.shape) + np.packbits(shape).tobytes(), belts.pop()))
        return seen

    return read
