"""Metrics that are functions of sums, against values worked out by hand and against libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, brier_score_loss
from torchmetrics.functional.classification import binary_calibration_error

from scoring import Settings, score, validate
from scoring.cells import split_cells
from scoring.metrics import ARM_A, ARM_B, _columns, _ece
from scoring.statistics import Redraws

FEW = Settings(redraws=20, selectivity_redraws=20)

# Two streams of five questions: label, answer, confidence.
FIRST = [(1, 1, 0.9), (1, 0, 0.6), (0, 0, 0.8), (0, None, None), (1, 1, 0.7)]
SECOND = [(0, 0, 0.9), (0, 1, 0.5), (1, 1, 0.9), (1, None, None), (0, 0, 0.6)]


@pytest.fixture
def scores(rows):
    return score([*rows(FIRST, stream=0), *rows(SECOND, stream=1)], FEW)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("accuracy", 6 / 10),  # 3 of 5 and 3 of 5; the two abstentions are wrong
        ("capacity", 6 / 10),  # band max
        ("coverage", 8 / 10),
        ("answered_accuracy", 6 / 8),
        ("recall", 3 / 5),
        ("specificity", 3 / 5),
        ("balanced_accuracy", 3 / 5),
        ("yes_rate", 4 / 8),
        ("above_chance", 1.0),  # exactly 60% is above
        ("brier", None),
    ],
)
def test_by_hand(scores, metric, value):
    found = scores.value(metric)
    assert found.value == (None if value is None else pytest.approx(value, abs=1e-15))
    assert found.n == 10
    assert found.streams == 2


def test_undefined_values_have_a_reason_and_no_number(rows):
    silent = score(rows([(1, None, None), (0, None, None)]), FEW)
    assert silent.value("accuracy").value == 0
    assert silent.value("coverage").value == 0
    for metric, reason in [
        ("answered_accuracy", "no answered questions"),
        ("yes_rate", "no answered questions"),
        ("aurc", "no answered questions"),
        ("ece", "no answered questions"),
        ("brier", "no probabilities p_yes given"),
        ("selectivity", "arm B kept none of arm A's answers"),
        ("flops", "FLOPs not known"),
    ]:
        assert silent.value(metric).value is None
        assert silent.value(metric).note == reason
    one_class = score(rows([(1, 1, 0.9), (1, 0, 0.8)]), FEW)
    assert one_class.value("recall").value == 0.5
    assert one_class.value("specificity").note == "no question whose answer is no"
    assert one_class.value("balanced_accuracy").note == "one class only"


@pytest.mark.parametrize(
    ("options", "right", "asked", "above"), [(2, 6, 10, 1), (2, 59, 100, 0), (4, 2, 5, 1), (4, 39, 100, 0)]
)
def test_above_chance_is_decided_in_whole_numbers(rows, options, right, asked, above):
    table = rows([(0, 0 if i < right else 1, None) for i in range(asked)], options=options)
    assert score(table, FEW).value("above_chance").value == above


def test_binomial_p(rows):
    table = rows([(1, 1, None)] * 9 + [(1, 0, None)])
    assert score(table, FEW).value("above_chance_p").value == pytest.approx(11 / 1024)


def test_four_way_questions_have_no_recall(rows):
    scores = score(rows([(3, 3, 0.7), (2, 1, 0.4)], options=4), FEW)
    assert scores.value("accuracy").value == 0.5
    assert scores.value("recall").note == "not a yes/no question"


def test_by_candidate_length_and_age(rows):
    table = rows([(1, 1, 0.9), (1, 0, 0.6), (0, 0, 0.8), (1, 1, 0.6), (1, 1, 0.6), (1, 0, 0.7)])
    for row, (length, age) in zip(table, [(3, 0), (3, 1), (4, -1), (4, 2), (4, 3), (3, 9)], strict=True):
        row |= {"candidate_length": length, "age": age}
    scores = score(table, FEW)
    assert scores.value("accuracy", "candidate_length=3").value == pytest.approx(1 / 3)
    assert scores.value("accuracy", "candidate_length=4").value == 1
    ages = {r["slice"]: (r["value"], r["n"]) for r in scores.rows() if r["slice"].startswith("age")}
    assert ages == {"age=0": (1, 1), "age=1": (0, 1), "age=2-3": (1, 2), "age=8-15": (0, 1)}


def test_abstentions_by_kind(rows):
    table = rows([(1, None, None)] * 4)
    for row, kind in zip(table, ["explicit", "format", "format", None], strict=True):
        row["abstain_kind"] = kind
    scores = score(table, FEW)
    assert scores.value("abstain_explicit").value == 0.25
    assert scores.value("abstain_format").value == 0.5
    assert not [r for r in scores.rows() if r["metric"] == "abstain_overflow"]


def test_errors_are_not_abstentions_unless_asked_for(rows):
    table = rows([(1, 1, 0.9), (1, None, None)])
    table[0]["abstain_kind"], table[1]["abstain_kind"] = None, "error"
    with pytest.raises(ValueError, match="1 questions of system 's' ended in an error"):
        score(table, FEW)
    counted = score(table, Settings(redraws=20, errors="abstain"))
    assert counted.value("abstain_error").value == 0.5
    assert counted.value("accuracy").value == 0.5


def test_order_probe_tells_sequences_from_counts(rows):
    occurred, permuted = [(1, 1, 0.9)] * 4, [(0, 1, 0.9)] * 4
    counts_only = score(rows(occurred + permuted, query_set="order"), FEW)
    assert counts_only.value("order_probe").value == 0
    sequences = score(rows([*occurred, (0, 1, 0.9), (0, 0, 0.9), (0, 0, 0.9), (0, 0, 0.9)], query_set="order"), FEW)
    assert sequences.value("order_probe").value == 0.75
    uniform = score(rows(occurred + permuted), FEW)
    assert not [r for r in uniform.rows() if r["metric"] == "order_probe"]


@pytest.mark.parametrize("seed", range(4))
def test_calibration_agrees_with_libraries(simulate, seed):
    table = simulate(0.7, seed=seed, calibrated=1.7)
    scores = score(table, FEW)
    p, label, answer = (table[c].to_numpy() for c in ("p_yes", "label", "answer"))
    assert scores.value("brier").value == pytest.approx(brier_score_loss(label, p), abs=1e-15)
    assert scores.value("balanced_accuracy").value == pytest.approx(balanced_accuracy_score(label, answer), abs=1e-15)
    confidence, correct = np.where(answer == 1, p, 1 - p), (answer == label).astype(int)
    ece = binary_calibration_error(torch.tensor(confidence), torch.tensor(correct), n_bins=15, norm="l1")
    assert scores.value("ece").value == pytest.approx(float(ece), abs=1e-6)


def test_ece_by_hand(rows):
    # Bins of 1/15: 0.9, 0.9 in one (accuracy 1/2), 0.55 and 0.6 in another (accuracy 1); 0.6 is a bin's upper edge.
    scores = score(rows([(1, 1, 0.9), (0, 1, 0.9), (1, 1, 0.55), (0, 0, 0.6)]), FEW)
    assert scores.value("ece").value == pytest.approx((2 * abs(0.5 - 0.9) + 2 * abs(1 - 0.575)) / 4)


def test_sums_agree_with_the_libraries(simulate):
    """Values of Brier and ECE come from scikit-learn, their intervals from sums, which must mean the same number."""
    (cell,) = split_cells(validate(simulate(0.5, seed=3)))
    columns = _columns(cell)
    over = sum(abs(values.sum()) for name, values in columns.items() if name.startswith("over "))
    assert over / cell.answered.sum() == pytest.approx(_ece(cell), abs=1e-12)
    assert columns["brier"].mean() == pytest.approx(brier_score_loss(cell.label, cell.p_yes), abs=1e-12)


def test_payoffs_break_even_where_the_paper_says():
    assert ARM_A.threshold == 0.25
    assert ARM_B.threshold == 0.8
    for arm in (ARM_A, ARM_B):
        right = arm.threshold * 1000
        assert arm.payoff(np.array(right), np.array(1000), np.array(1000)) == pytest.approx(0)


def test_redraws_are_multinomial_over_streams():
    weights = np.concatenate(list(Redraws(7, 4000, "x").blocks()))
    assert weights.shape == (4000, 7)
    assert (weights.sum(axis=1) == 7).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.06)
    np.testing.assert_allclose(weights.var(axis=0), 6 / 7, atol=0.1)
