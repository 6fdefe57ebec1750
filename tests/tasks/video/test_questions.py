"""Both variants and EasyHuman's questions, read back from rendered frames by eye and searched by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from tasks import MembershipConfig, streams
from tasks.video import (
    BELTS,
    VideoConfig,
    assign_belts,
    belt_map,
    joint,
    render_candidate,
    render_stream,
    sequential_questions,
    spatial_questions,
    with_belts,
)

MODES = ("per_symbol", "iid")
PINNED_MAP = "0112101220022020"
PINNED_SPATIAL = [([15, 1, 14], [1, 1, 2], 0), ([15, 1, 14], [0, 1, 2], 1)]


def occurs(clip: list, stream: list) -> list[int]:
    return [i for i in range(len(stream) - len(clip) + 1) if stream[i : i + len(clip)] == clip]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["sequential", "near", "spatial", "easyhuman"])
def test_positives_are_shown_and_negatives_are_not(case, by_eye, variant, mode):
    for index in range(3):
        made = case(variant, index, mode=mode)
        stream = by_eye(render_stream(made.symbols, made.belts))
        assert sum(q.label for q in made.asked) * 2 == len(made.asked)
        for question in made.asked:
            assert len(question.belts) == len(question.candidate)
            found = occurs(by_eye(render_candidate(question.candidate, question.belts)), stream)
            if question.label:
                assert question.age == len(stream) - len(question.candidate) - found[-1]
            else:
                assert not found
                assert question.age == -1


@pytest.mark.parametrize("band", ["max", "low"])
@pytest.mark.parametrize("mode", MODES)
def test_a_spatial_negative_is_its_positive_with_one_letter_moved(case, mode, band):
    for index in range(20):
        made = case("spatial", index, mode=mode, band=band)
        for pair in range(4):
            positive, negative = sorted((q for q in made.asked if q.pair == pair), key=lambda q: -q.label)
            assert negative.candidate.tolist() == positive.candidate.tolist()
            moved = np.flatnonzero(negative.belts != positive.belts).tolist()
            assert moved == [negative.detail]
            if mode == "per_symbol":
                assert (negative.candidate == negative.candidate[moved[0]]).sum() == 1


def test_sequential_candidates_are_those_of_the_text_task(case):
    from tasks import ask

    made = case("sequential", 3)
    batch = ask(MembershipConfig(), 0, made.symbols[None], [3], 8, split="test")
    for q, question in enumerate(made.asked):
        assert question.candidate.tolist() == batch.candidates[0, q, : batch.lengths[0, q]].tolist()
        assert question.label == batch.labels[0, q]


def test_belts_follow_the_letter_or_nothing(case):
    config = VideoConfig()
    made = case("sequential", 0, length=256)
    of_symbol = belt_map(config, 0, 0, 256, split="test")
    assert made.belts.tolist() == of_symbol[made.symbols].tolist()
    for question in made.asked:
        assert question.belts.tolist() == of_symbol[question.candidate].tolist()
    free = case("sequential", 0, length=4096, mode="iid")
    assert all(len(set(free.belts[free.symbols == s].tolist())) == BELTS for s in range(16))
    assert np.bincount(free.belts) / 4096 == pytest.approx([1 / 3] * 3, abs=0.03)


def test_every_symbol_of_a_map_is_uniform_over_belts_and_independent_of_the_others():
    maps = np.stack([belt_map(VideoConfig(), 0, i, 64, split="test") for i in range(3000)])
    share = np.stack([(maps == belt).mean(axis=0) for belt in range(BELTS)])
    assert share == pytest.approx(np.full((3, 16), 1 / 3), abs=0.035)
    together = (maps[:, :, None] == maps[:, None, :]).mean(axis=0)[~np.eye(16, dtype=bool)]
    assert together == pytest.approx(1 / 3, abs=0.04)


def test_spatial_lengths_positions_and_moves_are_uniform(case):
    asked = [q for i in range(400) for q in case("spatial", i, length=40).asked]
    positives = [q for q in asked if q.label]
    lengths = np.bincount([len(q.candidate) for q in positives], minlength=7)[3:] / len(positives)
    assert lengths == pytest.approx([0.25] * 4, abs=0.035)
    starts = [(40 - len(q.candidate) - q.age) / (40 - len(q.candidate)) for q in positives]
    assert np.histogram(starts, 4, (0, 1))[0] / len(starts) == pytest.approx([0.25] * 4, abs=0.035)
    places = [q.detail / (len(q.candidate) - 1) for q in asked if not q.label]
    assert np.mean(places) == pytest.approx(0.5, abs=0.03)


def test_same_item_whatever_was_made_before(case):
    for variant in ("sequential", "spatial", "easyhuman"):
        first = case(variant, 5)
        case(variant, 6)
        again = case(variant, 5)
        assert first.belts.tolist() == again.belts.tolist()
        for a, b in zip(first.asked, again.asked, strict=True):
            assert (a.candidate.tolist(), a.belts.tolist(), a.label) == (
                b.candidate.tolist(),
                b.belts.tolist(),
                b.label,
            )
    few, many = case("spatial", 5, queries=2), case("spatial", 5, queries=8)
    pair = {q.label: q.candidate.tolist() for q in many.asked if q.pair == 0}
    assert {q.label: q.candidate.tolist() for q in few.asked} == pair


def test_the_belts_of_one_seed_stay_what_they_are():
    """A change here changes published data: raise VERSION and say so."""
    assert "".join(map(str, belt_map(VideoConfig(), 0, 0, 64, split="test"))) == PINNED_MAP
    config, symbols = VideoConfig(), streams(MembershipConfig(), 0, [0], 64, split="test")[0]
    belts = assign_belts(config, 0, 0, symbols, split="test")
    asked = spatial_questions(config, 0, 0, symbols, belts, 2, split="test")
    assert [(q.candidate.tolist(), q.belts.tolist(), q.label) for q in asked] == PINNED_SPATIAL


def test_a_move_that_makes_another_true_window_is_not_taken():
    """Belts per frame can make the moved clip occur elsewhere: A on every belt, then only other letters may move."""
    symbols = np.array([0, 0, 0] * 9, np.uint8)
    belts = np.array([a for b in range(3) for c in range(3) for a in (b, c, 0)], np.uint8)
    config = VideoConfig("iid", MembershipConfig(candidate_lengths=(3,)))
    stream = joint(symbols, belts).tolist()
    for question in spatial_questions(config, 0, 0, symbols, belts, 40, split="test"):
        clip = joint(question.candidate, question.belts).tolist()
        assert bool(occurs(clip, stream)) == bool(question.label)


def refused(symbols, belts=None, queries=2, **options):
    symbols = np.array(symbols, np.uint8)
    belts = np.zeros(len(symbols), np.uint8) if belts is None else np.array(belts, np.uint8)
    mode = options.pop("mode", "per_symbol")
    return spatial_questions(VideoConfig(mode), 0, 0, symbols, belts, queries, split="test", **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: refused([3] * 12), "holds a letter that occurs in it once"),
        (lambda: refused([1, 2]), "holds a letter that occurs in it once"),
        (lambda: refused([1, 2, 3, 4], queries=3), "even number"),
        (lambda: VideoConfig("per-symbol"), "did you mean 'per_symbol'"),
        (lambda: VideoConfig(version=0), "version 0"),
        (lambda: belt_map(VideoConfig(), 0, 0, 8, split="tset"), "did you mean 'test'"),
    ],
)
def test_refusals_say_what_to_do(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_scrambled_windows_are_no_video_candidates(case):
    made = case("sequential", 0)
    with pytest.raises(ValueError, match="unknown query_set of sequential video 'order'"):
        sequential_questions(
            VideoConfig(), 0, 0, made.symbols, made.belts, 4, split="test", band="max", query_set="order"
        )


def test_questions_keep_everything_but_belts(case):
    made = case("easyhuman", 2)
    bare = with_belts(VideoConfig(), 0, 2, made.symbols, made.belts, made.asked, split="test")
    assert [q.meta for q in bare] == [q.meta for q in made.asked]
