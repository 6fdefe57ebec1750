"""What is asked of a run, and by whom: plans, united plans, and one memory driven in two ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from backbones import MembershipModel
from backbones.run import Run, RunError
from lab.adapters import BackboneMemory
from lab.config import CONFIGS
from lab.evaluation import Plan, backbone_system, plan_for, trained_task, united
from tasks import MembershipConfig, sample
from tasks.splits.build import build
from tasks.splits.recipes import TextRecipe
from vlms.protocol import Observation, Query

PLAN = Plan((32, 64), ("max",), ("uniform",), streams=4, queries=8, seed=0, task=MembershipConfig())
SMALL = ("device=cpu", "threads=1", "streams=3", "queries=8", "bands=[max]", "query_sets=[uniform]", "redraws=5",
         "report=false")  # fmt: skip


@pytest.fixture
def make_run(tmp_path):
    """A run with random weights, as if trained on these symbols and candidates."""

    def make(
        name: str, vocabulary: int = 16, candidate_lengths: tuple[int, ...] = (3, 4, 5, 6), length: int = 16
    ) -> Run:
        run = Run(tmp_path / name)
        model = {"name": "gru", "width": 64, "vocabulary": vocabulary, "longest": max(candidate_lengths)}
        run.write_record(model=model, seed=0, code="test", trained_length=length, status="finished")
        run.save_best(MembershipModel(**model))
        task = {"vocabulary": vocabulary, "candidate_lengths": list(candidate_lengths)}
        run.config.write_text(OmegaConf.to_yaml({"task": task}))
        return run

    return make


def settings(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("evaluate", list(overrides))


def test_lengths_follow_the_longest_training_length():
    assert plan_for(settings(), 128).lengths == (128, 256, 512)
    assert plan_for(settings("factors=[2,4]"), 1024).lengths == (2048, 4096)
    assert plan_for(settings("lengths=[40]"), 1024).lengths == (40,)
    plan = plan_for(settings(), 128)
    assert (plan.bands, plan.query_sets, plan.streams) == (("max", "low"), ("uniform", "near", "order"), 200)


def test_a_run_is_asked_about_what_it_was_trained_on(make_run):
    run = make_run("small", vocabulary=8, candidate_lengths=(3, 4))
    task = trained_task(run)
    assert (task.vocabulary, task.candidate_lengths) == (8, (3, 4))
    assert plan_for(settings(), 16, task).task_name == "membership of 3, 4 among 8 symbols"
    assert plan_for(settings(), 16, trained_task(make_run("usual"))).task_name == "membership"


@pytest.mark.parametrize("text", [None, "a: 1", "task: {vocabulary: 8}", "task: ["])
def test_a_run_that_does_not_say_is_refused(make_run, text):
    run = make_run("odd")
    run.config.unlink() if text is None else run.config.write_text(text)
    with pytest.raises(RunError, match="does not say what the run was trained on"):
        trained_task(run)


def test_the_command_asks_about_the_run_s_own_symbols(run_script, make_run, tmp_path):
    run = make_run("small", vocabulary=8, candidate_lengths=(3, 4))
    code, out, err = run_script("evaluate.py", f"run={run.path}", f"outputs={tmp_path}", "lengths=[16]", *SMALL)
    assert code == 0, err
    (table,) = run.evaluation.glob("responses-*.parquet")
    rows = pl.read_parquet(table)
    assert set(rows["candidate_length"]) == {3, 4}
    assert set(rows["task"]) == {"membership of 3, 4 among 8 symbols"}
    assert "small" in out


def test_runs_of_different_lengths_are_compared(run_script, make_run, tmp_path):
    """Their plans share a length; the reference solvers answer each question once."""
    make_run("run-short", length=16)
    make_run("run-long", length=32)
    runs = f"runs={tmp_path}/run-*"
    code, out, err = run_script("evaluate.py", runs, f"outputs={tmp_path}", "factors=[1,2]", *SMALL)
    assert code == 0, err
    assert "L = 64" in out


def test_plans_that_differ_in_length_only_are_united():
    longer, other = replace(PLAN, lengths=(64, 128)), replace(PLAN, seed=1)
    assert united([PLAN, longer, other]) == [replace(PLAN, lengths=(32, 64, 128)), other]
    assert united([PLAN]) == [PLAN]


def test_a_backbone_answers_alike_in_batches_and_through_the_protocol(make_run):
    run = make_run("usual")
    batch = sample(MembershipConfig(), 0, range(2), 40, 8, split="test")
    (expected,) = backbone_system(run, torch.device("cpu")).answer(batch.stream, [batch])
    memory = BackboneMemory(str(run.path))
    for row in range(2):
        seen = [Observation("tokens", int(s), t) for t, s in enumerate(batch.stream[row])]
        state = memory.write(memory.write(memory.open(str(row), 0), seen[:17]), seen[17:])
        queries = [
            Query(str(i), "tokens", c[:n].numpy(), None)
            for i, (c, n) in enumerate(zip(batch.candidates[row], batch.lengths[row], strict=True))
        ]
        replies = memory.read_many(state, queries)
        p_yes = torch.tensor([reply.scores[1] for reply in replies])
        torch.testing.assert_close(p_yes, expected[row], rtol=0, atol=1e-6, check_dtype=False)
        alone = torch.tensor([memory.read(state, query).scores[1] for query in queries])
        torch.testing.assert_close(p_yes, alone, rtol=0, atol=1e-6)
        price = memory.model.price()
        assert (replies[0].cost.write, replies[0].cost.read) == (price.write(40), price.read(40))


def test_a_run_on_a_split(run_script, make_run, tmp_path):
    run = make_run("usual")
    build(TextRecipe(lengths=(8,), streams=2, queries=4, bands=("max",), query_sets=("uniform",)), tmp_path / "text")
    arguments = (f"run={run.path}", f"split={tmp_path / 'text'}", f"outputs={tmp_path}", "redraws=5", "threads=1")
    code, out, err = run_script("evaluate.py", *arguments, "device=cpu", "report=false")
    assert code == 0, err
    (table,) = run.evaluation.glob("responses-text-*.parquet")
    assert len(pl.read_parquet(table)) == 8
    assert (run.evaluation / "text" / "metrics.json").exists()
    assert "usual" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name what to evaluate: run="),
        (("memory=coin",), "memory= answers the questions of a split: add split=FOLDER"),
        (("split=nowhere",), "nowhere holds no split"),
        (("memory=server", "split=SPLIT"), "memory=server needs memory.model=..."),
        (("memory=solver", "memory.solver=exakt", "split=SPLIT"), "exact"),
        (("memory=custom", "memory.kind=mine", "split=SPLIT"), "no memory is called 'mine'"),
        (("memory=servr", "split=SPLIT"), "no memory is called 'servr'. Did you mean server"),
        (("run=a", "runs=b"), "give one of them"),
        (("errors=ignore",), "errors=ignore: choose raise or abstain"),
        (("split=SPLIT",), "name what to ask about the split: memory=..."),
        (("strems=3",), "there is no setting 'strems'. Did you mean streams"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_usage_errors(run_script, tmp_path_factory, tmp_path, arguments, message):
    split = Path(tmp_path_factory.getbasetemp()) / "usage-split"
    build(TextRecipe(lengths=(8,), streams=1, queries=2, bands=("max",), query_sets=("uniform",)), split)
    given = [a.replace("SPLIT", str(split)) for a in arguments]
    code, _, err = run_script("evaluate.py", *given, f"outputs={tmp_path}")
    assert code == 2, err
    assert message in err
    assert "Traceback" not in err
