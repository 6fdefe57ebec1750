"""Whole scores: comparisons between cells, the paper's example, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from scoring import Settings, score, write_table
from scoring.__main__ import main
from scoring.definitions import definition, markdown, title
from scoring.output import metrics_frame, save_metrics
from scoring.subjects import subjects
from scoring.summary import ROW_COLUMNS
from scoring.tables import ecc_rows

ROOT = Path(__file__).resolve().parents[2]
FAST = Settings(redraws=60, selectivity_redraws=60)


@pytest.fixture(scope="module")
def scores(study):
    return score(study, FAST)


def test_two_systems_equal_in_accuracy_are_told_apart_by_ecc(rows):
    """The paper's Figure 1: the same accuracy on incompressible streams, and one system better on every other axis."""

    def system(name, low, confident_when_right, flops):
        """Ten streams of ten questions: 8 right on max, `low` right on low."""
        table = []
        for band, right in (("max", 8), ("low", low)):
            for stream in range(10):
                truth = [(q % 2, q % 2 if (q + stream) % 10 < right else 1 - q % 2) for q in range(10)]
                sure = [(0.95 if (label == answer) == confident_when_right else 0.6) for label, answer in truth]
                outcomes = [(*t, c) for t, c in zip(truth, sure, strict=True)]
                table += rows(outcomes, system=name, band=band, stream=stream, flops_write=flops, flops_read=1e6)
        return table

    a, b = system("A", 8, False, 8e9), system("B", 10, True, 1e9)
    scores = score([*a, *b], Settings(redraws=200, budgets=(2e9, 10e9)))
    same = [scores.value("capacity", system=s).value for s in "AB"]
    assert same == [0.8, 0.8]

    def at(metric, system, band="max"):
        return scores.value(metric, system=system, band=band).value

    assert at("flops", "A") > at("flops", "B")
    assert at("flops_to_accuracy_0.75", "A") > at("flops_to_accuracy_0.75", "B")
    assert at("accuracy_within_2000_mflops", "A") is None
    assert at("compression", "A", "low") == 0
    assert at("compression", "B", "low") == pytest.approx(0.2)
    assert at("aurc", "A") > 4 * at("aurc", "B")
    assert (at("coverage_at_accuracy_0.95", "A"), at("coverage_at_accuracy_0.95", "B")) == (0, 0.8)
    assert at("selectivity", "A") < 0 < at("selectivity", "B")
    assert at("payoff_b", "A") < 0 < at("payoff_b", "B")
    assert at("payoff_gain", "B") > 0
    points = [(p.coverage, p.accuracy, p.systems) for p in scores.frontier(band="max").points]
    assert points == [(1, 0.8, ("A", "B")), (0.8, 1, ("B",))]
    assert scores.cost_frontier(band="max").on.tolist() == [False, True]


def test_compression_and_its_part_that_symbol_counts_explain(scores):
    where = {"query_set": "uniform", "L": 64}
    for system in ("gla-64", "hist"):
        low, base = (scores.value("accuracy", system=system, band=b, **where).value for b in ("low", "max"))
        assert scores.value("compression", system=system, band="low", **where).value == pytest.approx(low - base)
    gap = {s: scores.value("compression", system=s, band="low", **where).value for s in ("gla-64", "hist")}
    over = scores.value("compression_over_reference", system="gla-64", band="low", **where)
    assert over.value == pytest.approx(gap["gla-64"] - gap["hist"])
    assert over.low < over.value < over.high
    with pytest.raises(KeyError, match="0 rows match"):
        scores.value("compression", system="hist", band="max", **where)


def test_compression_near_the_ceiling_is_marked(rows):
    table = [*rows([(1, 1, 0.9)], band="max"), *rows([(1, 1, 0.9)], band="low")]
    assert score(table, FAST).value("compression").note == "ceiling: both accuracies are at least 0.95"
    alone = score(rows([(1, 1, 0.9)], band="low"), FAST).value("compression")
    assert (alone.value, alone.note) == (None, "no cell of band 'max' at this length")


def test_another_band_can_be_the_incompressible_one(rows):
    """Natural video has bands low and high: density takes the place of entropy."""
    table = [*rows([(1, 1, 0.9), (0, 1, 0.9)], band="high"), *rows([(1, 1, 0.9), (0, 0, 0.9)], band="low")]
    scores = score(table, Settings(redraws=20, base_band="high"))
    assert scores.value("capacity").value == 0.5
    assert scores.value("compression", band="low").value == 0.5
    columns, _ = ecc_rows(scores, subjects(scores)[0], 16)
    assert [(c.metric, c.band) for c in columns[:2]] == [("capacity", "high"), ("accuracy", "low")]
    assert not [c for c in columns if c.metric == "brier"]  # nobody has a number there


def test_learned_needs_the_margin_and_an_interval_above_zero(simulate):
    hist = simulate(0.3, streams=40, system="hist", architecture="hist")
    clear = simulate(1.0, streams=40, system="clear", seed=1, architecture="gla")
    noise = simulate(0.32, streams=40, system="noise", seed=2, architecture="gru")
    scores = score(pl.concat([hist, clear, noise]), Settings(redraws=300, selectivity_redraws=10))
    assert scores.value("learned", system="clear").value == 1
    assert scores.value("learned", system="noise").value == 0
    over = scores.value("accuracy_over_reference", system="clear")
    accuracies = [scores.value("accuracy", system=s).value for s in ("clear", "hist")]
    assert over.value == pytest.approx(accuracies[0] - accuracies[1])
    strict = score(pl.concat([hist, clear]), Settings(redraws=300, margin=0.9, selectivity_redraws=10))
    assert strict.value("learned", system="clear").value == 0
    assert not [r for r in scores.rows() if r["system"] == "hist" and r["metric"] == "learned"]


def test_differences_are_paired_on_the_same_streams(simulate):
    """A system compared with a copy of itself differs by exactly nothing in every redraw."""
    table = simulate(0.6, system="twin", architecture="gru")
    copy = table.with_columns(system=pl.lit("hist"), architecture=pl.lit("hist"))
    over = score(table.vstack(copy), FAST).value("accuracy_over_reference", system="twin")
    assert (over.value, over.low, over.high) == (0, 0, 0)


def test_every_metric_is_defined_and_the_documentation_has_the_same_text(scores):
    for metric in {r["metric"] for r in scores.rows()}:
        assert title(metric)
    documented = (ROOT / "docs" / "scoring.md").read_text(encoding="utf-8")
    assert markdown() in documented, (
        "docs/scoring.md is behind: paste the output of python -m scoring definitions --markdown"
    )
    with pytest.raises(KeyError, match="no metric 'acuracy'"):
        definition("acuracy")


def test_every_number_has_an_interval_or_a_reason(scores):
    constant = {"learned"}
    for row in scores.rows():
        if row["value"] is None:
            assert row["note"]
        elif row["low"] is None or row["high"] is None:
            assert row["note"] or row["metric"] in constant or row["metric"].endswith("_p_le_0")
        else:
            assert row["low"] <= row["high"]


def test_questions_lists_what_was_asked(scores):
    asked = scores.questions()
    assert len(asked) == 8
    assert (asked[0].system, asked[0].query_set, asked[0].band, asked[0].L) == ("", "order", "low", 32)


def test_saved_metrics(tmp_path, scores):
    text, table = save_metrics(scores, tmp_path)
    found = json.loads(text.read_text())
    assert len(found["metrics"]) == len(scores.rows())
    assert found["settings"]["redraws"] == 60
    assert found["provenance"]["seeds"] == [3]
    frame = pl.read_parquet(table)
    assert frame.columns == list(ROW_COLUMNS)
    assert frame.equals(metrics_frame(scores))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"redraws": 0}, "at least one bootstrap redraw"),
        ({"queries": 0}, "queries=0: a stream serves at least one question"),
        ({"budgets": (0.0,)}, "budget 0.0: FLOPs budgets are positive"),
        ({"selective_targets": (1.2,)}, "target 1.2"),
        ({"errors": "ignore"}, "errors='ignore'"),
    ],
)
def test_impossible_settings_are_refused(changes, message, rows):
    with pytest.raises(ValueError, match=message):
        score(rows([(1, 1, 0.9)]), Settings(**changes))


def test_one_name_must_not_mean_two_things(rows):
    table = [*rows([(1, 1, 0.9)], architecture="gla"), *rows([(1, 1, 0.9)], band="low", architecture="gru")]
    with pytest.raises(ValueError, match="system 's' has several architectures or widths"):
        score(table, FAST)


@pytest.fixture(scope="module")
def table_file(tmp_path_factory, study):
    return str(write_table(study, tmp_path_factory.mktemp("tables") / "study.parquet"))


def test_command_metrics(table_file, capsys):
    assert main(["metrics", table_file, "--redraws", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"settings", "provenance", "metrics"}
    assert list(found["metrics"][0]) == list(ROW_COLUMNS)
    assert main(["metrics", table_file, "--redraws", "20", "--tsv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == list(ROW_COLUMNS)
    assert len(lines) == len(found["metrics"]) + 1
    assert main(["metrics", table_file, "--redraws", "20"]) == 0
    out = capsys.readouterr().out
    assert "gla-64  membership  test  uniform  max  L=32" in out
    assert "all of gla" in out


def test_command_frontier(table_file, capsys):
    arguments = ["frontier", table_file, "--redraws", "20", "--band", "low", "--length", "64", "--budget", "5000"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "low, L=64, at most 5,000 MFLOPs: 2 of 3 systems" in out
    assert "low, L=64, no budget: 3 of 3 systems" in out
    assert main([*arguments[:4], "--band", "none"]) == 2
    assert "no answers at this band and length" in capsys.readouterr().err


def test_command_schema_and_definitions(capsys):
    assert main(["schema"]) == 0
    assert "confidence" in capsys.readouterr().out
    assert main(["definitions"]) == 0
    assert "compression_over_reference" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["metrics", "gone.csv"], ["metrics", "TABLE", "--redraws", "0"], ["report", "gone.csv", "--out", "x"]]
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, table_file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([table_file if a == "TABLE" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_scoring_needs_no_torch(table_file):
    """The whole package, command line included, in a fresh process: nothing in it loads torch."""
    script = (
        "import sys\n"
        "import scoring.report, scoring.figures, scoring.wandb_log\n"
        "from scoring.__main__ import main\n"
        f"code = main(['metrics', {table_file!r}, '--redraws', '5', '--tsv'])\n"
        "sys.exit(code or [m for m in ('torch', 'torchmetrics', 'lightning', 'wandb') if m in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("system\t")
