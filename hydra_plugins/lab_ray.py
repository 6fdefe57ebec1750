"""`launcher=ray`: the runs of a sweep as tasks of a Ray cluster, each a process that runs the script with its settings.

A Hydra plugin must live in this namespace. It needs Ray alone; hydra-ray-launcher 1.2 also wants boto3, for clusters on
AWS, and an old cloudpickle, and moves Hydra's state by pickle. Here a job is a command line, so what runs on a node is
what you would type there: all nodes need the code, its Python and `outputs` at the same paths.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


def run_command(command: list[str], folder: str) -> int:
    """Run on a node; its output appears where the sweep was started. Returns the exit code."""
    return subprocess.run(command, cwd=folder, check=False).returncode


class RayLauncher(Launcher):
    """See configs/hydra/launcher/ray.yaml for the settings."""

    def __init__(self, address: str | None, num_cpus: float, num_gpus: float, cluster_cpus: int | None):
        self.address, self.num_cpus, self.num_gpus, self.cluster_cpus = address, num_cpus, num_gpus, cluster_cpus

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing to keep: a job is its command line."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs, as many at a time as the cluster has room for.

        Raises:
            SystemExit: some failed; the others have run to their end.
        """
        import ray  # seconds, and only when it is used

        where = {"address": self.address} if self.address else {"num_cpus": self.cluster_cpus}
        ray.init(**where, include_dashboard=False, ignore_reinit_error=True, logging_level="warning")
        try:
            task = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=3)(run_command)
            script, folder = str(Path(sys.argv[0]).resolve()), os.getcwd()
            print(f"ray: {len(job_overrides)} jobs on {ray.cluster_resources().get('CPU', 0):.0f} CPUs", flush=True)
            codes = ray.get([task.remote([sys.executable, script, *job], folder) for job in job_overrides])
        finally:
            ray.shutdown()
        failed = [" ".join(filter_overrides(job)) for job, code in zip(job_overrides, codes, strict=True) if code]
        if failed:
            raise SystemExit("ray: failed, see above; the same command tries again:\n  " + "\n  ".join(failed))
        return [JobReturn(overrides=job, status=JobStatus.COMPLETED) for job in job_overrides]
