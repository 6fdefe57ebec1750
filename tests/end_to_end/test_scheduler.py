"""A scheduler's signal ends a run at a checkpoint; the same command continues to the weights of a run never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.scheduler import Notice, Stopped, requeue

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "preset=smoke backbone=gru d=16 logger=csv threads=1 device=cpu schedule.steps=600 validation.every=100 "
    "validation.lengths=[16,32] name=run"
)
WORKER = f"""
import runpy, sys
for line in sys.stdin:
    sys.argv = ["train.py", *line.split()]
    code = 0
    try:
        runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    print("exit", code, flush=True)
"""


class Job:
    """One process that runs train.py again and again: what a scheduler does, without starting Python each time."""

    def __init__(self, folder: Path):
        scontrol = folder / "scontrol"
        scontrol.write_text(f'#!/bin/sh\necho "$@" >> {folder}/requeued\n')
        scontrol.chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=folder, env=env,
        )  # fmt: skip

    def run(self, outputs: str, number: signal.Signals | None = None) -> tuple[str, int]:
        """Train, with a signal after the first validation; returns what was printed and the exit code."""
        self.process.stdin.write(f"{SETTINGS} outputs={outputs}\n")
        self.process.stdin.flush()
        text = ""
        for line in self.process.stdout:
            if line.startswith("exit "):
                return text, int(line.split()[1])
            text += line
            if number and line.startswith("step") and "accuracy" in line:
                self.process.send_signal(number)
                number = None
        raise AssertionError(f"the process ended: {text}")


@pytest.mark.slow
def test_stopped_by_signals_and_continued_is_never_stopped(tmp_path):
    job = Job(tmp_path)
    assert job.run("whole")[1] == 0
    text, code = job.run("stopped", signal.SIGUSR1)
    assert code == 128 + signal.SIGUSR1, text
    assert "stopped by SIGUSR1 at step" in text
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    text, code = job.run("stopped", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, text
    assert "resuming at step" in text
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n", "who cancels a job does not want it back"
    text, code = job.run("stopped")
    assert code == 0, text
    job.process.stdin.close()
    assert job.process.wait(60) == 0
    expected, found = (
        torch.load(tmp_path / outputs / "run" / "checkpoints" / "last.ckpt", weights_only=True)
        for outputs in ("whole", "stopped")
    )
    assert found["global_step"] == expected["global_step"] == 600
    for name, tensor in expected["state_dict"].items():
        assert torch.equal(found["state_dict"][name], tensor), f"{name} differs after a resume"
    rows = [(tmp_path / o / "run" / "metrics.csv").read_text().splitlines() for o in ("whole", "stopped")]
    metrics = [sorted(row for row in r if ",time/" not in row) for r in rows]
    assert metrics[0] == metrics[1], "the metrics log has other rows after a resume"


def test_who_listened_before_is_called_and_listens_again(monkeypatch):
    """As submitit does: its handler of SIGUSR2 requeues the job and raises SystemExit."""
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with Notice() as notice:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert notice.received == signal.SIGUSR2
            assert heard == [], "handed over before the checkpoint"
            notice.obey()
            assert heard == [signal.SIGUSR2]
            assert notice.received is None
            for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert notice.received == signal.SIGUSR2, "a preemption is both: the one that requeues must not be lost"
            notice.obey()
            assert heard.pop() == signal.SIGUSR2
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Lightning replaces it
            notice.listen()
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Stopped, match="SIGTERM"):
                notice.obey()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heard == [signal.SIGUSR2] * 2
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_requeueing_says_what_it_did(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert requeue(signal.SIGUSR1) == "the same command continues"
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol requeue 12 failed" in requeue(signal.SIGUSR1)
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$2" = 9_3 ]\n')
    (tmp_path / "scontrol").chmod(0o755)
    assert "scontrol requeue 12 failed" in requeue(signal.SIGUSR1)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "9")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert requeue(signal.SIGUSR1) == "job 9_3 requeued"
