"""A study from its command to its tables: what it trains, what it uses again, what it chooses, what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import polars as pl
import pytest

from backbones import available
from backbones.run import Run
from lab import study_report
from lab.config import UsageError
from lab.results import BLOCKS, PAGES, RESULTS, ROOT, collect, page_text
from lab.study import BUSY, Study, main, read_config, trainings
from tasks.memories import MEMORIES
from tasks.solvers import SOLVERS

TINY = [
    "experiment=laptop", "backbones=[gru]", "extras=[]", "preset=smoke", "trainings=[[seed=0]]", "factors=[1,2]",
    "query_sets=[uniform,near,order]", "streams=4", "queries=8", "redraws=20", "workers=2",
    "settings=[schedule.steps=12,validation.every=6,validation.streams=2]",
]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished study of one backbone: (folder of the outputs, exit code)."""
    outputs = tmp_path_factory.mktemp("study") / "outputs"
    patch = pytest.MonkeyPatch()
    patch.setattr(study_report, "save_figures", lambda *_: [])  # scoring's, tested there
    patch.setattr(study_report, "write_page", lambda scores, path, title: path)
    code = main([*TINY, f"outputs={outputs}"])
    patch.undo()
    return outputs, code


def wanted(*more: str, outputs: Path | str = "outputs") -> Study:
    return Study([*TINY, f"outputs={outputs}", *more])


def test_it_trains_evaluates_and_writes_its_tables(done):
    outputs, code = done
    assert code == 0
    tables = {path.stem: pl.read_csv(path, separator="\t") for path in (outputs / "laptop" / "tables").glob("*.tsv")}
    assert {*tables} == {"runs", "learning", "metrics", "state", "findings"}
    (run,) = tables["runs"].iter_rows(named=True)
    assert (run["system"], run["steps"], run["threads"], run["chosen"]) == ("gru d=64", 12, 1, True)
    assert tables["learning"]["step"].to_list() == [6, 12]
    metrics = tables["metrics"]
    assert {*metrics["system"]} == {run["run"], *SOLVERS, *MEMORIES}
    accuracy = metrics.filter((pl.col("metric") == "accuracy") & (pl.col("system") == "exact"))
    assert (len(accuracy), set(accuracy["value"])) == (3 * 2 * 2, {1.0})
    state = tables["state"].filter((pl.col("system") == run["run"]) & (pl.col("L") == 64))
    assert state["state_bits"].item() == 3 * 64 * 32, "three layers of 64 float32"
    assert {*tables["findings"]["verdict"]} == {"not measured"}
    assert {p.name for p in (outputs / "laptop" / "figures").iterdir()} == {"overview-L64.png", "state_bits-L64.png"}


def test_the_same_command_trains_and_asks_nothing_again(done, monkeypatch, capsys):
    outputs, _ = done
    before = {path: path.stat().st_mtime_ns for path in outputs.rglob("*.parquet")}
    monkeypatch.setattr(study_report, "write_report", lambda study, tables: None)
    assert main([*TINY, f"outputs={outputs}"]) == 0
    said = capsys.readouterr().out
    assert "1 trainings: 1 finished before, 0 to do" in said
    assert "1 evaluations: 0 to do" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_of_the_same_configuration_is_used_whatever_its_name(done, tmp_path):
    outputs, _ = done
    study = wanted(outputs=tmp_path)
    (training,) = study.trainings
    assert training.find(tmp_path).name.startswith("gru-d64-smoke-s0-")
    made = next(outputs.glob("gru-*"))
    shutil.copytree(made, tmp_path / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("not: a run")
    assert training.find(tmp_path).name == "mine"
    assert "name=mine" in training.command(training.find(tmp_path))
    (other,) = wanted("trainings=[[seed=1]]", outputs=tmp_path).trainings
    assert other.find(tmp_path).name.startswith("gru-d64-smoke-s1-")


def test_the_best_training_by_validation_accuracy_is_chosen(done, tmp_path):
    outputs, _ = done
    study = wanted("trainings=[[seed=0],[seed=1],[seed=2]]", outputs=tmp_path)
    made = next(outputs.glob("gru-*"))
    for training, accuracy in zip(study.trainings, (0.7, 0.9, None), strict=True):
        folder = shutil.copytree(made, training.find(tmp_path).path)
        shutil.copy(made / "config.yaml", folder)
        record = json.loads((folder / "run.json").read_text())
        record |= {"best_accuracy": accuracy} if accuracy else {"status": "training", "best_accuracy": 1.0}
        (folder / "run.json").write_text(json.dumps(record))
    ((training, run),) = study.chosen().values()
    assert "seed=1" in training.overrides
    assert "-s1-" in run.name


def test_a_run_that_trains_elsewhere_is_left_alone(done, tmp_path):
    outputs, _ = done
    study = wanted(outputs=tmp_path)
    run = Run(shutil.copytree(next(outputs.glob("gru-*")), tmp_path / "run"))
    assert not study._busy(run), "finished"
    run.write_record(status="training")
    assert study._busy(run)
    study._remember("ended", run.name, time.time() + 1)
    assert not study._busy(run), "its process was this study's and has ended"
    study._remember("ended", run.name, 0.0)
    for path in run.path.rglob("*"):
        os.utime(path, (time.time() - BUSY - 5,) * 2)
    assert not study._busy(run), "nothing has been written for long"


def test_a_failed_training_is_named_with_its_log_and_command(tmp_path, monkeypatch, capsys):
    import lab.study as module

    command = [module.sys.executable, "-S", "-c", "raise SystemExit('no memory left')"]
    monkeypatch.setattr(module.Training, "command", lambda self, run: command)
    assert main([*TINY, f"outputs={tmp_path}"]) == 1
    said = capsys.readouterr().out
    assert "no memory left" in said
    assert "to repeat it:\n" in said
    assert "not in the report: gru d=64" in said


def test_the_laptop_study_is_every_backbone_and_the_extras():
    _, config = read_config(["experiment=laptop"])
    systems = [t.system for t in trainings(config)]
    assert {*systems} >= {f"{name} d=64" for name in available()}
    assert len(systems) == len(available()) + len(config.extras)
    assert config.streams >= 200
    assert {*config.factors} >= {2, 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "experiment=None: write experiment=<name>, one of laptop"),
        (["experiment=desktop"], "one of laptop"),
        (["experiment=laptop", "worker=2"], "Settings of a study: preset, backbones"),
        (["experiment=laptop", "workers=many"], "many"),
        (["experiment=laptop", "backbones=[grue]"], "no backbone is called 'grue'"),
        (["experiment=laptop", "again"], "'again' is not a setting"),
    ],
)
def test_wrong_commands_say_what_to_write(arguments, message):
    with pytest.raises(UsageError) as error:
        read_config(arguments)
    assert message in str(error.value)


def test_pages_are_made_from_the_collected_tables(done, tmp_path):
    outputs, _ = done
    collect(tmp_path, outputs / "laptop")
    assert {p.suffix for p in tmp_path.iterdir()} == {".tsv", ".png"}
    text = "".join(f"before\n<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in BLOCKS)
    made = page_text(text, tmp_path)
    assert "old" not in made
    assert made.count("before\n") == len(BLOCKS)
    assert page_text(made, tmp_path) == made
    assert "*pair counts*" in made
    with pytest.raises(FileNotFoundError, match=r"lab\.study"):
        collect(tmp_path, outputs / "nothing")


DOCS = ROOT / "docs" / "study.md"


def test_the_commands_of_its_page_are_ones_that_exist():
    text = DOCS.read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    studies = [shlex.split(line)[3:] for line in lines if line.startswith("python -m lab.study")]
    assert len(studies) >= 3
    for arguments in [*studies, *(["experiment=laptop", found] for found in re.findall(r"`'(\S+=\S+)'`", text))]:
        read_config(arguments)
    assert {line for line in lines if "lab.results" in line} == {
        "python -m lab.results collect results/cpu outputs/laptop", "python -m lab.results readme",
    }  # fmt: skip


def test_its_page_shows_the_committed_tables():
    text = DOCS.read_text()
    shown = "".join(page.read_text() for page in PAGES)
    assert {*BLOCKS} == {*re.findall(r"<!-- ([\w-]+) -->", shown)}
    if (RESULTS / "findings.tsv").exists():
        assert page_text(text, RESULTS) == text, "run: python -m lab.results readme"
    else:
        assert "| verdict |" not in text, "a table without its data"
