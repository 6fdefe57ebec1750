"""Two processes that share each batch follow the loss curve of one process with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from backbones import MembershipModel
from backbones.lightning import untouched

ROOT = Path(__file__).resolve().parents[2]
# Streams of 32 to 96 and blocks of 32: some steps compress, some do not, and none reaches the long-term slot, so the
# parameters without a gradient change from step to step.
SETTINGS = (
    "preset=smoke", "logger=csv", "threads=1", "device=cpu", "name=run", "batch_size=8",
    "backbone=compressive_transformer", "backbone.layer.block=32", "d=32", "schedule.steps=8", "schedule.growth=0",
    "schedule.min_length=32", "schedule.max_length=96", "validation.every=4", "validation.lengths=[32,96]",
    "validation.batch_size=4", "validation.streams=8",
)  # fmt: skip


def metrics(folder: Path) -> pl.DataFrame:
    table = pl.read_csv(folder / "run" / "metrics.csv").filter(~pl.col("name").str.starts_with("time/"))
    return table.sort("name", "step")


@pytest.mark.slow
def test_two_processes_train_as_one(run_script, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    code, _, err = run_script("train.py", *SETTINGS, f"outputs={one}")
    assert code == 0, err
    command = [sys.executable, str(ROOT / "train.py"), *SETTINGS, f"outputs={two}", "devices=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert "DDP looks for unused parameters" in done.stdout
    assert done.stdout.count("trained 8 steps") == 1, "the second process printed too"

    expected, found = metrics(one), metrics(two)
    assert found.select("step", "name").equals(expected.select("step", "name"))
    assert {"train/loss", "val/accuracy", "train/reconstruction"} <= {*expected["name"]}
    # The gradient of 8 streams and the mean of two gradients of 4 are sums in another order: in float32 they differ by
    # 1e-7 relative, and eight steps of training leave that below 1e-6. A stream counted twice would show at 1e-2.
    torch.testing.assert_close(found["value"].to_torch(), expected["value"].to_torch(), rtol=1e-6, atol=1e-6)
    weights = [load_file(folder / "run" / "checkpoints" / "best.safetensors") for folder in (one, two)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def test_parameters_that_short_streams_leave_alone():
    model = MembershipModel("compressive_transformer", 32, block=32)
    short, long = untouched(model, 16), untouched(model, 96)
    assert any("compress1" in name for name in short)
    assert not any("compress1" in name for name in long), "the reconstruction loss trains it from two blocks on"
    assert any("long_term" in name for name in long)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert untouched(MembershipModel("gru", 16), 16) == []


def test_a_sweep_of_distributed_runs_in_one_process_is_refused(run_script, tmp_path):
    code, _, err = run_script(
        "train.py", "-m", "preset=smoke", "devices=2", "d=16,32", "backbone=gru", "device=cpu", f"outputs={tmp_path}"
    )
    assert code == 2
    assert "devices=2 in a sweep" in err
    assert "launcher=ray" in err
