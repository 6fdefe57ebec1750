"""One way to drive any memory: every question once, every answer kept, errors asked again, and the protocol's rules."""

from __future__ import annotations

import itertools
import json
import threading
import time

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from lab import harness
from lab.adapters import SolverMemory
from lab.answers import Answers, key_of
from lab.config import UsageError
from lab.harness import Selection, answers_file, interview, observations, query_for
from lab.report import answers_to_split
from scoring import Settings, TableError, read_tables, score, validate
from tasks import SOLVERS
from tasks.video.render import read_frames
from tests.vlms.rules import check_pieces, check_read_order
from vlms.protocol import MemoryFailure, MemorySystem, Observation, Query, Reply

ALL = Selection()


def count(split, arms=3):
    return arms * sum(len(queries) for cell in split.cells for queries in ALL.queries_of(cell).values())


def test_every_question_is_asked_once_in_every_arm(scribe, text_split, tmp_path):
    asked = []
    done = interview(scribe(lambda q: asked.append((q.item_id, q.arm))), text_split, ALL, tmp_path)
    assert len(asked) == len(set(asked)) == len(done.records) == count(text_split)
    assert [json.loads(line) for line in done.path.read_text().splitlines()] == done.records
    frame = pl.DataFrame(pl.from_arrow(validate(done.records)))
    assert (frame["answer"] == frame["label"]).all()  # nulls, abstentions, do not count here
    assert frame.filter(pl.col("abstain_kind") == "explicit").height > 0
    assert set(frame.filter(pl.col("abstain_kind") == "explicit")["arm"]) == {"B"}
    assert set(frame["flops_write"]) == {1e9}
    kept = next(r for r in done.records if r["abstain_kind"] == "explicit")
    assert (kept["kind"], kept["text"], kept["n_out"], kept["terms"]) == (
        "explicit",
        "Too risky: {2}",
        3,
        {"prefill": 1e9},
    )


def test_a_file_of_answers_is_a_response_table(scribe, text_split, tmp_path):
    done = interview(scribe(), text_split, ALL, tmp_path)
    scores = score(read_tables(done.path))
    where = dict(system="scribe", band="max", L=16, query_set="uniform")
    assert scores.value("accuracy", arm=None, **where).value == 1
    assert scores.value("responsiveness", arm="A,B", **where).value > 0
    assert scores.value("payoff_a", arm="A,B", **where).value == 3


@pytest.mark.parametrize("stop_at", [1, 7, 30])
def test_an_interrupted_evaluation_goes_on_where_it_was(scribe, text_split, tmp_path, stop_at):
    whole = interview(scribe(), text_split, ALL, tmp_path / "whole").records
    asked = []

    def interrupted(query):
        asked.append((query.item_id, query.arm))
        if len(asked) == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interview(scribe(interrupted), text_split, ALL, tmp_path)
    path = answers_file(scribe(), text_split, tmp_path)
    assert len(path.read_bytes().splitlines()) == stop_at - 1
    with open(path, "ab") as file:
        file.write(b'{"system":"scri')  # what a kill in the middle of a write leaves
    asked.pop()  # it was asked, but not answered
    done = interview(scribe(lambda q: asked.append((q.item_id, q.arm))), text_split, ALL, tmp_path)
    assert done.kept == stop_at - 1
    assert len(asked) == len(set(asked)) == len(whole)
    without = [{k: v for k, v in r.items() if k != "seconds"} for r in done.records]
    assert without == [{k: v for k, v in r.items() if k != "seconds"} for r in whole]


def test_errors_are_no_abstentions_and_are_asked_again(scribe, text_split, tmp_path):

    def failing(q):
        return "connection lost" if q.item_id.endswith("-00") else None

    first = interview(scribe(failing), text_split, ALL, tmp_path)
    failed = {key_of(r) for r in first.errors}
    assert failed
    assert {(r["kind"], r["abstain_kind"], r["finish"]) for r in first.errors} == {("error", "error", "error")}
    with pytest.raises(TableError, match="ended in an error, not in an answer"):
        score(first.records)
    asked = []
    second = interview(scribe(lambda q: asked.append(q.item_id)), text_split, ALL, tmp_path)
    assert len(asked) == len(failed)
    assert not second.errors
    assert second.kept == len(first.records) - len(failed)
    assert score(second.records).cells


def test_errors_are_scored_only_when_that_is_asked_for(scribe, text_split, tmp_path):
    failing = scribe(lambda q: "connection lost" if q.item_id.endswith("-00") else None)
    settings = OmegaConf.create({"errors": "raise", "seed": 0})
    with pytest.raises(
        UsageError, match=r"of \d+ questions to scribe ended in an error.*connection lost.*errors=abstain"
    ):
        answers_to_split(settings, failing, text_split, ALL, tmp_path)
    settings.errors = "abstain"
    table = read_tables(answers_to_split(settings, failing, text_split, ALL, tmp_path))
    scores = score(table, Settings(redraws=5, errors="abstain"))
    shares = [row["value"] for row in scores.rows() if row["metric"] == "abstain_error"]
    assert shares
    assert 0 < max(shares) < 1


def test_a_system_that_is_gone_stops_the_evaluation(scribe, text_split, tmp_path):
    asked = []

    def gone(query):
        asked.append(query)
        return "connection lost" if len(asked) > 5 else None

    with pytest.raises(MemoryFailure, match=r"3 questions in a row got no answer.*connection lost.*5 answers are kept"):
        interview(scribe(gone), text_split, ALL, tmp_path)
    assert len(asked) == 8


def test_another_identity_is_another_file(scribe, text_split, video_split, tmp_path):
    one, other = scribe(), scribe()
    other.identity = {"version": 2}
    paths = {answers_file(s, split, tmp_path) for s in (one, other) for split in (text_split, video_split)}
    assert len(paths) == 4


def test_two_evaluations_do_not_write_to_one_file(tmp_path):
    with Answers(tmp_path / "a.jsonl"), pytest.raises(UsageError, match="another evaluation is writing"):
        Answers(tmp_path / "a.jsonl")


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\nnot json\n{}\n")
    with pytest.raises(UsageError, match=r"a\.jsonl: line 2 is not JSON"):
        Answers(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(lengths=(32,)), r"lengths: this split has no 32; it has \[8, 16\]"),
        (Selection(bands=("mix",)), "bands: this split has no 'mix'"),
        (Selection(query_sets=("near",)), "query_sets: this split has no 'near'"),
        (Selection(variants=("spatial",)), "variants: this split has no 'spatial'"),
    ],
)
def test_a_selection_of_nothing_is_refused(scribe, text_split, tmp_path, selection, message):
    with pytest.raises(UsageError, match=message):
        interview(scribe(), text_split, selection, tmp_path)


def test_a_part_of_a_split(scribe, text_split, tmp_path):
    few = Selection(lengths=(8,), bands=("low",), query_sets=("uniform",), streams=1, arms=("A",))
    done = interview(scribe(), text_split, few, tmp_path)
    assert {(r["L"], r["band"], r["query_set"], r["arm"], r["stream"]) for r in done.records} == {
        (8, "low", "uniform", "A", done.records[0]["stream"])
    }
    assert interview(scribe(), text_split, ALL, tmp_path).kept == len(done.records) == 4


def test_a_memory_that_cannot_see_is_told_so(scribe, video_split, tmp_path):
    with pytest.raises(UsageError, match=r"scribe takes text, but cell .* is video"):
        interview(scribe(), video_split, ALL, tmp_path)


# -- what a system is shown --------------------------------------------------------------------------------------------


def test_streams_as_text_and_as_frames(text_split, video_split):
    stream = text_split.cells[0].streams()[0]
    assert [o.value for o in observations(stream, "text")] == [str(s) for s in stream.symbols]
    stream, query = video_split.cells[0].streams()[0], video_split.cells[0].queries()[0]
    frames = [o.value for o in observations(stream, "frames")]
    symbols, belts = read_frames(frames)
    assert np.array_equal(symbols, stream.symbols)
    assert np.array_equal(belts, stream.belts)
    asked = query_for(query, "frames", "A")
    symbols, belts = read_frames(asked.candidate)
    assert np.array_equal(symbols, query.candidate)
    assert np.array_equal(belts, query.candidate_belts)
    assert "conveyer" in asked.question
    assert "+3 points" in asked.question


# -- the rules of the protocol -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
def test_reads_do_not_depend_on_their_order(name, text_split):
    check_read_order(SolverMemory(name), text_split)


@pytest.mark.parametrize("name", SOLVERS)
def test_writing_in_pieces_is_writing_at_once(name, text_split):
    check_pieces(SolverMemory(name), text_split)


def test_the_rules_hold_for_prompts(scribe, text_split):
    check_read_order(scribe(), text_split)
    check_pieces(scribe(), text_split)


def test_the_size_of_the_pieces_changes_no_answer(text_split, tmp_path, monkeypatch):
    one = interview(SolverMemory("hist2"), text_split, ALL, tmp_path / "one").records
    monkeypatch.setattr(harness, "PIECE", 3)
    other = interview(SolverMemory("hist2"), text_split, ALL, tmp_path / "other").records
    assert [r["p_yes"] for r in one] == [r["p_yes"] for r in other]


class Tired(MemorySystem):
    """Forgets a symbol with every question."""

    name, modalities, stateful_reads = "tired", frozenset({"tokens"}), True

    def __init__(self):
        self.identity = {}

    def open(self, stream_id: str, seed: int) -> list[int]:
        return []

    def write(self, state: list[int], observations: list[Observation]) -> list[int]:
        return state + [o.value for o in observations]

    def read(self, state: list[int], query: Query) -> Reply:
        state.pop()
        return Reply(decision="yes", confidence=1 / (1 + len(state)))


def test_a_read_that_changes_the_state_is_given_a_copy(text_split, tmp_path):
    done = interview(Tired(), text_split, Selection(lengths=(16,)), tmp_path)
    assert {r["confidence"] for r in done.records} == {1 / 16}


def test_no_more_are_asked_than_replies_were_kept(scribe, text_split, tmp_path):
    """A kill then loses `concurrency` replies at most, however slow the disk and the slowest answer."""
    lock, asked, kept, ahead = threading.Lock(), 0, 0, []

    class Quick(scribe):
        concurrency = 3

        def read(self, state, query):
            nonlocal asked
            with lock:
                asked += 1
                ahead.append(asked - kept)
            if query.item_id == first:
                time.sleep(0.2)
            return super().read(state, query)

    class Slow(Answers):
        def add(self, *records):
            nonlocal kept
            time.sleep(0.002)
            super().add(*records)
            kept += len(records)

    first = next(q.query_id for q in text_split.cells[0].queries())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "Answers", Slow)
        done = interview(Quick(), text_split, ALL, tmp_path)
    assert len(done.records) == count(text_split)
    assert max(ahead) == 3


def test_a_read_that_cannot_go_on_loses_no_other_answer(scribe, text_split, tmp_path):
    together = threading.Barrier(3, timeout=20)

    class Breaking(scribe):
        concurrency = 3
        reads = itertools.count()

        def read(self, state, query):
            number = next(self.reads)
            together.wait()
            if number == 0:
                raise MemoryFailure("the key has expired")
            time.sleep(0.05)
            return super().read(state, query)

    with pytest.raises(MemoryFailure, match="the key has expired"):
        interview(Breaking(), text_split, ALL, tmp_path)
    assert interview(scribe(), text_split, ALL, tmp_path).kept == 2


@pytest.mark.parametrize("end", ["silence", "interrupt"])
def test_answers_under_way_are_kept_whatever_ends_the_questions(scribe, text_split, tmp_path, end, monkeypatch):
    """Three reads get no answer, or Ctrl-C comes, while another one is still at work."""
    started = threading.Event()

    class Slow(scribe):
        concurrency = 4
        reads = itertools.count()

        def read(self, state, query):
            if next(self.reads) == 3:
                started.set()
                time.sleep(0.3)
                return super().read(state, query)
            started.wait(20)
            time.sleep(0.05)
            return Reply(error="lost", finish="error")

    def interrupted(running, **options):
        monkeypatch.setattr(harness, "wait", wait)
        raise KeyboardInterrupt

    wait = harness.wait
    if end == "interrupt":
        monkeypatch.setattr(harness, "wait", interrupted)
    expected = {"silence": MemoryFailure, "interrupt": KeyboardInterrupt}[end]
    with pytest.raises(expected):
        interview(Slow(), text_split, ALL, tmp_path)
    if end == "interrupt":
        assert next(Slow.reads) == 4, "no question is put after that"
    assert interview(scribe(), text_split, ALL, tmp_path).kept == 1


def test_why_a_read_could_not_go_on_is_told_before_its_silence(scribe, text_split, tmp_path):
    class Expired(scribe):
        concurrency = 4
        reads = itertools.count()

        def read(self, state, query):
            if next(self.reads) == 0:
                raise MemoryFailure("the key has expired")
            time.sleep(0.1)
            return Reply(error="lost", finish="error")

    with pytest.raises(MemoryFailure, match="the key has expired"):
        interview(Expired(), text_split, ALL, tmp_path)


@pytest.mark.parametrize("many", [list, iter])
def test_a_memory_that_gives_the_wrong_number_of_replies(scribe, text_split, tmp_path, many):
    class Terse(scribe):
        def read_many(self, state, queries):
            return many([self.read(state, query) for query in queries[:2]])

    class Chatty(scribe):
        def read_many(self, state, queries):
            return many([self.read(state, query) for query in [*queries, queries[0]]])

    with pytest.raises(MemoryFailure, match=r"scribe gave \d+ replies too few for"):
        interview(Terse(), text_split, ALL, tmp_path / "terse")
    with pytest.raises(MemoryFailure, match=r"scribe gave more than \d+ replies to"):
        interview(Chatty(), text_split, ALL, tmp_path / "chatty")


@pytest.mark.parametrize(
    "wrong",
    [dict(), dict(text="{0}", finish="error"), dict(error="lost"), dict(error="lost", finish="stop")],
    ids=str,
)
def test_a_reply_says_one_thing(wrong):
    with pytest.raises(ValueError):
        Reply(**wrong)
