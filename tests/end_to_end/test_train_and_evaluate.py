"""From a command to a report, and what is lost (nothing) when something goes wrong on the way."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest

from backbones import MembershipModel
from backbones.run import Run

SMALL = ("lengths=[32,48]", "streams=4", "queries=8", "redraws=20", "threads=1", "device=cpu")


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Run:
    """A run of a few steps, made once by the real command."""
    import subprocess
    import sys

    from tests.conftest import ROOT

    outputs = tmp_path_factory.mktemp("outputs")
    command = [sys.executable, str(ROOT / "train.py"), "preset=smoke", "logger=csv", "threads=1", "device=cpu"]
    command += ["schedule.steps=20", "validation.every=10", f"outputs={outputs}", "name=small"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=outputs, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"python evaluate.py run={outputs / 'small'}" in done.stdout
    return Run(outputs / "small")


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """A copy that a test may damage."""
    return Run(shutil.copytree(trained.path, tmp_path / "outputs" / "small"))


def evaluate(run_script, run: Run, *more: str) -> tuple[int, str, str]:
    return run_script("evaluate.py", f"run={run.path}", f"outputs={run.path.parent}", *SMALL, *more)


def test_the_run_folder_holds_what_it_says(trained):
    assert trained.record()["status"] == "finished"
    assert trained.record()["model"]["name"] == "transformer_conv"
    metrics = pl.read_csv(trained.path / "metrics.csv")
    assert metrics.columns == ["step", "name", "value"]
    assert {"train/loss", "val/accuracy", "val/accuracy/L64", "val/recall/L16"} <= set(metrics["name"])
    assert isinstance(trained.load_model(), MembershipModel)


def test_evaluation_answers_every_question_once(run_script, run):
    code, out, err = evaluate(run_script, run)
    assert code == 0, err
    assert "accuracy, near negatives" in out
    (table,) = run.evaluation.glob("responses-*.parquet")
    rows = pl.read_parquet(table)
    cells = rows.group_by("query_set", "band", "L").agg(
        pl.len(), pl.col("label").mean(), pl.col("flops_write").first(), pl.col("stream").n_unique()
    )
    assert len(cells) == 3 * 2 * 2
    assert set(cells["label"]) == {0.5}
    assert (cells["stream"] == 4).all()
    model = run.load_model()
    for length, flops in rows.select("L", "flops_write").unique().iter_rows():
        assert flops == model.price().write(length)
    assert rows.select((pl.col("answer") == (pl.col("p_yes") > 0.5).cast(int)).all()).item()
    metrics = json.loads((run.evaluation / "metrics.json").read_text())["metrics"]
    assert {"small", "hist", "exact"} <= {row["system"] for row in metrics}
    exact = [r["value"] for r in metrics if r["system"] == "exact" and r["metric"] == "accuracy" and not r["slice"]]
    assert set(exact) == {1.0}
    assert (run.evaluation / "report.html").stat().st_size > 10_000
    assert list((run.evaluation / "figures").glob("coverage_accuracy-*.png"))

    before = table.stat().st_mtime_ns
    assert evaluate(run_script, run, "report=false")[0] == 0
    assert table.stat().st_mtime_ns == before, "a finished evaluation asked again"


def test_a_killed_evaluation_continues(run_script, run, monkeypatch):
    """Stop after two parts; the same command completes the table, and it equals one made in one go."""
    import lab.evaluation as evaluation

    assert evaluate(run_script, run, "report=false")[0] == 0
    (table,) = run.evaluation.glob("responses-*.parquet")
    whole = pl.read_parquet(table)
    table.unlink()

    asked, rows = [], evaluation.rows

    def failing(*arguments):
        if len(asked) == 2 * 3:
            raise OSError(28, "No space left on device")
        asked.append(arguments)
        return rows(*arguments)

    monkeypatch.setattr(evaluation, "TOKENS_PER_CHUNK", 64)
    monkeypatch.setattr(evaluation, "rows", failing)
    code, _, err = evaluate(run_script, run, "report=false")
    assert code != 0
    assert "No space left on device" in err
    assert not table.exists()
    monkeypatch.setattr(evaluation, "rows", lambda *a: asked.append(a) or rows(*a))
    assert evaluate(run_script, run, "report=false")[0] == 0
    resumed = pl.read_parquet(table)
    keys = ["query_set", "band", "L", "stream", "query"]
    assert len(asked) == len({(a[1].query_set, a[1].band, a[2], int(a[1].index[0])) for a in asked}), "asked twice"
    assert resumed.sort(keys).select(*keys, "answer", "label").equals(whole.sort(keys).select(*keys, "answer", "label"))


def test_several_runs_are_compared(run_script, run):
    other = Run(shutil.copytree(run.path, run.path.parent / "other"))
    pattern = f"runs={run.path.parent}/*"
    code, out, err = run_script("evaluate.py", pattern, f"outputs={run.path.parent}", *SMALL, "report=false")
    assert code == 0, err
    assert "small" in out
    assert "other" in out
    assert list(run.path.parent.glob("compare-2-*/metrics.parquet"))
    assert list(other.evaluation.glob("responses-*.parquet"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run.best.write_bytes(run.best.read_bytes()[:1000]), "is damaged or truncated"),
        (lambda run: run.best.unlink(), "has no checkpoints/best.safetensors yet"),
        (lambda run: run.record_file.write_text('{"format": 99, "code": "0.9+abc"}'), "run format 99"),
        (lambda run: run.record_file.write_text("{"), "is not readable as JSON"),
        (lambda run: run.record_file.unlink(), "is not a run folder"),
        (
            lambda run: run.write_record(model=run.record()["model"] | {"width": 128}),
            "does not fit the model that this code builds",
        ),
    ],
    ids=["truncated", "missing", "other format", "broken record", "no record", "other width"],
)
def test_damaged_runs_say_what_to_do(run_script, run, damage, message):
    damage(run)
    code, _, err = evaluate(run_script, run, "report=false")
    assert code == 2, err
    assert message in err
    assert "Traceback" not in err


def test_commands_that_name_nothing(run_script, tmp_path):
    assert "name what to evaluate" in run_script("evaluate.py")[2]
    code, _, err = run_script("evaluate.py", f"runs={tmp_path}/*")
    assert code == 2
    assert "no run folder matches" in err


def test_a_truncated_checkpoint_is_named(run_script, run):
    run.write_record(status="training")
    run.last.write_bytes(run.last.read_bytes()[:5000])
    settings = ("preset=smoke", "logger=csv", "threads=1", "device=cpu", "schedule.steps=20", "validation.every=10")
    code, _, err = run_script("train.py", *settings, f"outputs={run.path.parent}", "name=small")
    assert code == 2
    assert f"cannot resume from {run.last}" in err
    assert run.best.exists()


def test_another_configuration_does_not_overwrite_a_run(run_script, run):
    code, _, err = run_script("train.py", "preset=smoke", "seed=3", f"outputs={run.path.parent}", "name=small")
    assert code == 2
    assert "holds another configuration" in err
    assert "seed: 0 -> 3" in err


def test_wandb_mirrors_the_run_offline(run_script, tmp_path):
    """Without a login nothing is asked; the metrics lie in the run folder, and a resumed run logs under the same id."""
    settings = ("preset=smoke", "logger.wandb=offline", "threads=1", "device=cpu", "validation.every=5", "name=small")
    code, _, err = run_script("train.py", *settings, "schedule.steps=10", f"outputs={tmp_path}")
    assert code == 0, err
    (file,) = (tmp_path / "small" / "wandb").glob("offline-run-*-small/run-small.wandb")
    logged = file.read_bytes()
    for name in (b"train/loss", b"val/accuracy/L64", b"transformer_conv"):
        assert name in logged, f"{name} is not in the offline run"
    assert not list((tmp_path / "small" / "wandb").glob("**/*.ckpt")), "W&B holds no checkpoints"
