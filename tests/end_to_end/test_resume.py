"""A run killed at any moment and continued by the same command ends with the same weights, bit for bit, on a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "preset=smoke",
    "logger=csv",
    "threads=1",
    "device=cpu",
    "validation.every=15",
    "schedule.steps=90",
    "name=run",
)


def command(outputs: Path, *more: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *SETTINGS, f"outputs={outputs}", *more]


def train(outputs: Path, *more: str) -> subprocess.CompletedProcess:
    done = subprocess.run(command(outputs, *more), capture_output=True, text=True, cwd=outputs.parent)
    assert done.returncode == 0, done.stderr
    return done


def train_until_killed(outputs: Path, checkpoints: int, *more: str) -> None:
    """SIGKILL soon after the checkpoint file has been written that often."""
    process = subprocess.Popen(
        command(outputs, *more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=outputs.parent
    )
    last, seen, written = outputs / "run" / "checkpoints" / "last.ckpt", None, 0
    while written < checkpoints:
        assert process.poll() is None, f"ended before it was killed: {process.stderr.read().decode()}"
        stamp = last.stat().st_mtime_ns if last.exists() else None
        if stamp != seen:
            seen, written = stamp, written + 1
        time.sleep(0.002)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def final(outputs: Path) -> dict:
    return torch.load(outputs / "run" / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["transformer_conv", "mamba2"])
def test_killed_and_resumed_is_never_stopped(tmp_path, backbone):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    train(whole, f"backbone={backbone}")
    train_until_killed(killed, 1, f"backbone={backbone}")
    train_until_killed(killed, 2, f"backbone={backbone}")
    assert "resuming at step" in train(killed, f"backbone={backbone}").stdout
    expected, found = final(whole), final(killed)
    assert found["global_step"] == expected["global_step"] == 90
    for name, tensor in expected["state_dict"].items():
        assert torch.equal(found["state_dict"][name], tensor), f"{name} differs after a resume"
    for key in ("best", "step"):
        assert [c[key] for c in found["callbacks"].values() if key in c] == [
            c[key] for c in expected["callbacks"].values() if key in c
        ]
    best = "run/checkpoints/best.safetensors"
    for name, tensor in load_file(whole / best).items():
        assert torch.equal(load_file(killed / best)[name], tensor)
    rows = [(path / "run" / "metrics.csv").read_text().splitlines() for path in (whole, killed)]
    metrics = [sorted(row for row in r if ",time/" not in row) for r in rows]
    assert metrics[0] == metrics[1], "the metrics log has other rows after a resume"
    assert "already trained" in train(killed, f"backbone={backbone}").stdout
