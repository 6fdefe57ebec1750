"""Two small splits, and a memory that writes its answers down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.splits import Split, load
from tasks.splits.build import build
from tasks.splits.recipes import TextRecipe, VideoRecipe
from vlms.prompts import TextPart, compose
from vlms.protocol import Cost, Query, Reply, WholePrompt


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("splits") / "text"
    build(TextRecipe(lengths=(8, 16), streams=2, queries=4, query_sets=("uniform", "order")), folder)
    return folder


@pytest.fixture(scope="session")
def video_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("splits") / "video"
    build(VideoRecipe(lengths=(8,), streams=2, queries=2, bands=("max",)), folder)
    return folder


@pytest.fixture(scope="session")
def text_split(text_folder) -> Split:
    return load(text_folder)


@pytest.fixture(scope="session")
def video_split(video_folder) -> Split:
    return load(video_folder)


class Scribe(WholePrompt):
    """Reads the prompt and looks the candidate up; in arm B it declines short candidates.

    Args:
        before: called with every query before it is answered; may raise, or return an error.
    """

    name = "scribe"
    modalities = frozenset({"text"})
    counts_flops = True

    def __init__(self, before: Callable[[Query], str | None] = lambda query: None):
        self.before, self.identity = before, {"version": 1}

    def read(self, state, query: Query) -> Reply:
        error = self.before(query)
        if error:
            return Reply(finish="error", error=error)
        (part,) = compose(state, query)
        return Reply(
            text=said(part), finish="stop", n_in=len(part.text), n_out=3, cost=Cost(1e9, 1e6, {"prefill": 1e9})
        )


def said(part: TextPart) -> str:
    stream, candidate = (line.split(": ", 1)[1] for line in part.text.splitlines()[:2])
    if "costs -4 points" in part.text and candidate.count(",") < 4:
        return "Too risky: {2}"
    return "Yes: {0}" if f", {candidate}," in f", {stream}," else "No: {1}"


@pytest.fixture
def scribe() -> type[Scribe]:
    return Scribe
