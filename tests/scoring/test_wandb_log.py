"""W&B: an offline run is made from saved tables, and its file is read back record by record."""

from __future__ import annotations

import builtins
import json
import struct
from pathlib import Path

import pytest

from scoring import Settings, read_tables, score, write_table
from scoring.wandb_log import COST_COLUMNS, CURVE_COLUMNS, FRONTIER_COLUMNS, curve_rows, log_scores

wandb = pytest.importorskip("wandb", reason="needs the wandb extra")


def records(path: Path):
    """Protobuf records of a .wandb file: LevelDB's log format in blocks of 32 KiB after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, pending = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        pending += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a full record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            pending = b""
            yield record


def flat(items) -> dict:
    """Values by key; the fields of a logged object are `key|field`."""
    return {(i.key or "|".join(i.nested_key)): json.loads(i.value_json) for i in items}


def read_run(folder: Path):
    """What was logged: the run's own record, history rows, the summary, and tables by key."""
    (file,) = folder.glob("run-*.wandb")
    run, history, summary, tables = None, [], {}, {}
    for record in records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
        elif kind == "history":
            history.append(flat(record.history.item))
        elif kind == "summary":
            summary |= flat(record.summary.update)
    for row in history:
        for key in (k.removesuffix("|path") for k in row if k.endswith("|path")):
            tables[key] = json.loads((folder / "files" / row[f"{key}|path"]).read_text())
    return run, history, summary, tables


@pytest.fixture(scope="module")
def logged(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb")
    path = write_table(study.filter(study["system"].is_in(["gla-64", "gla-128", "hist"])), folder / "t.parquet")
    scores = score(read_tables(path), Settings(redraws=30, selectivity_redraws=30, budgets=(5e9,)))
    ids = log_scores(scores, folder, project="p", group="study", tags=["paper"], mode="offline", figures=False)
    runs = {f.name.rsplit("-", 1)[1]: f for f in (folder / "wandb").glob("offline-run-*")}
    assert sorted(runs) == sorted(ids)
    return scores, {run.display_name: (run, *rest) for run, *rest in (read_run(runs[i]) for i in ids)}


def test_one_run_per_system_grouped_and_tagged(logged):
    _, runs = logged
    assert sorted(runs) == ["comparison", "gla-128", "gla-64", "hist"]
    assert {run.run_group for run, *_ in runs.values()} == {"study"}
    run = runs["gla-64"][0]
    assert run.project == "p"
    assert run.job_type == "evaluation"
    assert set(run.tags) == {"paper", "gla", "D64", "membership", "uniform", "order"}
    assert "reference" in runs["hist"][0].tags
    config = {i.key: json.loads(i.value_json) for i in run.config.update}
    assert config["settings"]["redraws"] == 30
    assert len(config["provenance"]["sources"][0]["sha256"]) == 64


def test_summaries_have_the_same_names_in_every_run(logged):
    scores, runs = logged
    name = "uniform/max/L64/accuracy"
    where = {"system": "gla-64", "query_set": "uniform", "band": "max", "L": 64}
    e = scores.value("accuracy", **where)
    summary = runs["gla-64"][2]
    assert (summary[name], summary[f"{name}/low"], summary[f"{name}/high"]) == pytest.approx((e.value, e.low, e.high))
    assert name in runs["gla-128"][2]
    assert name in runs["hist"][2]
    assert summary["uniform/low/L64/compression"] == pytest.approx(
        scores.value("compression", **(where | {"band": "low"})).value
    )
    names = [{k for k in runs[s][2] if k.startswith("uniform")} for s in ("gla-64", "gla-128")]
    # Only what is undefined for one of them may be missing: gla-128 costs more than the budget, gla-64 errs more.
    undefined = {"accuracy_within_5000_mflops", "flops_to_accuracy_0.75", "flops_to_accuracy_0.90"}
    assert {n.split("/")[3] for n in names[0] ^ names[1]} <= undefined


def test_curves_are_history_against_coverage(logged):
    scores, runs = logged
    rows = [r for r in runs["gla-64"][1] if "coverage" in r]
    assert len(rows) == 100
    (cell,) = scores.at(system="gla-64", query_set="uniform", band="max", L=32)
    assert rows[-1]["coverage"] == 1
    assert rows[-1]["uniform/max/L32/curve"] == pytest.approx(cell.accuracy)


def test_tables_have_stable_columns_and_custom_charts(logged):
    scores, runs = logged
    tables = runs["comparison"][3]
    assert tables["frontiers"]["columns"] == list(FRONTIER_COLUMNS)
    assert tables["cost_accuracy"]["columns"] == list(COST_COLUMNS)
    assert {row[0] for row in tables["cost_accuracy"]["data"]} == {"gla-64", "gla-128"}
    assert len(tables["metrics"]["data"]) == len(scores.rows())
    front = scores.frontier(5e9, query_set="uniform", band="low", L=64)
    mine = [r for r in tables["frontiers"]["data"] if r[2:6] == ["uniform", "low", 64, 5e9]]
    assert [(r[6], r[7]) for r in mine] == [pytest.approx((p.coverage, p.accuracy)) for p in front.points]
    charts = [k for k in tables if k.startswith("coverage_accuracy/") and k.endswith("_table")]
    assert len(charts) == 8
    own = runs["gla-64"][3]
    assert own["curves"]["columns"] == list(CURVE_COLUMNS)
    assert {row[0] for row in own["curves"]["data"]} == {"gla-64"}


def test_long_curves_are_thinned_with_both_ends_kept(simulate):
    (cell,) = score(simulate(0.6, streams=60), Settings(redraws=5, selectivity_redraws=5)).cells
    rows = curve_rows([cell])
    assert 100 < len(rows) <= 201 < len(cell.curve.coverage)
    assert [rows[0][-2], rows[-1][-2]] == [cell.curve.coverage[0], cell.curve.coverage[-1]]


def test_modes_and_a_missing_package(logged, tmp_path, monkeypatch):
    scores, _ = logged
    with pytest.raises(ValueError, match="mode='on': use one of auto, online, offline, disabled"):
        log_scores(scores, tmp_path, mode="on")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'ecclab\[wandb\]'"):
        log_scores(scores, tmp_path)


def test_without_a_login_it_stays_offline_and_asks_nothing(monkeypatch):
    from scoring.wandb_log import _resolve

    monkeypatch.delenv("WANDB_MODE")
    asked = []
    monkeypatch.setattr(wandb, "login", lambda **options: asked.append(options) or False)
    assert _resolve(wandb, "auto") == "offline"
    assert asked == [{"prompt": False, "verify": False}]
    monkeypatch.setattr(wandb, "login", lambda **options: True)
    assert _resolve(wandb, "auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert _resolve(wandb, "online") == "offline"


def test_a_server_that_does_not_answer_is_left_for_later(rows, tmp_path, monkeypatch, caplog):
    scores = score(rows([(1, 1, 0.9), (0, 0, 0.8)]), Settings(redraws=5, selectivity_redraws=5))
    real = wandb.init

    def init(**options):
        if options["mode"] == "online":
            raise wandb.errors.CommError("no route to host")
        return real(**options)

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb, "init", init)
    ids = log_scores(scores, tmp_path, mode="online", figures=False)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == len(ids) == 2
    assert "upload it with `wandb sync`" in caplog.text


def test_figures_are_logged_in_a_process_without_pyplot(rows, tmp_path, monkeypatch):
    import sys

    import matplotlib

    monkeypatch.delattr(matplotlib, "pyplot", raising=False)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    scores = score(rows([(1, 1, 0.9), (0, 0, 0.8)]), Settings(redraws=5, selectivity_redraws=5))
    log_scores(scores, tmp_path, mode="offline")
    assert list((tmp_path / "wandb").glob("offline-run-*/files/media/images/figures/*.png"))
