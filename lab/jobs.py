"""Commands run as processes of their own, several at a time: one that fails stops no other.

    outcomes = run_jobs(jobs, workers=2, say=print)

Output goes to a log file per job. A line a minute says what runs, what waits and how long it will take, from the speed
measured so far.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

GRACE = 20.0  # seconds for an interrupted job to write what it has


@dataclass
class Job:
    """One command.

    Args:
        name: in messages; unique.
        command: its words.
        log: file for its output, continued when it is run again.
        work: units of work (steps, say) to be done, 0 if unknown.
        progress: units done so far.
        seconds_per_unit: before any of it has been measured, None if unknown.
        ready: whether it can be started; while not, others go first.
    """

    name: str
    command: list[str]
    log: Path
    work: float = 0
    progress: Callable[[], float] = lambda: 0
    seconds_per_unit: float | None = None
    ready: Callable[[], bool] = lambda: True
    _process: subprocess.Popen | None = field(default=None, repr=False)
    _seen: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"$ {shlex.join(self.command)}\n".encode())
            log.flush()
            # A session of its own, so that Ctrl-C reaches it through `stop` only, once.
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def poll(self) -> int | None:
        """The exit code once it has ended; takes a measurement."""
        done = self.progress()
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((time.monotonic(), done))
        return self._process.poll()

    @property
    def measured(self) -> float | None:
        """Seconds per unit in this process."""
        (t0, done0), (t1, done1) = (self._seen[0], self._seen[-1]) if self._seen else ((0, 0), (0, 0))
        # The first count may be what an earlier process left behind: measure from the first own one.
        if len(self._seen) > 2:
            t0, done0 = self._seen[1]
        return (t1 - t0) / (done1 - done0) if done1 > done0 else None

    def seconds_left(self, otherwise: float | None) -> float | None:
        """Until the end, at the measured speed, the expected one, or `otherwise`."""
        speed = self.measured or self.seconds_per_unit or otherwise
        return None if speed is None or not self.work else max(self.work - self.progress(), 0) * speed

    def stop(self) -> int:
        """End it as a scheduler would, kill it when that does not help; returns the exit code.

        By SIGTERM, upon which train.py saves: processes that a shell started in the background ignore SIGINT.
        """
        for what, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
            if self._process.poll() is None:
                os.killpg(self._process.pid, what)
                try:
                    self._process.wait(wait)
                except subprocess.TimeoutExpired:
                    continue
        return self._process.returncode

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.strip().splitlines()[-lines:])


@dataclass(frozen=True)
class Outcome:
    """How a job ended: exit code and seconds."""

    job: Job
    code: int
    seconds: float


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    say: Callable[[str], None] = print,
    ended: Callable[[Outcome], None] = lambda outcome: None,
    every: float = 60.0,
    pause: float = 0.5,
) -> list[Outcome]:
    """Run all jobs, `workers` at a time, in the given order.

    Args:
        say: takes the lines about progress.
        ended: called after each job, an interrupted one included.
        every: seconds between lines.
        pause: seconds between looks.

    Raises:
        KeyboardInterrupt: interrupted or terminated; the running jobs are stopped first.
    """
    waiting, running, outcomes = list(jobs), {}, []
    spoke = time.monotonic()
    try:
        with terminated_as_interrupted():
            while waiting or running:
                while len(running) < workers and (job := next((j for j in waiting if j.ready()), None)):
                    waiting.remove(job)
                    job.start()
                    running[job.name] = (job, time.monotonic())
                    say(f"started  {job.name}")
                time.sleep(pause)
                for job, since in list(running.values()):
                    code = job.poll()
                    if code is None:
                        continue
                    del running[job.name]
                    outcome = Outcome(job, code, time.monotonic() - since)
                    outcomes.append(outcome)
                    ended(outcome)
                    how = "finished" if code == 0 else f"FAILED (exit code {code})"
                    say(f"{how} {job.name} after {duration(outcome.seconds)}; {len(outcomes)} of {len(jobs)} ended")
                if time.monotonic() - spoke > every:
                    spoke = time.monotonic()
                    say(situation([job for job, _ in running.values()], waiting, workers))
    finally:
        for job, since in running.values():
            ended(Outcome(job, job.stop(), time.monotonic() - since))
    return outcomes


def situation(running: Sequence[Job], waiting: Sequence[Job], workers: int) -> str:
    """What runs, what waits, and the time left."""
    parts = [f"{j.name} {j.progress():.0f}/{j.work:.0f}" if j.work else j.name for j in running]
    left = time_left(running, waiting, workers)
    about = "time left unknown yet" if left is None else f"about {duration(left)} left"
    return f"running  {', '.join(parts) or 'nothing'}; {len(waiting)} waiting; {about}"


def time_left(running: Sequence[Job], waiting: Sequence[Job], workers: int) -> float | None:
    """Seconds until all are done; None while nothing has been measured or is expected.

    A job of unknown speed is taken to be as fast as the mean of the others.
    """
    jobs = [*running, *waiting]
    known = [s for s in (j.measured or j.seconds_per_unit for j in jobs) if s]
    each = [j.seconds_left(sum(known) / len(known) if known else None) for j in jobs]
    if any(left is None and job.work for left, job in zip(each, jobs, strict=True)):
        return None
    seconds = [left or 0.0 for left in each]
    return max(sum(seconds) / workers, *seconds) if seconds else 0.0


def duration(seconds: float) -> str:
    """Readable seconds: "48 s", "12 min", "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def terminated_as_interrupted():
    """SIGTERM ends this process as Ctrl-C does, so that jobs are stopped and not orphaned."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
