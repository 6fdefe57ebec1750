"""A classifier that sees candidates only stays at chance, and would notice if there were something to see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.video import appearance, render_candidate


def judge(questions):
    clips = (list(render_candidate(q.candidate, q.belts)) for _, q in questions)
    return appearance(clips, [q.label for _, q in questions], [index for index, _ in questions])


@pytest.mark.parametrize(("variant", "band"), [("sequential", "max"), ("spatial", "max"), ("spatial", "low")])
def test_a_look_at_2000_candidates_says_nothing(case, variant, band):
    found = judge([(i, q) for i in range(250) for q in case(variant, i, band=band).asked])
    assert found.items == 2000
    assert found.at_chance, found
    assert found.accuracy <= 0.55


def test_a_look_at_easyhuman_candidates_says_nothing(case):
    found = judge([(i, q) for i in range(600) for q in case("easyhuman", i, queries=2).asked])
    assert found.at_chance, found
    assert found.accuracy <= 0.55


def test_uniform_negatives_of_low_entropy_streams_show(case):
    """The known weakness of the paper's negatives, in text as in video: true windows repeat letters."""
    found = judge([(i, q) for i in range(60) for q in case("sequential", i, band="low").asked])
    assert found.interval[0] > 0.65


def test_a_letter_on_two_belts_would_show(case):
    """Spatial negatives made without the rule that only a letter seen once may move."""
    planted = []
    for i in range(100):
        for q in case("spatial", i, band="low").asked:
            if not q.label:
                belts = q.belts.copy()
                twice = [p for p, s in enumerate(q.candidate) if (q.candidate == s).sum() > 1]
                if twice:
                    belts[twice[0]] = (belts[twice[0]] + 1) % 3
                q = replace(q, belts=belts)
            planted.append((i, q))
    assert judge(planted).interval[0] > 0.6


def test_an_interval_needs_streams(case):
    with pytest.raises(ValueError, match="3 streams are too few"):
        judge([(i, q) for i in range(3) for q in case("spatial", i).asked])


def test_what_shows_is_found(case):
    questions = [(i, q) for i in range(100) for q in case("spatial", i).asked]
    found = judge([(i, replace(q, label=int(len(q.candidate) > 4))) for i, q in questions])
    assert found.interval[0] > 0.95
