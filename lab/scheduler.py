"""Signals of a cluster scheduler: checkpoint at the next step, then hand over, so that the same job can continue.

    SIGUSR1, SIGUSR2   the time limit is near (sbatch --signal=USR1@120; submitit sends USR2): stop and requeue
    SIGTERM            the job is preempted or cancelled: stop; whoever preempts requeues

What happens after the checkpoint depends on who listened before us. Submitit has handlers of its own, which requeue the
job: they are called. Without any, a Slurm job is requeued with `scontrol requeue`, and the process ends with exit code
128 + the signal's number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import FrameType

NOTICES = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2", "SIGTERM") if hasattr(signal, name))


class Stopped(Exception):
    """Training ended at a checkpoint because a signal asked for it."""

    def __init__(self, received: signal.Signals):
        super().__init__(f"{received.name} received")
        self.received = received

    @property
    def exit_code(self) -> int:
        """As a shell reports a process that a signal ended."""
        return 128 + self.received


class Notice:
    """Remembers the last signal of a scheduler; handlers from before are back when the block ends.

    with Notice() as notice:
        ...                     # notice.received, then, with a checkpoint on disk, notice.obey()
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._before = {}

    def __enter__(self) -> Notice:
        if threading.current_thread() is threading.main_thread():  # Python runs handlers there and nowhere else
            self._before = {number: signal.getsignal(number) for number in NOTICES}
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Install the handlers, again if somebody replaced them: Lightning's own for SIGTERM stops without a
        checkpoint."""
        for number in self._before:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received in (None, signal.SIGTERM):  # Submitit's preemption is both, and SIGUSR2 is what requeues
            self.received = signal.Signals(number)

    def obey(self) -> None:
        """Do what the signal asks, with the state safe on disk: call who listened before us, else stop.

        Returns when that handler returned, as submitit's does for SIGTERM: the job then goes on until it is killed.

        Raises:
            Stopped: nobody listened before us.
        """
        received, self.received = self.received or signal.SIGTERM, None  # None: another process of the run was told
        before = self._before.get(received)
        if not callable(before):
            raise Stopped(received)
        before(received, None)


def requeue(received: signal.Signals) -> str:
    """Put this Slurm job back into its queue, if it is one and its time ran out; returns what was done, in words."""
    job = os.environ.get("SLURM_JOB_ID")
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if job is None or received == signal.SIGTERM:
        return "the same command continues"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"scontrol requeue {job} failed ({error}); the same command continues"
    if done.returncode:
        return f"scontrol requeue {job} failed ({done.stderr.strip()}); the same command continues"
    return f"job {job} requeued"
