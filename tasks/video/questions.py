"""Questions about a placed stream: did this clip occur, with its letters, order and belts?

`sequential`  the membership task's candidates ("the video variant uses the same candidates rendered as frames", A.1).
              A negative's symbols occur nowhere in this order; they lie on the belts that the stream gives them.
`spatial`     a negative is a true clip with exactly one letter moved to another belt. It is made from the positive it
              is paired with, so the two classes show the same letters in the same order.

Under `per_symbol` belts a letter that occurs twice in the clip is never moved: one letter on two belts would show
without the stream that something is wrong. A window without a letter to move is redrawn, for positives too.

Two limits to keep in mind when reading accuracies. Under `per_symbol` belts a table of 16 letters and their belts
rejects every spatial negative without remembering any order. And on low-entropy streams true windows repeat letters
more often than the uniform negatives do, which a candidate alone shows, in text as in video: `near` negatives do less.

Letters: L symbols per stream, n symbols per candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tasks.batch import KINDS, check_name
from tasks.membership import ask
from tasks.question import Question, occurrences
from tasks.rng import below, fold, words
from tasks.video.belts import BELTS, VideoConfig, belt_map, joint, stream_key

VARIANTS = ("sequential", "spatial")
QUERY_SETS = ("uniform", "near")  # of the sequential variant
_FREE_BELTS, _WINDOW, _PLACE = range(1, 4)  # what a key is for
_TRIES = 1000


def sequential_questions(
    config: VideoConfig,
    seed: int,
    index: int,
    symbols: np.ndarray,
    belts: np.ndarray,
    queries: int,
    *,
    split: str,
    band: str,
    query_set: str = "uniform",
) -> list[Question]:
    """The membership task's questions about the end of the stream, on belts.

    Raises:
        ValueError: for what `tasks.ask` refuses, and for the query set `order`: its negatives are true windows in
            scrambled order, which the paper's video candidates never are.
    """
    check_name("query_set of sequential video", query_set, QUERY_SETS)
    batch = ask(config.membership, seed, symbols[None], [index], queries, split=split, query_set=query_set, band=band)
    questions = [
        Question(
            candidate=batch.candidates[0, q, : batch.lengths[0, q]].numpy().astype(np.uint8),
            label=int(batch.labels[0, q]),
            age=int(batch.age[0, q]),
            kind=KINDS[int(batch.kinds[0, q])],
            pair=int(batch.pair[0, q]),
            scored=bool(batch.scored[0, q]),
        )
        for q in range(queries)
    ]
    return with_belts(config, seed, index, symbols, belts, questions, split=split)


def with_belts(
    config: VideoConfig,
    seed: int,
    index: int,
    symbols: np.ndarray,
    belts: np.ndarray,
    questions: Sequence[Question],
    *,
    split: str,
) -> list[Question]:
    """The same questions on belts: positives as they occurred, negatives as the stream's rule for belts has it."""
    key = stream_key(config, seed, index, len(symbols), split)
    of_symbol = belt_map(config, seed, index, len(symbols), split=split)
    placed = []
    for question in questions:
        n = len(question.candidate)
        if question.label:
            end = len(symbols) - question.age
            clip = belts[end - n : end]
        elif config.belt_mode == "per_symbol":
            clip = of_symbol[question.candidate]
        else:
            clip = below(words(fold(_FREE_BELTS, key, question.pair), n), BELTS).astype(np.uint8)
        placed.append(replace(question, belts=clip))
    return placed


def spatial_questions(
    config: VideoConfig,
    seed: int,
    index: int,
    symbols: np.ndarray,
    belts: np.ndarray,
    queries: int,
    *,
    split: str,
) -> list[Question]:
    """Pairs of a true clip and the same clip with one letter on a wrong belt, shuffled.

    Raises:
        ValueError: for a number of queries that has no equal halves, a stream shorter than every candidate, or one
            with nothing to move (a single letter repeated).
    """
    if queries < 2 or queries % 2:
        raise ValueError(f"{queries} queries have no equal numbers of positives and negatives; use an even number")
    key = stream_key(config, seed, index, len(symbols), split)
    stream = joint(symbols, belts)
    movable = {n: _movable(config, symbols, n) for n in config.membership.candidate_lengths if n <= len(symbols)}
    if not any(can.any() for can in movable.values()):
        raise ValueError(
            f"no window of {config.membership.candidate_lengths} symbols in a stream of {len(symbols)} (seed {seed}, "
            f"index {index}) holds a letter that occurs in it once, so none can move to another belt; take another "
            f'stream, or belt_mode="iid"'
        )
    questions = []
    for pair in range(queries // 2):
        start, n, place, belt = _move(movable, stream, fold(_WINDOW, key, pair))
        candidate, true = symbols[start : start + n].copy(), belts[start : start + n].copy()
        wrong = true.copy()
        wrong[place] = belt
        age = len(symbols) - n - int(occurrences(stream, joint(candidate, true))[-1])
        questions += [
            Question(candidate, 1, age, "positive", pair, belts=true),
            Question(candidate, 0, -1, "spatial", pair, belts=wrong, detail=place),
        ]
    order = np.argsort(words(fold(_PLACE, key), queries), kind="stable")
    return [questions[i] for i in order]


def _movable(config: VideoConfig, symbols: np.ndarray, n: int) -> np.ndarray:
    """Which letters of which window may change their belt: bool [L - n + 1, n]."""
    windows = np.lib.stride_tricks.sliding_window_view(symbols, n)
    if config.belt_mode == "iid":
        return np.ones(windows.shape, bool)
    return (windows[:, :, None] == windows[:, None, :]).sum(axis=2) == 1


def _move(movable: dict[int, np.ndarray], stream: np.ndarray, key: np.ndarray) -> tuple[int, int, int, int]:
    """A window (start, n), a place in it and another belt for that place, so that the result is absent."""
    lengths = list(movable)
    for attempt in range(_TRIES):
        word = words(fold(key, attempt), 4)
        n = lengths[below(word[0], len(lengths))]
        starts = np.flatnonzero(movable[n].any(axis=1))
        if not starts.size:
            continue
        start = int(starts[below(word[1], len(starts))])
        places = np.flatnonzero(movable[n][start])
        place = int(places[below(word[2], len(places))])
        clip = stream[start : start + n].copy()
        symbol, belt = divmod(int(clip[place]), BELTS)
        belt = (belt + 1 + int(below(word[3], BELTS - 1))) % BELTS
        clip[place] = symbol * BELTS + belt
        if not occurrences(stream, clip).size:
            return start, n, place, belt
    raise ValueError(
        f"{_TRIES} placements of one letter on another belt all occur in this stream of {len(stream)} frames; "
        f'take a shorter stream, longer candidates, or belt_mode="per_symbol"'
    )
