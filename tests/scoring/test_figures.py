"""Static figures: all are drawn, carry their chance line and labels, and can be read in grey."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from scoring import Settings, score
from scoring.figures import all_figures, coverage_accuracy_figure, frontier_figure, save_figures
from scoring.looks import LOOKS, labels, look, marker, spread
from scoring.report import write_report
from scoring.subjects import subjects

FAST = Settings(redraws=40, selectivity_redraws=40)


@pytest.fixture(scope="module")
def scores(study):
    return score(study.filter(study["query_set"] == "uniform"), FAST)


def test_every_figure_is_drawn_with_its_chance_line_and_units(scores):
    (subject,) = subjects(scores)
    names = [name for name, _ in all_figures(scores)]
    per_length = [f"{kind}-uniform-L{L}" for L in (32, 64) for kind in ("frontier", "cost_accuracy", "age", "ecc")]
    assert names == ["coverage_accuracy-uniform", "accuracy_length-uniform", *per_length]
    figure = coverage_accuracy_figure(scores, subject)
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert any(np.allclose(line.get_ydata(), 0.5) for line in axis.lines)
        assert axis.get_xlabel() == "coverage: share of questions answered"
        assert len(axis.collections) == 3  # one interval band per system


def test_files_are_written_and_equal_scores_give_equal_files(scores, tmp_path, monkeypatch):
    import scoring.figures as figures

    monkeypatch.setattr(figures, "all_figures", lambda s: [("f", frontier_figure(s, subjects(s)[0], 32))])
    first = save_figures(scores, tmp_path / "a")
    second = save_figures(scores, tmp_path / "b")
    assert [p.name for p in first] == ["f.png", "f.svg"]
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(first, second, strict=True))
    pixels = np.asarray(Image.open(first[0]).convert("L"))
    assert pixels.min() < 60
    assert pixels.max() == 255


def test_figures_are_left_out_where_there_is_nothing_to_draw(rows):
    plain = score(rows([(1, 1, None), (0, 1, None)]), FAST)
    names = ["coverage_accuracy-uniform", "accuracy_length-uniform", "frontier-uniform-L16", "ecc-uniform-L16"]
    assert [name for name, _ in all_figures(plain)] == names
    silent = score(rows([(1, None, None), (0, None, None)]), FAST)
    assert [name for name, _ in all_figures(silent)] == ["accuracy_length-uniform", "ecc-uniform-L16"]


def test_a_ragged_table_and_one_of_solvers_only_are_drawn(rows, tmp_path):
    outcomes = [(1, 1, 0.9), (0, 1, 0.7)]
    ragged = [
        *rows(outcomes, L=8),
        *rows(outcomes, L=16),
        *rows(outcomes, L=8, band="low", flops_write=1.0, flops_read=1.0),
    ]
    solvers = rows(outcomes, system="hist")
    for table in (ragged, solvers):
        scores = score(table, FAST)
        assert save_figures(scores, tmp_path, formats=["svg"])
        assert write_report(scores, tmp_path / "report.html").exists()


def test_looks_are_fixed_and_distinct():
    systems = {k: v for k, v in LOOKS.items() if k not in ("coin", "hist", "hist2", "set1", "set2", "set3", "exact")}
    assert len({v.colour for v in systems.values()}) == len(systems)
    # In grey, two architectures of similar lightness still differ in their dash or are at least a shade apart.
    luminance = {k: np.dot(to_rgb(v.colour), (0.299, 0.587, 0.114)) for k, v in systems.items()}
    for one in systems:
        for two in systems:
            if one < two and systems[one].dash == systems[two].dash:
                assert abs(luminance[one] - luminance[two]) > 0.03, (one, two)
    assert look("somebody's own") == look("somebody's own")
    assert [marker(w) for w in (64, 128, None)] == ["o", "^", "s"]


def test_labels_tell_systems_of_one_kind_apart(simulate):
    one, two = (simulate(0.5, system=s, architecture="gla", width=64, streams=2) for s in ("run-a", "run-b"))
    cells = list(score(one.vstack(two), FAST).cells)
    assert labels(cells) == {"run-a": "GLA D=64 (run-a)", "run-b": "GLA D=64 (run-b)"}
    assert labels(cells[:1]) == {"run-a": "GLA D=64"}


def test_spread_keeps_order_and_distance():
    assert spread([0.5, 0.1, 0.51, 0.52], 0.1) == pytest.approx([0.5, 0.1, 0.6, 0.7])
