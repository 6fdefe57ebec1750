"""The server adapter against injected failures; test_served.py has it against a real server."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2")  # what the client library sends through

from lab.harness import Selection, arriving, interview, observations  # noqa: E402
from tests.vlms.rules import check_pieces, check_read_order  # noqa: E402
from vlms.protocol import MemoryFailure, Observation, Query  # noqa: E402
from vlms.server import Server  # noqa: E402

URL = "http://model.test/v1"
KEY = "sk-very-secret-0123456789"


def completion(text="{0}", finish="stop", n_in=100, n_out=3, **message) -> dict:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    usage = {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "toy",
        "choices": [choice],
        "usage": usage,
    }


class Wire:
    """What the server says to each request, and the requests it got."""

    def __init__(self, answer: Callable[[dict], dict | tuple[int, dict] | Exception] = lambda request: completion()):
        self.answer, self.requests, self.headers = answer, [], []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"object": "list", "data": [{"id": "toy", "object": "model"}]})
        self.requests.append(json.loads(request.content))
        self.headers.append(request.headers)
        said = self.answer(self.requests[-1])
        if isinstance(said, Exception):
            raise said
        code, body = said if isinstance(said, tuple) else (200, said)
        return httpx.Response(code, json=body)


def serve(wire: Wire, **settings) -> Server:
    settings = {"model": "toy", "url": URL, "retries": 0} | settings
    return Server(transport=httpx.MockTransport(wire), **settings)


TEXT = Query("q", "text", "1, 2, 3", "Well?")
STREAM = tuple(Observation("text", str(i), i) for i in range(5))
FRAMES = tuple(Observation("frames", np.full((448, 448, 3), i, np.uint8), i) for i in range(6))
CLIP = Query("q", "frames", [f.value for f in FRAMES[1:4]], "Well?")


# -- requests and replies ----------------------------------------------------------------------------------------------


def test_a_request_holds_the_paper_s_settings_and_the_whole_stream():
    wire = Wire()
    server = serve(wire, extra={"chat_template_kwargs": {"enable_thinking": False}})
    reply = server.read(server.write(server.open("s", 0), STREAM), TEXT)
    sent = wire.requests[-1]
    assert sent.pop("messages") == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Main sequence: 0, 1, 2, 3, 4\nCandidate sequence: 1, 2, 3\n\nWell?"}],
        }
    ]
    assert sent == {
        "model": "toy",
        "max_completion_tokens": 8192,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (reply.text, reply.finish, reply.n_in, reply.n_out, reply.cost) == ("{0}", "stop", 100, 3, None)


def test_what_a_server_refuses_to_be_told_is_left_out():
    wire = Wire()
    serve(wire, temperature=None, tokens_field="max_tokens", seed=7)
    assert {k: v for k, v in wire.requests[0].items() if k != "messages"} == {
        "model": "toy",
        "max_tokens": 1,
        "seed": 7,
    }


def test_thoughts_that_the_server_keeps_apart_are_put_back():
    wire = Wire(lambda request: completion("{1}", reasoning_content="Is it {0}?"))
    reply = serve(wire).read(STREAM, TEXT)
    assert reply.text == "<think>\nIs it {0}?</think>\n{1}"
    wire.answer = lambda request: completion(None, "length", reasoning_content="Is it {0}?")
    reply = serve(wire).read(STREAM, Query("r", "text", "1", "Well?"))
    assert (reply.text, reply.finish) == ("<think>\nIs it {0}?", "length")


def test_frames_go_as_lossless_pictures_in_order():
    import base64
    import io

    from PIL import Image

    wire = Wire(priced)
    server = serve(wire)
    reply = server.read(server.write((), FRAMES), CLIP)
    assert (reply.frames_in, reply.frames_seen) == (9, 9)
    sent = next(r for r in wire.requests if pictures(r) == 9)["messages"][0]["content"]
    assert [p["type"] for p in sent] == ["text", *["image_url"] * 6, "text", *["image_url"] * 3, "text"]
    urls = [p["image_url"]["url"] for p in sent if p["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    seen = [np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))) for url in urls]
    wanted = [*(f.value for f in FRAMES), *CLIP.candidate]
    assert all(np.array_equal(a, b) for a, b in zip(seen, wanted, strict=True))


def pictures(request: dict) -> int:
    return sum(part["type"] == "image_url" for part in request["messages"][0]["content"])


def priced(request: dict, keeps: Callable[[int], int] = lambda n: n, each: int = 196) -> dict:
    """A server that counts `each` tokens for every picture it keeps."""
    return completion(n_in=40 + each * keeps(pictures(request)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda r: priced(r, lambda n: min(n, 4)), "9 frames were sent .* hold about 4 of 196 tokens each"),
        (lambda r: priced(r, each=196 if pictures(r) < 8 else 49), "9 frames were sent .* hold about 2 of 196"),
        (lambda r: priced(r, lambda n: 0), "takes no pictures"),
    ],
    ids=["sampled", "shrunk", "blind"],
)
def test_a_server_that_loses_frames_is_caught(answer, message):
    server = serve(Wire(answer))
    with pytest.raises(MemoryFailure, match=message):
        server.read(server.write((), FRAMES), CLIP)
    free = serve(Wire(answer), check_frames=False)
    assert free.read(free.write((), FRAMES), CLIP).frames_seen is None


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_asked_for_once(tmp_path):
    wire = Wire()
    for _ in range(2):
        server = serve(wire, cache=tmp_path)
        assert server.read(STREAM, TEXT).text == "{0}"
    assert len(wire.requests) == 2  # the first request, and the question
    assert serve(wire, cache=None).read(STREAM, TEXT).text == "{0}"
    assert len(wire.requests) == 4


@pytest.mark.parametrize(
    "other",
    [
        {"model": "toy-2"},
        {"url": "http://other.test/v1"},
        {"temperature": 0.5},
        {"seed": 1},
        {"max_new_tokens": 100},
        {"extra": {"top_k": 1}},
    ],
    ids=str,
)
def test_whatever_determines_an_answer_is_in_its_key(tmp_path, other):
    wire = Wire()
    server = serve(wire, cache=tmp_path)
    server.read(STREAM, TEXT)
    before, changed = len(wire.requests), serve(wire, cache=tmp_path, **other)
    changed.read(STREAM, TEXT)
    new = 1 if "max_new_tokens" in other else 2  # the first request has a limit of its own
    assert len(wire.requests) == before + new
    assert changed.identity != server.identity or changed.name != server.name


def test_failures_are_not_cached(tmp_path):
    wire = Wire()
    server = serve(wire, cache=tmp_path)
    wire.answer = lambda request: (503, {"error": "busy"})
    assert server.read(STREAM, TEXT).error is not None
    wire.answer = lambda request: completion()
    assert server.read(STREAM, TEXT).error is None


# -- failures ----------------------------------------------------------------------------------------------------------


def test_only_transport_is_tried_again(monkeypatch):
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *a, **k: 0)
    failures = iter([httpx.ConnectError("reset"), (503, {"error": "busy"}), (429, {"error": "slow down"})])
    wire = Wire()
    server = serve(wire, retries=3)
    asked = len(wire.requests)
    wire.answer = lambda request: next(failures, completion())
    assert server.read(STREAM, TEXT).text == "{0}"
    assert len(wire.requests) == asked + 4
    wire.answer = lambda request: completion("no braces at all")
    assert server.read(STREAM, Query("r", "text", "1", "Well?")).text == "no braces at all"
    assert len(wire.requests) == asked + 5, "an odd answer is an answer"
    wire.answer = lambda request: (422, {"detail": "no such field"})
    with pytest.raises(MemoryFailure, match=r"refused question r \(422: no such field\); memory.extra"):
        server.read(STREAM, Query("r", "text", "2", "Well?"))
    assert len(wire.requests) == asked + 6


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), (500, {"error": "oops"}), (429, {"error": "limit"})],
    ids=lambda f: type(f).__name__ if isinstance(f, Exception) else str(f[0]),
)
def test_a_lost_answer_is_an_error_not_an_abstention(failure):
    wire = Wire()
    server = serve(wire)
    wire.answer = lambda request: failure
    reply = server.read(STREAM, TEXT)
    assert (reply.finish, reply.text, reply.decision) == ("error", None, None)
    assert reply.error.startswith(f"no answer from {URL}: ")


CONTEXT = {
    "vLLM": "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.",
    "SGLang": "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
    "OpenAI": "Your input exceeds the context window of this model. Please adjust your input and try again.",
}


@pytest.mark.parametrize("said", CONTEXT.values(), ids=CONTEXT)
def test_a_prompt_beyond_the_context(said):
    wire = Wire()
    server = serve(wire)
    wire.answer = lambda request: (400, {"error": {"message": said, "code": "context_length_exceeded"}})
    with pytest.raises(MemoryFailure, match=r"prompt of question q is longer than the context of toy.*lengths=\[") as e:
        server.read(STREAM, TEXT)
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("answer", "settings", "message"),
    [
        (httpx.ConnectError("refused"), {}, "no answer from .* Is a server running there"),
        (
            (404, {"error": {"message": "The model `ty` does not exist."}}),
            {"model": "ty"},
            "no model 'ty'.*Did you mean toy",
        ),
        ((401, {"error": {"message": "no key"}}), {}, "asks for a key .*memory.key_env=OPENAI_API_KEY"),
        ((401, {"error": {"message": f"bad {KEY}"}}), {"key_env": "MY_KEY"}, r"refused the key in \$MY_KEY \(401\)"),
        ((400, {"error": {"message": f"odd {KEY}"}}), {"key_env": "MY_KEY"}, r"odd \[key\]"),
        ((400, {"error": {"message": "no temperature"}}), {}, "refused the first request .*no temperature"),
    ],
    ids=["address", "model", "no key", "bad key", "echoed key", "refused"],
)
def test_the_first_request_tells_what_is_wrong(monkeypatch, answer, settings, message):
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(MemoryFailure, match=message) as e:
        serve(Wire(lambda request: answer), **settings)
    assert KEY not in str(e.value)


def test_a_key_that_is_not_set(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(
        MemoryFailure, match=r"memory\.key_env=MY_KEY, but there is no such environment variable: export"
    ):
        serve(Wire(), key_env="MY_KEY")


def test_the_key_is_sent_and_kept_nowhere(monkeypatch, tmp_path, text_split, capsys, caplog):
    monkeypatch.setenv("MY_KEY", KEY)
    wire = Wire()
    server = serve(wire, key_env="MY_KEY", cache=tmp_path / "cache")
    interview(server, text_split, Selection(lengths=(8,), streams=1), tmp_path)
    assert all(h["authorization"] == f"Bearer {KEY}" for h in wire.headers)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in json.dumps(server.identity) + repr(server) + capsys.readouterr().err + caplog.text


def test_a_server_that_goes_away_in_the_middle(text_split, tmp_path):
    wire = Wire()
    server = serve(wire, concurrency=1)
    wire.answer = lambda r: completion() if len(wire.requests) <= 6 else httpx.ConnectError("refused")
    with pytest.raises(MemoryFailure, match=r"3 questions in a row.*5 answers are kept in .*asks only the rest"):
        interview(server, text_split, Selection(), tmp_path)
    wire.answer = lambda r: completion()
    done = interview(server, text_split, Selection(), tmp_path)
    assert done.kept == 5
    assert not done.errors


def test_the_rules_of_the_protocol_hold(text_split):
    def answer(request: dict) -> dict:
        letters = sum(map(ord, str(request)))
        return completion(f"{{{letters % 3}}}", n_in=letters)

    check_read_order(serve(Wire(answer)), text_split)
    check_pieces(serve(Wire(answer), concurrency=2), text_split)


def test_several_at_once(text_split):
    gate = threading.Barrier(3, timeout=20)

    def together(request):
        if "Candidate" in str(request):
            gate.wait()  # passes only if three requests are under way at the same time
        return completion(str(request["messages"][0]["content"][0]["text"].split("Candidate sequence: ")[-1][:1]))

    server = serve(Wire(together), concurrency=3)
    cell = text_split.cells[0]
    stream = cell.streams()[0]
    queries = [Query(str(i), "text", str(i), "Well?") for i in range(6)]
    state = server.write((), list(observations(stream, "text")))
    replies = dict(itertools.chain.from_iterable(arriving(server, state, queries)))
    assert [replies[i].text for i in range(6)] == [str(i) for i in range(6)]
