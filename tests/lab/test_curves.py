"""Figures of running accuracy and of the payoff arms, from tables made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lab.curves import arms_figure, running_accuracy_figure, save_curves
from scoring import Settings, score
from scoring.subjects import subjects

FEW = Settings(redraws=20, selectivity_redraws=50)


def table(system: str, costs: bool = True, arms: tuple[str | None, ...] = (None, "A", "B")) -> list[dict]:
    """Two bands, two streams of four questions: the dear half is wrong; arm B drops it."""
    rows, kind = [], "explicit"
    for band in ("low", "max"):
        for stream in range(2):
            for query in range(4):
                for arm in arms:
                    right = query < 2
                    answer = None if arm == "B" and not right else (query % 2 if right else 1 - query % 2)
                    rows.append(
                        {
                            "system": system, "band": band, "L": 8, "stream": stream, "query": query, "arm": arm,
                            "label": query % 2, "answer": answer, "abstain_kind": None if answer is not None else kind,
                            "flops_write": 1e9 if costs else None, "flops_read": 1e9 * (query + 1) if costs else None,
                        }
                    )  # fmt: skip
    return rows


def test_running_accuracy_rises_with_the_cheap_answers_and_then_stays():
    scores = score(table("mine"), FEW)
    (subject,) = subjects(scores)
    figure = running_accuracy_figure(scores, subject)
    (axis,) = figure.axes
    lines = [line for line in axis.get_lines() if line.get_label() in ("low entropy", "max entropy")]
    assert len(lines) == 2
    for line in lines:
        x, y = line.get_data()
        assert np.array_equal(x, np.repeat([2e9, 3e9, 4e9, 5e9], 2))
        assert np.allclose(y, [0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert {text.get_text() for text in axis.texts} == {"50"}


def test_systems_without_flops_are_left_out():
    scores = score([*table("mine"), *table("closed", costs=False)], FEW)
    (subject,) = subjects(scores)
    titles = [axis.get_title() for axis in running_accuracy_figure(scores, subject).axes]
    assert titles == ["mine, L = 8"]
    assert running_accuracy_figure(score(table("closed", costs=False), FEW), subject) is None


def test_both_arms_are_drawn():
    scores = score(table("mine"), FEW)
    (subject,) = subjects(scores)
    coverage, payoff = arms_figure(scores, subject).axes
    widths = [[bar.get_width() for bar in bars] for bars in coverage.containers if hasattr(bars, "patches")]
    assert widths == [[1.0, 1.0], [0.5, 0.5]]
    widths = [[bar.get_width() for bar in bars] for bars in payoff.containers if hasattr(bars, "patches")]
    assert widths[0] == pytest.approx([(4 - 4 * 4) / 8] * 2)
    assert widths[1] == pytest.approx([0.5, 0.5])


def test_nothing_is_drawn_where_nobody_was_told():
    scores = score(table("mine", arms=(None,)), FEW)
    (subject,) = subjects(scores)
    assert arms_figure(scores, subject) is None


def test_files_are_named_by_subject(tmp_path):
    saved = save_curves(score(table("mine"), FEW), tmp_path, ("png",))
    assert [path.name for path in saved] == ["running_accuracy-uniform.png", "payoff_arms-uniform.png"]
    assert all(path.stat().st_size > 5000 for path in saved)
