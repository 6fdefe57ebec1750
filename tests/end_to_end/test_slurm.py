"""`launcher=submitit_slurm` from submission to requeueing, on commands that stand in for Slurm's.

`sbatch`, `srun`, `scontrol` and `sacct` are shell scripts of a few lines: a job is a process here, with the variables
that Slurm would set. Submitit, Lightning and the lab cannot tell the difference.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backbones.run import find_runs

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "preset=smoke", "backbone=gru", "d=16", "logger=csv", "threads=1", "device=cpu", "schedule.steps=600",
    "validation.every=100", "validation.lengths=[16]", "outputs=outputs",
)  # fmt: skip
COMMANDS = {
    "sbatch": """
for file; do :; done
cp "$file" {folder}/job.sh
sh {folder}/start > /dev/null 2>&1 &
echo "Submitted batch job 77"
""",
    "start": """
export SLURM_JOB_ID=77 SLURM_NTASKS=1 SLURM_NNODES=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NAME=train
exec bash {folder}/job.sh
""",
    "srun": """
while [ "${{1#-}}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
echo $$ >> {folder}/pids
exec "$@" >> {folder}/job.log 2>&1
""",
    "scontrol": """
echo "$@" >> {folder}/requeued
(while kill -0 $(tail -1 {folder}/pids); do sleep 0.1; done; exec sh {folder}/start) > /dev/null 2>&1 &
""",
    "sacct": """
echo "JobID|State|NodeList"
echo "77|RUNNING|here"
""",
}


def wait_for(condition, what: str, log: Path, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen: {log.read_text() if log.exists() else 'nothing logged'}"
        time.sleep(0.02)


@pytest.mark.slow
def test_submitted_preempted_requeued_and_finished(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in COMMANDS.items():
        (bin_folder / name).write_text("#!/bin/sh" + text.format(folder=bin_folder))
        (bin_folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / "train.py"), "-m", "launcher=submitit_slurm", *SETTINGS]
    log, pids = bin_folder / "job.log", bin_folder / "pids"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=env
    ) as sweep:
        wait_for(lambda: log.exists() and "accuracy L16" in log.read_text(), "a first validation", log)
        os.kill(int(pids.read_text().split()[0]), signal.SIGUSR2)
        printed, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, printed + log.read_text()
    text = log.read_text()
    assert (bin_folder / "requeued").read_text() == "requeue 77\n", text
    assert "resuming at step" in text
    assert text.count("trained 600 steps") == 1
    assert [run.record()["status"] for run in find_runs(str(tmp_path / "outputs" / "*"))] == ["finished"]
    submitted = (bin_folder / "job.sh").read_text()
    assert "#SBATCH --signal=USR2@120" in submitted
    assert "#SBATCH --time=2160" in submitted
    assert "#SBATCH --job-name=train" in submitted
