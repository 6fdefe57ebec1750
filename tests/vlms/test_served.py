"""A real server on loopback: `transformers serve` with a tiny checkpoint, asked by the real command.

Killed half-way and continued, compared with two backbones and a coin flip on one page, and what a wrong address, a
wrong name and a server that dies print.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

# Before the imports below, which need these packages: hence their E402.
for package in ("openai", "fastapi", "uvicorn", "transformers"):
    pytest.importorskip(package)

from backbones import MembershipModel  # noqa: E402
from backbones.run import Run  # noqa: E402
from flops.vlm import price_vlm  # noqa: E402
from lab.answers import Answers, key_of, read_lines  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.vlms.tiny import tiny_checkpoint  # noqa: E402


class Served(NamedTuple):
    """A server, its address and its log."""

    process: subprocess.Popen
    model: Path
    url: str
    log: Path

    def asked(self) -> int:
        """Requests that it has answered."""
        return self.log.read_text().count("POST /v1/chat/completions")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    model = tiny_checkpoint("qwen3_vl", folder / "toy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--no-continuous-batching"]
    log = folder / "server.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        until = time.monotonic() + 600
        while "Application startup complete" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield Served(process, model, f"http://127.0.0.1:{port}/v1", log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """A folder with two runs of backbones (their weights are random)."""
    folder = tmp_path_factory.mktemp("outputs")
    for name in ("gru", "transformer_conv"):
        run, model = Run(folder / f"run-{name}"), {"name": name, "width": 64}
        run.write_record(model=model, seed=0, code="test", trained_length=16, status="finished")
        run.save_best(MembershipModel(**model))
    return folder


def command(served: Served, split: Path, outputs: Path, *more: str) -> list[str]:
    memory = ["memory=server", f"memory.model={served.model}", f"memory.url={served.url}", "memory.max_new_tokens=16"]
    memory += ["memory.concurrency=1", "memory.retries=0", "memory.cache=null"]
    return [*memory, f"split={split}", f"outputs={outputs}", "redraws=20", "threads=1", "device=cpu", *more]


SMALL = ("lengths=[8]", "query_sets=[uniform]")


@pytest.fixture
def answered(run_script, served, text_folder, outputs) -> Path:
    """`outputs` with the model's answers, which are given once."""
    code, _, err = run_script("evaluate.py", *command(served, text_folder, outputs, *SMALL, "report=false"))
    assert code == 0, err
    return outputs


def test_killed_half_way_and_continued(run_script, served, text_folder, tmp_path):
    arguments = command(served, text_folder, tmp_path, *SMALL, "report=false")
    before = served.asked()
    process = subprocess.Popen([sys.executable, str(ROOT / "evaluate.py"), *arguments], stderr=subprocess.DEVNULL)

    def kept() -> list[bytes]:
        return [
            line for path in tmp_path.glob("memories/toy/answers-*.jsonl") for line in path.read_bytes().splitlines()
        ]

    until = time.monotonic() + 600
    while len(kept()) < 10:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    answered = kept()
    assert 10 <= len(answered) < 48

    code, out, err = run_script("evaluate.py", *arguments)
    assert code == 0, err
    (path,) = tmp_path.glob("memories/toy/answers-*.jsonl")
    records = list(read_lines(path))
    assert len(records) == len({key_of(r) for r in records}) == 2 * 2 * 4 * 3  # bands, streams, queries, arms
    assert path.read_bytes().splitlines()[: len(answered) - 1] == answered[:-1], "an answer was asked again"
    first_requests = 2
    assert served.asked() - before <= len(records) + first_requests + 1  # the one under way when the kill came
    assert Counter(r["arm"] for r in records) == {None: 16, "A": 16, "B": 16}

    # What a taught toy says is known: the candidate's first symbol decides.
    for r in records:
        assert r["text"] == ["{0}", "{1}", "{2}", "none of these"][first_symbol(text_folder, r["query"]) % 4]
        assert r["abstain_kind"] == {"answer": None, "none": "format"}.get(r["kind"], r["kind"])
        assert r["n_in"] > 100
        assert r["n_out"] >= 3
    assert "accuracy, uniform negatives, text" in out
    assert "payoff arms, uniform negatives, text" in out


def first_symbol(split: Path, query: str) -> int:
    from tasks.splits import load

    found = {q.query_id: q for cell in load(split).cells for q in cell.queries()}
    return int(found[query].candidate[0])


def test_video_with_both_arms(run_script, served, video_folder, outputs):
    few = ("variants=[sequential]", "streams=1", "arms=[A,B]", "report=false", f"memory.config={served.model}")
    code, out, err = run_script("evaluate.py", *command(served, video_folder, outputs, *few))
    assert code == 0, err
    (path,) = outputs.glob("memories/toy/responses-video-*.parquet")
    rows = pl.read_parquet(path)
    assert set(rows["arm"]) == {"A", "B"}
    (answers,) = outputs.glob("memories/toy/answers-video-*.jsonl")
    for record in read_lines(answers):
        assert record["frames_in"] == record["frames_seen"] == 8 + record["candidate_length"]
        assert record["n_in"] > 196 * record["frames_in"]  # paper, B.3: Qwen3-VL, frames as images
        clips = (8, record["candidate_length"])
        cost = price_vlm(served.model).response(clips, n_in=record["n_in"], answer=record["t_ans"], frames_as="images")
        assert (record["flops_write"], record["flops_read"]) == (cost.write, cost.read)
        assert set(record["terms"]) == {"vision", "connector", "prefill", "decode"}
    assert "payoff arms" in out


def test_one_page_for_a_model_two_backbones_and_a_coin(run_script, served, text_folder, answered):
    arguments = command(served, text_folder, answered, *SMALL, f"runs={answered}/run-*")
    before = served.asked()
    code, out, err = run_script("evaluate.py", *arguments)
    assert code == 0, err
    assert served.asked() == before + 1, "answers were there; only the first request is new"
    (page,) = answered.glob("compare-*/report.html")
    for system in ("toy", "run-gru", "run-transformer_conv", "coin"):
        assert system in out
        assert f'data-system="{system}"' in page.read_text()
    rows = pl.read_parquet(page.parent / "metrics.parquet").filter(pl.col("metric") == "responsiveness")
    assert {"toy", "run-gru", "run-transformer_conv", "coin"} <= set(rows["system"])
    priced = pl.read_parquet(page.parent / "metrics.parquet").filter(
        (pl.col("metric") == "flops") & pl.col("value").is_not_null()
    )
    assert set(priced["system"].drop_nulls()) == {"run-gru", "run-transformer_conv"}, "unknown FLOPs are no FLOPs of 0"


def test_served_and_local_answer_alike(run_script, served, text_folder, answered):
    arguments = (f"split={text_folder}", f"outputs={answered}", "redraws=20", "threads=1", "device=cpu", "report=false")
    local = ("memory=local", f"memory.path={served.model}", "memory.name=here", "memory.max_new_tokens=16")
    few = (*SMALL, "streams=1", "arms=[none]")
    code, _, err = run_script("evaluate.py", *local, *arguments, *few)
    assert code == 0, err
    (here,) = answered.glob("memories/here/answers-text-*.jsonl")
    (there,) = answered.glob("memories/toy/answers-text-*.jsonl")
    answers = {key_of(r): r for r in read_lines(there)}
    for record in read_lines(here):
        other = answers[key_of(record)]
        assert (record["text"], record["finish"]) == (other["text"], other["finish"])
        assert record["flops_write"] > record["flops_read"] > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("memory.url=http://127.0.0.1:9/v1", "Is a server running there? memory.url=http://127.0.0.1:9/v1"),
        ("memory.url=ROOT", "answers, but not as an OpenAI-compatible server (404: Not Found); memory.url is"),
        ("memory.model=toi", "has no model 'toi' (400: Server is pinned to"),
        ("memory.key_env=NO_SUCH_KEY", "there is no such environment variable: export NO_SUCH_KEY="),
        ("memory.modle=toi", "there is no setting 'memory.modle'. Did you mean memory.model"),
        ("lengths=[9]", "lengths: this split has no 9; it has [8, 16]"),
        ("arms=[C]", "arms=['C']: choose from none (the plain prompt), A and B"),
    ],
)
def test_what_a_mistake_prints(run_script, served, text_folder, tmp_path, changed, message):
    changed = changed.replace("ROOT", served.url.removesuffix("/v1"))
    code, _, err = run_script("evaluate.py", *command(served, text_folder, tmp_path, changed))
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_a_server_that_dies_is_told_and_nothing_is_lost(run_script, served, text_folder, tmp_path, monkeypatch):
    """The last test of this module: it kills the server."""
    add = Answers.add

    def then_kill(self, *records):
        add(self, *records)
        if len(self.records) == 5 and self.path.parent.name == "toy":
            served.process.kill()
            served.process.wait()

    monkeypatch.setattr(Answers, "add", then_kill)
    code, _, err = run_script("evaluate.py", *command(served, text_folder, tmp_path, "lengths=[8]"))
    assert code == 2
    assert "3 questions in a row got no answer" in err
    assert f"no answer from {served.url}: Connection error" in err
    assert "5 answers are kept in" in err
    assert "Traceback" not in err
    (path,) = tmp_path.glob("memories/toy/answers-*.jsonl")
    assert Counter(r["error"] is None for r in read_lines(path)) == {True: 5, False: 3}
