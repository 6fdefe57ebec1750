"""A model behind an OpenAI-compatible address: vLLM, SGLang, `transformers serve`, a vendor.

Every question is one request with the whole stream in it, at temperature 0. Frames go as PNG images, one per frame:
servers sample a video that is sent as one (to 32 frames, often) without saying so. Whether all frames arrived is
checked all the same, by the token count of the prompt (`check_frames`).

What is retried, by the client library: a lost connection, a timeout, an overloaded or failing server (408, 409, 429,
5xx). A refusal is not retried, and no answer is asked again because it is odd. Answers are cached on disk by digest of
everything that determines them. The key is read from an environment variable and is in no file, message or log.

Without `config` the model's shape is unknown and its answers carry no FLOPs.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flops.vlm import VlmPrice, price_vlm
from tasks.files import write_bytes
from vlms.parsing import MAX_NEW_TOKENS, charged_length, parse
from vlms.prompts import TextPart, VideoPart, compose
from vlms.protocol import Cost, Finish, MemoryFailure, Modality, Observation, Query, Reply, WholePrompt

try:
    import openai
    from PIL import Image
except ImportError as error:
    raise ImportError(f"{error.name} is missing") from error

FINISH: dict[str | None, Finish] = {"stop": "stop", "length": "length"}
FRAMES_SLACK = 0.02
"""Share of the frames by which the count read off the prompt's tokens may differ: templates number their pictures."""
_CONTEXT = (
    "context length",
    "context window",
    "maximum context",
    "max_model_len",
    "context_length",
    "too long",
    "too many tokens",
)


class Server(WholePrompt):
    """One model of one server.

    Args:
        model: its name there.
        url: the address that `/chat/completions` is added to; it usually ends in /v1.
        name: in tables; the last part of `model` where None.
        architecture: family, for colours.
        key_env: environment variable with the key; None for a server that asks for none.
        max_new_tokens: limit of an answer; tokens_field: what the server calls that limit.
        temperature, seed: None leaves them out of the request.
        concurrency: requests at once.
        timeout: seconds for one answer.
        retries: after a failure of transport.
        opens_thought: whether the chat template opens a `<think>`.
        extra: more fields of every request.
        check_frames: whether the prompt's token count must say that all frames arrived.
        config: folder or file of the model's Hugging Face config.json, to price answers; None leaves them unpriced.
        cache: folder of the cached answers; None keeps none.
        transport: of the HTTP client, for tests.

    Raises:
        MemoryFailure: the address, the model's name or the key is wrong; says which and what to do.
    """

    modalities: frozenset[Modality] = frozenset({"text", "frames"})

    def __init__(
        self,
        model: str,
        url: str,
        name: str | None = None,
        architecture: str | None = None,
        key_env: str | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
        tokens_field: str = "max_completion_tokens",
        temperature: float | None = 0,
        seed: int | None = None,
        concurrency: int = 4,
        timeout: float = 600,
        retries: int = 3,
        opens_thought: bool = False,
        extra: Mapping[str, Any] | None = None,
        check_frames: bool = True,
        config: str | None = None,
        cache: str | None = None,
        transport: Any = None,
    ):
        if concurrency < 1 or max_new_tokens < 1:
            raise MemoryFailure(f"concurrency={concurrency}, max_new_tokens={max_new_tokens}: both are at least 1")
        self.model, self.url, self.key_env = str(model), url.rstrip("/"), key_env
        self.name = name or self.model.rstrip("/").rsplit("/", 1)[-1]
        self.architecture = architecture or self.name
        self.opens_thought, self.concurrency, self.check_frames = opens_thought, concurrency, check_frames
        self.tokens_field = tokens_field
        self.parameters = {"model": self.model, tokens_field: max_new_tokens, "temperature": temperature, "seed": seed}
        self.parameters = {key: value for key, value in self.parameters.items() if value is not None}
        self.extra = dict(extra or {})
        self.identity = {"url": self.url, "parameters": self.parameters, "extra": self.extra, "frames": "png"}
        self.identity |= {} if config is None else {"config": str(config)}
        self.cache = None if cache is None else Path(cache)
        self.price = None if config is None else _price(config)
        self.counts_flops = self.price is not None
        self._tokens: dict[Any, int | None] = {}
        self._client = openai.OpenAI(
            base_url=self.url,
            api_key=self._key() or "none",
            timeout=timeout,
            max_retries=retries,
            http_client=None if transport is None else openai.DefaultHttpxClient(transport=transport),
        )
        self._meet()

    # -- the protocol --------------------------------------------------------------------------------------------------

    def write(self, state: tuple[Observation, ...], observations: Sequence[Observation]) -> tuple[Observation, ...]:
        """Keep the observations, frames as the data URLs that requests hold."""
        sent = (o if o.modality == "text" else Observation("frames", picture(o.value), o.t) for o in observations)
        return (*state, *sent)

    def read(self, state: tuple[Observation, ...], query: Query) -> Reply:
        started = time.perf_counter()
        if query.modality == "frames" and query.candidate is not None:
            query = Query(
                query.item_id,
                "frames",
                tuple(map(picture, query.candidate)),
                query.question,
                query.answer_set,
                query.arm,
            )
        parts = compose(state, query)
        clips = tuple(len(part.frames) for part in parts if isinstance(part, VideoPart))
        frames = sum(clips)
        try:
            said = self._ask(content(parts), f"question {query.item_id}")
            seen = self._frames_seen(parts, frames, said["n_in"]) if frames and self.check_frames else None
        except Unanswered as error:
            return Reply(finish="error", error=str(error), seconds=time.perf_counter() - started)
        return Reply(
            text=said["text"],
            finish=said["finish"],
            n_in=said["n_in"],
            n_out=said["n_out"],
            frames_in=frames or None,
            frames_seen=seen,
            cost=self._cost(said, parts, query),
            seconds=time.perf_counter() - started,
            meta=said["meta"],
        )

    def _cost(self, said: dict[str, Any], parts: Sequence[TextPart | VideoPart], query: Query) -> Cost | None:
        """FLOPs of an answer (paper, B.3), where the model's shape is known and the server counts tokens."""
        if self.price is None or said["n_in"] is None or said["n_out"] is None:
            return None
        parsed = parse(said["text"], query.answer_set, said["finish"], self.opens_thought)
        videos = [part.frames for part in parts if isinstance(part, VideoPart)]
        size = {"size": videos[0][0].size} if videos else {}
        try:
            cost = self.price.response(
                clips=tuple(map(len, videos)),
                n_in=said["n_in"],
                answer=charged_length(parsed, said["n_out"]),
                frames_as="images",
                **size,
            )
        except ValueError as error:
            raise MemoryFailure(f"{error}: the server drops frames, or memory.config is of another model") from None
        return Cost(float(cost.write), float(cost.read), dict(cost.terms))

    # -- one request ---------------------------------------------------------------------------------------------------

    def _ask(self, message: list[dict[str, Any]], what: str, limit: int | None = None) -> dict[str, Any]:
        """The answer to one message, from the cache where it is there.

        Raises:
            Unanswered: transport failed, retries included.
            MemoryFailure: the server refused.
        """
        request = {**self.parameters, "messages": [{"role": "user", "content": message}]}
        if limit is not None:
            request[self.tokens_field] = limit
        asked = json.dumps({"url": self.url, "extra": self.extra, **request}, sort_keys=True)
        place = self._place(hashlib.sha256(asked.encode()).hexdigest())
        if place is not None and place.exists():
            return json.loads(place.read_bytes())
        try:
            completion = self._client.chat.completions.create(**request, extra_body=self.extra or None)
        except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError) as error:
            raise Unanswered(self._safe(f"no answer from {self.url}: {describe(error)}")) from None
        except openai.APIStatusError as error:
            if error.status_code in (408, 409):
                raise Unanswered(self._safe(f"no answer from {self.url}: {describe(error)}")) from None
            raise MemoryFailure(self._safe(self._refusal(error, what))) from None
        except openai.OpenAIError as error:
            raise Unanswered(self._safe(f"unreadable answer from {self.url}: {error!r}")) from None
        said = answer_of(completion)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place, json.dumps(said).encode())
        return said

    def _place(self, digest: str) -> Path | None:
        return None if self.cache is None else self.cache / digest[:2] / f"{digest}.json"

    # -- what can be wrong ---------------------------------------------------------------------------------------------

    def _key(self) -> str | None:
        if self.key_env is None:
            return None
        if not os.environ.get(self.key_env):
            raise MemoryFailure(
                f"memory.key_env={self.key_env}, but there is no such environment variable: export {self.key_env}=... "
                "(keys are read from the environment only), or memory.key_env=null for a server that asks for none"
            )
        return os.environ[self.key_env]

    def _safe(self, text: str) -> str:
        """A message without the key, should a server have repeated it."""
        key = os.environ.get(self.key_env or "")
        return text.replace(key, "[key]") if key else text

    def _meet(self) -> None:
        """One short request, so that a wrong address, name or key is told before the first stream."""
        try:
            self._ask(content([TextPart("Say yes.")]), "the first request", limit=1)
        except Unanswered as error:
            raise MemoryFailure(
                f"{error}. Is a server running there? memory.url={self.url} is what /chat/completions is added to and "
                "usually ends in /v1"
            ) from None

    def _refusal(self, error: openai.APIStatusError, what: str) -> str:
        """What a refused request means and what to do about it."""
        said, code = describe(error), error.status_code
        if code in (401, 403):
            if self.key_env is None:
                return (
                    f"{self.url} asks for a key ({code}): export it in an environment variable and name that variable, "
                    "e.g. memory.key_env=OPENAI_API_KEY"
                )
            return f"{self.url} refused the key in ${self.key_env} ({code}); put a valid one into that variable"
        if any(word in said.lower() for word in _CONTEXT):
            return (
                f"the prompt of {what} is longer than the context of {self.model} at {self.url} ({said}); serve it "
                "with a longer context, or leave the longest streams out: lengths=[...]"
            )
        served = self._served()
        if served is None and code == 404:
            return (
                f"{self.url} answers, but not as an OpenAI-compatible server ({said}); memory.url is what "
                "/chat/completions is added to and usually ends in /v1"
            )
        if (served is not None and self.model not in served) or code == 404:
            near = difflib.get_close_matches(self.model, served or [], n=3, cutoff=0.4)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            return (
                f"{self.url} has no model {self.model!r} ({said}).{hint} It serves: {', '.join(served or []) or 'none'}"
            )
        return f"{self.url} refused {what} ({said}); memory.extra and memory.tokens_field change what is sent"

    def _served(self) -> list[str] | None:
        """Names of the models there; None where the server does not list them."""
        try:
            return [model.id for model in self._client.models.list()]
        except (openai.OpenAIError, ValueError, TypeError, AttributeError):
            return None

    # -- did every frame arrive? ---------------------------------------------------------------------------------------

    def _frames_seen(self, parts: Sequence[TextPart | VideoPart], frames: int, n_in: int | None) -> int | None:
        """Frames that the prompt's token count accounts for: what its text does not, over what one frame takes.

        Raises:
            MemoryFailure: they are not those that were sent.
        """
        if n_in is None:
            return None  # a server that counts no tokens cannot be checked
        text = tuple(part for part in parts if isinstance(part, TextPart))
        frame = next(part.frames[0] for part in parts if isinstance(part, VideoPart))
        bare = self._prompt_tokens(text)
        one, two = (self._prompt_tokens((*text, VideoPart((frame,) * n))) for n in (1, 2))
        if bare is None or one is None or two is None:
            return None
        if two <= one or one <= bare:
            raise MemoryFailure(
                f"{self.model} at {self.url} takes no pictures: a prompt has {bare} tokens without, {one} with one and "
                f"{two} with two of them; serve a vision-language model, or memory.check_frames=false to ask regardless"
            )
        seen = round((n_in - bare) / (two - one))
        if abs(seen - frames) > FRAMES_SLACK * frames:
            raise MemoryFailure(
                f"{frames} frames were sent to {self.model} at {self.url}, but the prompt's {n_in} tokens hold about "
                f"{seen} of {two - one} tokens each: the server drops or shrinks frames. Switch its sampling and its "
                "pixel limits off, or memory.check_frames=false to accept it"
            )
        return seen

    def _prompt_tokens(self, parts: tuple[TextPart | VideoPart, ...]) -> int | None:
        """Tokens of a prompt, asked once."""
        key = json.dumps(content(parts), sort_keys=True)
        key = hashlib.sha256(key.encode()).hexdigest()
        if key not in self._tokens:
            self._tokens[key] = self._ask(content(parts), "a request that counts tokens", limit=1)["n_in"]
        return self._tokens[key]


class Unanswered(Exception):
    """Transport failed: nothing is known about the answer."""


class Picture(NamedTuple):
    """A frame as requests hold it.

    Attributes:
        url: data URL of a PNG.
        size: (H, W).
    """

    url: str
    size: tuple[int, int]


def picture(frame: np.ndarray) -> Picture:
    """A frame uint8 [H, W, 3] without loss."""
    held = io.BytesIO()
    Image.fromarray(np.asarray(frame)).save(held, "png")
    return Picture("data:image/png;base64," + base64.b64encode(held.getvalue()).decode(), frame.shape[:2])


def _price(config: str) -> VlmPrice:
    try:
        return price_vlm(config)
    except (OSError, KeyError, ValueError) as error:
        raise MemoryFailure(f"memory.config={config}: {error}; memory.config=null leaves answers unpriced") from error


def content(parts: Sequence[TextPart | VideoPart]) -> list[dict[str, Any]]:
    """Parts of a prompt as the content of a chat message."""
    made: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            made.append({"type": "text", "text": part.text})
        else:
            made += [{"type": "image_url", "image_url": {"url": frame.url}} for frame in part.frames]
    return made


def answer_of(completion: Any) -> dict[str, Any]:
    """Text, end and token counts of a completion; JSON values. Thoughts that a server keeps apart are put back."""
    usage, meta = completion.usage, {"served": completion.model}
    counts = {"n_in": usage and usage.prompt_tokens, "n_out": usage and usage.completion_tokens}
    if not completion.choices:
        return {"text": "", "finish": "none", **counts, "meta": meta}
    choice = completion.choices[0]
    thought = getattr(choice.message, "reasoning_content", None) or getattr(choice.message, "reasoning", None)
    text = choice.message.content or ""
    if thought:
        closed = "</think>\n" if text or choice.finish_reason != "length" else ""
        text = f"<think>\n{thought}{closed}{text}"
    if choice.finish_reason not in FINISH:
        meta["finish_reason"] = choice.finish_reason
    return {"text": text, "finish": FINISH.get(choice.finish_reason, "stop"), **counts, "meta": meta}


def describe(error: openai.APIError) -> str:
    """What went wrong in a few words: the server's own message, cut to a line."""
    if isinstance(error, openai.APITimeoutError):
        return "timed out"
    if isinstance(error, openai.APIStatusError):
        try:
            body = error.response.json()
            body = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
            body = body.get("message", body) if isinstance(body, dict) else body
        except ValueError:
            body = error.response.text
        return f"{error.status_code}: {' '.join(str(body).split())[:300]}"
    return f"{error} {error.__cause__ or ''}".strip()
