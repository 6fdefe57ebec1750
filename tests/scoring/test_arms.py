"""Responsiveness, selectivity and payoff under the two payoff arms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from scoring import Settings, score
from scoring.arms import ArmPair, arm_metrics

FEW = Settings(redraws=20, selectivity_redraws=200)


def pair(kept_right, kept_wrong, declined_right, declined_wrong, new=0, silent=0):
    """A pair with these counts, one stream per question."""
    groups = [
        (1, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 0, 0),
    ]  # answered in A, right in A, answered in B
    counts = (kept_right, kept_wrong, declined_right, declined_wrong, new, silent)
    a, right, b = np.repeat(np.array(groups, bool), counts, axis=0).T
    n = len(a)
    return ArmPair(np.arange(n), n, a, right, b, right & b)


def test_the_papers_thresholds_by_hand(rows):
    # Arm A (0.25) answers all; arm B (0.80) keeps the first three. 0.8 itself is kept.
    table = rows([(1, 1, 0.95), (0, 0, 0.8), (1, 0, 0.9), (1, 1, 0.6), (0, 1, 0.7), (1, 0, 0.55)])
    scores = score(table, FEW)
    assert scores.value("coverage_arm_a").value == 1
    assert scores.value("coverage_arm_b").value == 0.5
    assert scores.value("responsiveness").value == 0.5
    assert scores.value("selectivity").value == pytest.approx(2 / 3 - 1 / 3)
    assert scores.value("payoff_a").value == pytest.approx((3 * 3 - 3) / 6)
    assert scores.value("payoff_b").value == pytest.approx((2 - 4) / 6)
    assert scores.value("payoff_a_under_b").value == pytest.approx((3 - 12) / 6)
    assert scores.value("payoff_gain").value == pytest.approx(-2 / 6 + 9 / 6)
    assert (
        scores.value("selectivity").note == "no interval: one stream" or "declined" in scores.value("selectivity").note
    )


def test_its_own_abstentions_stay_abstentions(rows):
    scores = score(rows([(1, None, None), (1, 1, 0.9)]), FEW)
    assert scores.value("coverage_arm_a").value == 0.5
    assert scores.value("payoff_a").value == 1.5


def told(rows, outcomes_a, outcomes_b, **more):
    return [
        *rows([(*o, None) for o in outcomes_a], arm="A", **more),
        *rows([(*o, None) for o in outcomes_b], arm="B", **more),
    ]


def test_told_arms_are_paired_by_question(rows):
    # Question:         kept right, kept wrong, declined right, declined wrong, new in B
    a = [(1, 1), (1, 0), (0, 0), (0, 1), (1, None)]
    b = [(1, 0), (1, 0), (0, None), (0, None), (1, 1)]
    scores = score(told(rows, a, b), FEW)
    found = {
        m: scores.value(m, arm="A,B").value
        for m in ("coverage_arm_a", "coverage_arm_b", "responsiveness", "selectivity")
    }
    assert found == {
        "coverage_arm_a": 0.8,
        "coverage_arm_b": 0.6,
        "responsiveness": pytest.approx(0.2),
        "selectivity": 0,
    }
    assert scores.value("payoff_b", arm="A,B").value == pytest.approx((1 - 2 * 4) / 5)
    assert scores.value("accuracy", arm="A").value == pytest.approx(2 / 5)
    assert scores.value("accuracy", arm="B").value == pytest.approx(1 / 5)


def test_answering_more_when_errors_cost_more_is_negative(rows):
    scores = score(told(rows, [(1, None), (0, 0)], [(1, 1), (0, 0)]), FEW)
    assert scores.value("responsiveness", arm="A,B").value == -0.5


def test_arms_must_ask_the_same_questions(rows):
    with pytest.raises(
        ValueError, match=r"the arms were not asked the same questions .stream 0, query 1 is in one only"
    ):
        score(told(rows, [(1, 1), (0, 0)], [(1, 1)]), FEW)


def test_lengths_are_pooled_as_in_the_papers_table(rows):
    table = [*rows([(1, 1, 0.9), (0, 1, 0.6)], L=8), *rows([(1, 0, 0.85), (0, 0, 0.6)], L=16)]
    scores = score(table, FEW)
    pooled = scores.value("selectivity", L=None)
    assert pooled.value == pytest.approx(1 / 2 - 1 / 2)
    assert (pooled.n, pooled.streams) == (4, 2)


@pytest.mark.parametrize("counts", [(40, 10, 3, 7), (5, 5, 5, 5), (1, 0, 0, 1), (30, 2, 0, 9)])
def test_fisher_is_the_hypergeometric_tail(counts):
    kr, kw, dr, _ = counts
    p = arm_metrics(pair(*counts), "x", 10)["selectivity_fisher_p"].value
    assert p == pytest.approx(hypergeom.sf(kr - 1, sum(counts), kr + dr, kr + kw), rel=1e-9)


def test_fisher_of_the_specification():
    assert arm_metrics(pair(40, 10, 3, 7), "x", 10)["selectivity_fisher_p"].value == pytest.approx(0.00348866, abs=5e-9)


def test_selectivity_by_hand_with_its_bootstrap():
    found = arm_metrics(pair(40, 10, 3, 7, new=4, silent=6), "x", 4000)
    gap = found["selectivity"]
    assert gap.value == pytest.approx(0.8 - 0.3)
    assert (gap.n, gap.note) == (70, None)
    assert 0 < gap.low < 0.5 < gap.high < 1
    assert 0 < found["selectivity_p_le_0"].value < 0.01
    assert found["responsiveness"].value == pytest.approx((60 - 54) / 70)


@pytest.mark.parametrize(
    ("counts", "value", "p", "note"),
    [
        ((4, 2, 0, 0), None, 1, "arm B declined none of arm A's answers"),
        ((0, 0, 4, 2), None, 1, "arm B kept none of arm A's answers"),
        ((6, 0, 6, 0), 0, 1, None),
        ((0, 6, 0, 6), 0, 1, None),
        ((6, 0, 1, 3), 0.75, None, "only 4 declined"),
    ],
)
def test_edges_of_selectivity(counts, value, p, note):
    found = arm_metrics(pair(*counts), "x", 200)
    assert found["selectivity"].value == value
    assert found["selectivity"].note == note
    if p is not None:
        assert found["selectivity_fisher_p"].value == pytest.approx(p)


def test_without_confidences_or_arms_there_is_a_reason(rows):
    scores = score(rows([(1, 1, None), (0, 0, None)]), FEW)
    assert scores.value("responsiveness").value is None
    assert scores.value("responsiveness").note == "no confidences and no arms"
