"""One symbol, one frame; three belts; the same pixels every time."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tasks.video import (
    BELTS,
    LETTERS,
    SIZE,
    contact_sheet,
    letters,
    look,
    png,
    read_frames,
    render_candidate,
    render_stream,
)

EVERY = [(symbol, belt) for symbol in range(16) for belt in range(3)]


def test_one_frame_per_symbol_in_streams_prefixes_and_candidates(case):
    made = case("sequential", 0)
    whole = list(render_stream(made.symbols, made.belts))
    assert len(whole) == len(made.symbols)
    for k in (1, 7, 63):
        prefix = list(render_stream(made.symbols[:k], made.belts[:k]))
        assert len(prefix) == k
        assert all(np.array_equal(a, b) for a, b in zip(prefix, whole, strict=False))
    for question in made.asked:
        assert sum(1 for _ in render_candidate(question.candidate, question.belts)) == len(question.candidate)
    true = next(q for q in made.asked if q.label)
    end = len(whole) - true.age
    clip = render_candidate(true.candidate, true.belts)
    assert all(np.array_equal(a, b) for a, b in zip(clip, whole[end - len(true.candidate) : end], strict=True))


def test_48_frames_that_an_eye_can_tell_apart(by_eye):
    frames = list(render_stream(*zip(*EVERY, strict=True)))
    assert all(frame.shape == (SIZE, SIZE, 3) and frame.dtype == np.uint8 for frame in frames)
    seen = by_eye(frames)
    assert [belt for _, belt in seen] == [belt for _, belt in EVERY]
    shape_of = {symbol: shape for (shape, _), (symbol, _) in zip(seen, EVERY, strict=True)}
    assert all(shape == shape_of[symbol] for (shape, _), (symbol, _) in zip(seen, EVERY, strict=True))
    assert len(set(shape_of.values())) == 16
    # Any two letters on one belt differ in at least 300 pixels by more than half of the contrast.
    first_belt = np.stack([frames[3 * symbol][150:350, 28:140, 1] for symbol in range(16)]).astype(np.int16)
    apart = (abs(first_belt[:, None] - first_belt[None]) > 96).sum(axis=(2, 3))
    assert apart[~np.eye(16, dtype=bool)].min() > 300


def test_letters_stay_on_their_belts_and_leave_the_rest_alone():
    for belt in range(BELTS):
        frames = np.stack(list(render_stream(range(16), [belt] * 16)))
        changed = (frames != frames[0]).any(axis=(0, 3))
        columns = np.flatnonzero(changed.any(axis=0))
        left = 28 + belt * 140
        assert left + 4 <= columns[0]
        assert columns[-1] < left + 112 - 4


def test_reading_is_the_inverse_and_notices_every_change():
    symbols, belts = zip(*EVERY, strict=True)
    found = read_frames(render_stream(symbols, belts, seed=5), seed=5)
    assert (found[0].tolist(), found[1].tolist()) == (list(symbols), list(belts))
    assert found[0].dtype == found[1].dtype == np.uint8
    frames = [frame.copy() for frame in render_stream([1, 2], [0, 1])]
    frames[1][440, 440, 0] ^= 1
    with pytest.raises(ValueError, match="frame 1 is none of the 48 frames of seed 0"):
        read_frames(frames)
    assert [part.size for part in read_frames([])] == [0, 0]


def test_a_seed_changes_the_texture_only(by_eye):
    one, other = (list(render_stream(*zip(*EVERY, strict=True), seed=seed)) for seed in (0, 1))
    assert all(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert by_eye(one) == by_eye(other)
    assert look(0) != look(1)


def test_the_same_pixels_and_png_bytes_in_another_process():
    code = "from tasks.video import *; print(look(3), png(next(render_stream([9], [1], 3))).hex())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert out.stdout.split() == [look(3), png(next(render_stream([9], [1], 3))).hex()]


def test_frames_are_shared_and_cannot_be_written():
    first, second = render_stream([4, 4], [2, 2])
    assert first is second
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0, 0] = 0


def test_contact_sheet_places_frames_row_by_row():
    frames = list(render_stream(range(5), [0, 1, 2, 0, 1]))
    sheet = contact_sheet(frames, columns=2, shrink=4, gap=3)
    assert sheet.shape == (3 * 115 + 3, 2 * 115 + 3, 3)
    third = sheet[118 : 118 + 112, 3 : 3 + 112]
    small = frames[2].reshape(112, 4, 112, 4, 3).mean(axis=(1, 3))
    assert abs(third - small).max() <= 0.5
    assert (sheet[-115:, -115:] == 255).all()  # there is no sixth frame


def test_letters_of_symbols():
    assert letters([0, 7, 15]) == "A J X"
    assert len(set(LETTERS)) == 16
    assert not set("IOSZ") & set(LETTERS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: render_stream([0, 1], [0]), "same length"),
        (lambda: render_stream([0, 16], [0, 0]), r"symbol 16 at place 1 is outside 0\.\.15"),
        (lambda: render_stream([0], [-1]), r"belt -1 at place 0 is outside 0\.\.2"),
        (lambda: contact_sheet([]), "at least one frame"),
        (lambda: contact_sheet(render_stream([0], [0]), shrink=5), "does not divide"),
    ],
)
def test_refusals_come_at_once_and_name_the_value(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
