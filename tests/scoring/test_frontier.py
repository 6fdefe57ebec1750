"""Frontiers and costs, by hand and against the definition of dominance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring import Settings, score
from scoring.efficiency import flops_saved
from scoring.frontier import cost_frontier, undominated
from scoring.subjects import distinct_budgets, mflops

FEW = Settings(redraws=50, selectivity_redraws=10)
points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25)


@settings(max_examples=200, deadline=None)
@given(points)
def test_undominated_is_what_the_definition_says(drawn):
    x, y = np.array(drawn, float).T

    def dominated(i):
        return any((x[j] >= x[i] and y[j] >= y[i]) and (x[j] > x[i] or y[j] > y[i]) for j in range(len(x)))

    found = undominated(x, y)
    assert sorted(found) == [i for i in range(len(x)) if not dominated(i)]
    assert (np.diff(x[found]) <= 0).all()
    assert (np.diff(y[found]) >= 0).all()


def two_systems(rows):
    """`wide` answers everything rather well; `sharp` knows when it knows."""
    wide = [(1, 1, 0.9), (1, 1, 0.8), (1, 0, 0.8), (1, 1, 0.7)]
    sharp = [(1, 1, 0.9), (1, 1, 0.9), (1, 0, 0.6), (1, 0, 0.5)]
    return [
        *rows(wide, system="wide", flops_write=9e9, flops_read=1e9),
        *rows(sharp, system="sharp", flops_write=1e9, flops_read=1e9),
    ]


def test_coverage_accuracy_frontier_by_hand(rows):
    scores = score(two_systems(rows), FEW)
    free = scores.frontier()
    # sharp is right on its two surest (coverage 1/2); wide is right 3 times of 4 at full coverage.
    found = [(p.coverage, p.accuracy, p.threshold, p.systems) for p in free.points]
    assert found == [(1, 0.75, 0.7, ("wide",)), (0.5, 1, 0.9, ("sharp",))]
    assert free.admitted == ("sharp", "wide")
    within = scores.frontier(budget=2e9)  # inclusive
    found = [(p.coverage, p.accuracy, p.systems) for p in within.points]
    assert found == [(1, 0.5, ("sharp",)), (0.75, pytest.approx(2 / 3), ("sharp",)), (0.5, 1, ("sharp",))]
    assert within.admitted == ("sharp",)
    assert scores.frontier(budget=1e9).points == ()


def test_equal_points_keep_all_names(rows):
    same = [(1, 1, 0.9), (0, 1, 0.6)]
    scores = score([*rows(same, system="b"), *rows(same, system="a")], FEW)
    assert [p.systems for p in scores.frontier().points] == [("a", "b"), ("a", "b")]
    assert scores.frontier().support == {"a": 1.0, "b": 1.0}


def test_unknown_costs_and_reference_solvers(rows):
    outcomes = [(1, 1, 0.9), (0, 0, 0.8)]
    table = [*rows(outcomes, system="free"), *rows(outcomes, system="exact")]
    scores = score(table, FEW)
    assert scores.frontier().admitted == ("free",)
    assert scores.frontier(budget=1e12).admitted == ()
    assert scores.cost_frontier().cells == ()


def test_frontiers_need_one_kind_of_question(study):
    scores = score(study, FEW)
    with pytest.raises(ValueError, match="choose one query_set and one band and one L"):
        scores.frontier()
    assert scores.frontier(query_set="uniform", band="low", L=64).points


def test_support_says_how_firm_a_place_is(simulate):
    strong, weak = simulate(1.5, streams=30, system="strong"), simulate(0.4, streams=30, system="weak", seed=1)
    near = simulate(1.5, streams=30, system="near", seed=2)
    clear = score(strong.vstack(weak), FEW).frontier()
    assert clear.support["strong"] == 1
    assert clear.support["weak"] < 0.5
    close = score(strong.vstack(near), FEW).frontier()
    assert min(close.support.values()) > 0.5
    at = np.searchsorted(np.linspace(0.01, 1, 100), 1)
    assert close.low[at] < close.points[0].accuracy < close.high[at]


def test_cost_frontier_by_hand():
    flops, accuracy = np.array([4.0, 1.0, 2.0, 2.0, 3.0]), np.array([0.9, 0.6, 0.8, 0.7, 0.8])
    assert cost_frontier(flops, accuracy).tolist() == [1, 2, 0]


def test_running_accuracy_of_answers_that_cost_differently(rows):
    # Sorted by cost: right at 1, wrong at 2, two right at 3 (a tie, one step), right at 8, abstention at 9.
    table = rows([(1, 1, None), (1, 0, None), (1, 1, None), (0, 0, None), (1, 1, None), (1, None, None)])
    for row, read in zip(table, [1, 2, 3, 3, 8, 9], strict=True):
        row |= {"flops_write": 0.0, "flops_read": float(read)}
    scores = score(table, Settings(redraws=20, accuracy_targets=(0.25, 0.5, 0.9), budgets=(0.5, 1e6, 3e6, 2.9)))
    cost = scores.cells[0].cost
    np.testing.assert_allclose(cost.flops, [1, 2, 3, 8, 9])
    np.testing.assert_allclose(cost.running, np.array([1, 1, 3, 4, 4]) / 6)
    assert scores.value("flops_to_accuracy_0.25", system="s").value == 3
    assert scores.value("flops_to_accuracy_0.50", system="s").value == 3
    assert scores.value("flops_to_accuracy_0.90", system="s").value is None
    np.testing.assert_allclose(cost.within, [np.nan, 4 / 6, 4 / 6, 1 / 6])
    assert scores.value("flops", system="s").value == pytest.approx(26 / 6)


def test_queries_share_the_write(rows):
    table = two_systems(rows)
    alone, shared = (score(table, Settings(redraws=20, queries=q)) for q in (1, 9))
    assert alone.value("flops", system="wide").value == 10e9
    assert shared.value("flops", system="wide").value == 2e9
    cells = shared.cost_frontier().cells
    assert [c.system for c in cells] == ["sharp", "wide"]
    assert shared.cost_frontier().on.tolist() == [True, True]


def test_group_efficiency_takes_the_cheapest_and_the_best(study):
    scores = score(study, Settings(redraws=50, selectivity_redraws=10, accuracy_targets=(0.7,), budgets=(5e9, 30e9)))
    at = {"query_set": "uniform", "band": "max", "L": 32}
    small, large = (scores.value("accuracy", system=s, **at).value for s in ("gla-64", "gla-128"))
    assert large > small > 0.7
    gla = {"system": None, "architecture": "gla", **at}
    assert scores.value("flops_to_accuracy_0.70", **gla).value == pytest.approx(2.001e9)
    assert scores.value("accuracy_within_5000_mflops", **gla).value == small
    assert scores.value("accuracy_within_30000_mflops", **gla).value == large


def test_flops_saved_by_hand():
    # On max: 0.6 at 1, 0.8 at 5. On low: 0.85 at 1, 0.9 at 5. Both reach 0.8: at 5 on max, at 1 on low.
    cost = np.array([1.0, 5.0])
    saved, common = flops_saved(cost, np.array([[0.85, 0.9]]), cost, np.array([[0.6, 0.8]]))
    assert (saved[0], common[0]) == (4, 0.8)


def test_a_single_cost_saves_nothing(rows, study):
    scores = score(study, FEW)
    one = scores.value("flops_saved", system=None, architecture="gru", query_set="uniform", band="low", L=32)
    assert one.value is None
    assert "several widths" in one.note
    several = scores.value("flops_saved", system=None, architecture="gla", query_set="uniform", band="low", L=32)
    assert several.value is not None
    assert several.note.startswith("at accuracy 0.")


def test_budgets_that_admit_the_same_systems_are_one():
    assert distinct_budgets([1e9, 2e9], (1.75e9, 10e9, 30e9)) == [1.75e9, 10e9]
    assert distinct_budgets([1e9, 1e9], (1.75e9, 10e9, 30e9)) == [1.75e9]
    assert distinct_budgets([1e9, None], (1.75e9, 10e9)) == [1.75e9, None]
    assert distinct_budgets([1e12], (1.75e9, 10e9)) == [None]
    assert [mflops(f) for f in (1.75e9, 3.294e6, 1.2345e13)] == ["1,750 MFLOPs", "3.29 MFLOPs", "12.3 TFLOPs"]
