"""Jobs as processes: order, failures, logs, the time left, and what an interruption leaves."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from lab.jobs import Job, duration, run_jobs, situation, time_left


def job(tmp_path, name: str, code: str, **more) -> Job:
    return Job(name, [sys.executable, "-S", "-c", code], tmp_path / f"{name}.log", **more)


def test_a_failing_job_stops_no_other_and_leaves_its_log(tmp_path):
    lines: list[str] = []
    jobs = [job(tmp_path, f"j{i}", f"print('hello {i}'); raise SystemExit({i % 2})") for i in range(4)]
    outcomes = run_jobs(jobs, workers=2, say=lines.append, pause=0.01)
    assert sorted((o.job.name, o.code) for o in outcomes) == [("j0", 0), ("j1", 1), ("j2", 0), ("j3", 1)]
    assert jobs[3].tail().endswith("hello 3")
    assert jobs[3].tail().startswith("$ ")
    assert sum("FAILED (exit code 1)" in line for line in lines) == 2


def test_no_more_than_the_workers_run_at_once(tmp_path):
    code = (
        f"import os, time; d = {str(tmp_path)!r}; p = d + '/on-' + str(os.getpid()); open(p, 'w').close();"
        "print(len([f for f in os.listdir(d) if f.startswith('on-')])); time.sleep(0.15); os.remove(p)"
    )
    jobs = [job(tmp_path, f"j{i}", code) for i in range(5)]
    run_jobs(jobs, workers=2, say=lambda _: None, pause=0.01)
    assert max(int(j.tail(1)) for j in jobs) == 2


def test_a_job_that_is_not_ready_waits_while_others_go(tmp_path):
    order: list[str] = []
    late = job(tmp_path, "late", "pass", ready=lambda: "early" in order)
    run_jobs(
        [late, job(tmp_path, "early", "pass")], workers=1, say=lambda _: None, pause=0.01,
        ended=lambda outcome: order.append(outcome.job.name),
    )  # fmt: skip
    assert order == ["early", "late"]


def test_an_interruption_stops_what_runs(tmp_path):
    """SIGTERM, as a scheduler or `kill` sends it, is passed to the children, which may save, and ends the wait."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit()))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    running = job(tmp_path, "long", code)

    def kill() -> None:
        while running._process is None or running.tail(1) != "ready":
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill).start()
    before, ended = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(KeyboardInterrupt):
        run_jobs([running, job(tmp_path, "never", "pass")], 1, say=lambda _: None, ended=ended.append, pause=0.01)
    assert [outcome.job for outcome in ended] == [running]
    assert running._process.poll() is not None
    assert running.tail(1) == "saved"
    assert not (tmp_path / "never.log").exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_time_left_comes_from_measured_speed(tmp_path, monkeypatch):
    done = {"a": 0.0}
    a = job(tmp_path, "a", "pass", work=100, progress=lambda: done["a"])
    b = job(tmp_path, "b", "pass", work=50)
    assert time_left([a], [b], workers=1) is None, "nothing is known yet"
    a._process = type("Process", (), {"poll": lambda self: None})()
    for now, steps in ((0.0, 0), (10.0, 10), (30.0, 20), (50.0, 30)):  # the first 10 s are mostly start-up
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        done["a"] = steps
        a.poll()
    assert a.measured == pytest.approx(2)
    assert time_left([a], [b], workers=1) == pytest.approx(70 * 2 + 50 * 2)
    b.seconds_per_unit = 10
    assert time_left([a], [b], workers=2) == pytest.approx(500), "the longest job alone"
    assert situation([a], [b], workers=2) == "running  a 30/100; 1 waiting; about 8 min left"
    assert [duration(s) for s in (48, 700, 3900 * 2)] == ["48 s", "12 min", "2 h 10 min"]
