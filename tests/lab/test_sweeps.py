"""Sweeps: what `sweep=paper` runs, and the launchers that spread a sweep, each executed for real at a tiny size."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backbones import available
from backbones.run import Run, find_runs
from lab.sweeps import best_runs, main

ROOT = Path(__file__).resolve().parents[2]
TINY = ("preset=smoke", "schedule.steps=2", "validation.every=1", "validation.lengths=[16]", "logger=csv", "threads=1")


def sweep(folder: Path, *arguments: str, seconds: float = 300, **env: str) -> subprocess.CompletedProcess:
    """`train.py -m` as a process of its own; runs land in `folder`/outputs."""
    command = [sys.executable, str(ROOT / "train.py"), "-m", *TINY, "device=cpu", "outputs=outputs", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=seconds, env={**os.environ, **env}
    )


def finished(folder: Path) -> set[tuple]:
    """(backbone, width) of every run that has ended."""
    records = [run.record() for run in find_runs(str(folder / "outputs" / "*"))]
    assert all(record["status"] == "finished" for record in records)
    return {(record["model"]["name"], record["model"]["width"]) for record in records}


def parameters(name: str) -> dict[str, str]:
    return yaml.safe_load((ROOT / "configs" / "sweep" / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]


def test_the_papers_sweep_is_best_of_four_of_every_reported_architecture():
    found = parameters("paper")
    assert {*found["backbone"].split(",")} == {*available()} - {"transformer_nope"}
    assert found["d"] == "64,128"


def test_the_papers_sweep_runs_four_configurations_for_a_width(run_script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_script("train.py", "-m", "sweep=paper", *TINY, "backbone=gru", "d=128", "outputs=outputs")
    assert code == 0, err
    configs = [yaml.safe_load(run.config.read_text()) for run in find_runs("outputs/*")]
    assert {(c["lr"], c["batch_size"]) for c in configs} == set(itertools.product((2e-4, 2.5e-4), (32, 64)))
    assert all(2e-4 <= c["lr"] <= 7e-4 and 12 <= c["batch_size"] <= 128 for c in configs)  # Appendix C.1
    assert "is the default here" not in out, "the sweep, not the machine, chose the preset"


def test_without_a_preset_it_is_the_papers(run_script):
    code, out, err = run_script("train.py", "sweep=paper", "--cfg", "job")
    assert code == 0, err
    assert yaml.safe_load(out)["preset"] == "paper"


@pytest.mark.slow
def test_submitit_runs_a_job_in_its_own_process(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    done = sweep(tmp_path, "launcher=submitit_local", "backbone=gru", "d=16")
    assert done.returncode == 0, done.stderr
    assert finished(tmp_path) == {("gru", 16)}
    logs = list((tmp_path / "outputs" / ".sweep" / "submitit").rglob("*_log.out"))
    assert sum("trained 2 steps" in log.read_text() for log in logs) == 1


def test_slurm_settings_are_those_of_the_plugin(run_script):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    code, out, err = run_script("train.py", "launcher=submitit_slurm", "--cfg", "hydra")
    assert code == 0, err
    launcher = yaml.safe_load(out)["hydra"]["launcher"]
    assert launcher["_target_"].endswith("SlurmLauncher")
    assert launcher["timeout_min"] == 36 * 60
    assert launcher["signal_delay_s"] >= 60, "time for a checkpoint"
    assert launcher["max_num_timeout"] > 0, "a job whose time is over must go back into the queue"


@pytest.mark.slow
def test_ray_runs_every_job_and_names_those_that_failed(tmp_path):
    pytest.importorskip("ray")
    done = sweep(tmp_path, "launcher=ray", "hydra.launcher.cluster_cpus=1", "backbone=gru", "d=0,16")
    assert done.returncode == 1, done.stderr
    assert "ray: 2 jobs on 1 CPUs" in done.stdout
    assert "ray: failed, see above; the same command tries again:\n" in done.stderr
    assert done.stderr.count("backbone=gru d=0\n") == 1
    assert "d=16\n" not in done.stderr
    assert "both must be at least 1" in done.stdout + done.stderr, "a job's error does not reach the driver"
    assert finished(tmp_path) == {("gru", 16)}


def test_the_best_of_each_backbone_and_width(tmp_path, capsys):
    for name, backbone, width, accuracy, status in (
        ("a", "gru", 64, 0.7, "finished"),
        ("b", "gru", 64, 0.8, "finished"),
        ("c", "gru", 64, 0.8, "finished"),
        ("d", "gru", 64, 0.9, "training"),
        ("e", "gru", 128, 0.6, "finished"),
        ("f", "mamba2", 64, 0.5, "finished"),
    ):
        run = Run(tmp_path / name)
        model = {"name": backbone, "width": width, "depth": 3}
        run.write_record(model=model, preset="cpu", status=status, best_accuracy=accuracy, minutes=1.0)
        run.config.write_text("lr: 0.003\nbatch_size: 16\n")
    best = best_runs(find_runs(str(tmp_path / "*")))
    assert [(run.name, of) for run, of in best] == [("b", 3), ("e", 1), ("f", 1)]
    assert main([str(tmp_path / "*")]) == 0
    out = capsys.readouterr().out
    assert f"python evaluate.py 'runs=\"{tmp_path}/b,{tmp_path}/e,{tmp_path}/f\"'" in out
    assert [run.name for run in find_runs(f"{tmp_path}/b,{tmp_path}/[ef]")] == ["b", "e", "f"]
    with pytest.raises(SystemExit):
        main([str(tmp_path / "d")])
    assert "no run has finished yet" in capsys.readouterr().err
