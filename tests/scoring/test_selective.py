"""The coverage-accuracy curve and what is read off it: by hand, against a slow oracle, and under random tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring import Settings, score, validate
from scoring.cells import split_cells
from scoring.selective import GRID, Ranking, selective_metrics
from scoring.statistics import Redraws

FEW = Settings(redraws=20, selectivity_redraws=20)
TARGETS, COVERAGES = (0.75, 0.9), (0.5, 0.8)


def curve_of(table):
    (cell,) = score(table, FEW).cells
    return cell.curve


def test_by_hand_with_ties(rows):
    # Confidence 0.9: right, right; 0.8: right, wrong (a tie); 0.6: wrong. One question is not answered.
    table = rows([(1, 1, 0.9), (0, 0, 0.9), (1, 1, 0.8), (1, 0, 0.8), (0, 1, 0.6), (1, None, None)])
    scores = score(table, Settings(redraws=20, selective_targets=(0.75, 0.9), risk_coverages=(0.3, 0.5, 0.9)))
    curve = scores.cells[0].curve
    np.testing.assert_allclose(curve.threshold, [0.9, 0.8, 0.6])
    np.testing.assert_allclose(curve.coverage, [2 / 6, 4 / 6, 5 / 6])
    np.testing.assert_allclose(curve.accuracy, [1, 3 / 4, 3 / 5])
    assert curve.count.tolist() == [2, 4, 5]
    # Two answers at risk 0, two at 1/4, one at 2/5.
    assert scores.value("aurc").value == pytest.approx((0 + 0 + 0.25 + 0.25 + 0.4) / 5)
    assert scores.value("coverage_at_accuracy_0.75").value == pytest.approx(4 / 6)
    assert scores.value("coverage_at_accuracy_0.90").value == pytest.approx(2 / 6)
    assert scores.value("risk_at_coverage_0.30").value == 0
    assert scores.value("risk_at_coverage_0.50").value == 0.25
    beyond = scores.value("risk_at_coverage_0.90")
    assert beyond.value is None
    assert beyond.note == "answers only 0.833 of the questions"


def test_a_target_that_no_threshold_reaches_means_silence(rows):
    scores = score(rows([(1, 0, 0.9), (1, 1, 0.6)]), FEW)
    assert scores.value("coverage_at_accuracy_0.90").value == 0


def test_coverages_that_floating_point_rounds_up_still_count(rows):
    # 0.55 * 100 is 55.00000000000001: the 55th answer must be enough, not the 56th.
    table = rows([(1, 1 if i < 55 else 0, 1 - i / 1000) for i in range(100)])
    scores = score(table, Settings(redraws=20, risk_coverages=(0.55,), selective_targets=(0.55,)))
    assert scores.value("risk_at_coverage_0.55").value == 0
    assert scores.value("coverage_at_accuracy_0.55").value == 1


outcomes = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0, 1, None]), st.integers(1, 6), st.integers(0, 3)),
    min_size=1,
    max_size=40,
)


def table_of(drawn):
    return [
        {"system": "s", "band": "max", "L": 8, "stream": stream, "query": i, "label": label, "answer": answer,
         "confidence": None if answer is None else confidence / 7}
        for i, (label, answer, confidence, stream) in enumerate(drawn)
    ]  # fmt: skip


def oracle(rows, targets, coverages):
    """Threshold by threshold, in plain Python, over rows that may repeat."""
    answers = [r for r in rows if r["answer"] is not None]
    points = []
    for threshold in sorted({r["confidence"] for r in answers}, reverse=True):
        kept = [r for r in answers if r["confidence"] >= threshold]
        points.append((len(kept), sum(r["answer"] == r["label"] for r in kept)))
    if not points:
        return None
    risk_of = {r_id: next(1 - c / n for n, c in points if n > i) for i, r_id in enumerate(range(len(answers)))}
    found = [sum(risk_of.values()) / len(answers)]
    found += [max([n for n, c in points if c >= t * n - 1e-9], default=0) / len(rows) for t in targets]
    found += [next((1 - c / n for n, c in points if n >= r * len(rows) - 1e-9), np.nan) for r in coverages]
    return found


@settings(max_examples=150, deadline=None)
@given(outcomes)
def test_value_and_redraws_equal_the_oracle(drawn):
    """A redraw counts as a table does in which each stream's rows are written out as often as it was drawn."""
    rows = table_of(drawn)
    (cell,) = split_cells(validate(rows))
    redraws = Redraws(cell.streams, 6, "oracle")
    found, curve = selective_metrics(cell, redraws, TARGETS, COVERAGES)
    expected = oracle(rows, TARGETS, COVERAGES)
    if expected is None:
        assert curve is None
        assert all(e.value is None for e in found.values())
        return
    values = [np.nan if e.value is None else e.value for e in found.values()]
    np.testing.assert_allclose(values, expected, atol=1e-12)
    ranking = Ranking.by(-np.nan_to_num(cell.confidence), np.flatnonzero(cell.answered))
    names = sorted({str(r["stream"]) for r in rows})
    blocks = [tuple(x) for block in ranking.redrawn(cell, redraws) for x in zip(*block, strict=True)]
    weights = np.concatenate(list(redraws.blocks()))
    for weight, (entered, right, asked) in zip(weights, blocks, strict=True):
        copies = [r for r in rows for _ in range(weight[names.index(str(r["stream"]))])]
        assert asked == len(copies)
        answers = [r for r in copies if r["answer"] is not None]
        assert entered[-1] == len(answers)
        assert right[-1] == sum(r["answer"] == r["label"] for r in answers)
        for threshold, n, c in zip(curve.threshold, entered, right, strict=True):
            kept = [r for r in answers if r["confidence"] >= threshold]
            assert (n, c) == (len(kept), sum(r["answer"] == r["label"] for r in kept))


@settings(max_examples=100, deadline=None)
@given(outcomes, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing_at_all(drawn, random):
    rows = table_of(drawn)
    shuffled = random.sample(rows, len(rows))
    one, two = score(rows, FEW), score(shuffled, FEW)
    assert one.rows() == two.rows()


@settings(max_examples=100, deadline=None)
@given(outcomes)
def test_the_curve_is_monotone_and_has_one_point_per_distinct_confidence(drawn):
    rows = table_of(drawn)
    curve = curve_of(rows)
    confidences = {r["confidence"] for r in rows if r["answer"] is not None}
    if not confidences:
        assert curve is None
        return
    assert len(curve.threshold) == len(confidences)
    assert (np.diff(curve.coverage) > 0).all()
    assert (np.diff(curve.threshold) < 0).all()
    assert ((curve.accuracy >= 0) & (curve.accuracy <= 1)).all()
    answered = sum(r["answer"] is not None for r in rows)
    assert curve.coverage[-1] == pytest.approx(answered / len(rows))


def test_one_confidence_for_all_is_one_point(rows):
    curve = curve_of(rows([(1, 1, 0.7), (0, 1, 0.7), (1, 1, 0.7)]))
    assert curve.coverage.tolist() == [1]
    assert curve.accuracy.tolist() == pytest.approx([2 / 3])


def test_without_confidences_there_is_one_point_and_no_calibration(rows):
    scores = score(rows([(1, 1, None), (0, 1, None), (1, None, None), (1, 1, None)]), FEW)
    curve = scores.cells[0].curve
    assert (curve.coverage.tolist(), curve.accuracy.tolist()) == ([0.75], pytest.approx([2 / 3]))
    assert np.isnan(curve.threshold).all()
    assert (scores.value("aurc").value, scores.value("aurc").note) == (None, "no confidences given")
    (point,) = scores.frontier().points
    assert (point.coverage, point.threshold) == (0.75, None)


def test_bands_surround_the_curve(simulate):
    (cell,) = score(simulate(0.8, streams=40), Settings(redraws=200)).cells
    curve = cell.curve
    at = np.searchsorted(curve.coverage, GRID - 1e-9)
    inside = (curve.low <= curve.accuracy[at] + 1e-12) & (curve.accuracy[at] <= curve.high + 1e-12)
    assert inside.mean() > 0.97
    assert (curve.high - curve.low)[-1] < (curve.high - curve.low)[4]
