"""What a memory is to the harness: open, write, read, close.

A trained backbone, a pretrained vision-language model, a served model, a retrieval pipeline and a coin are all driven
in the same way, so their answers land in one table and are scored by one scorer:

    state = system.open(stream_id, seed)
    state = system.write(state, observations)     # in pieces, as the stream arrives
    reply = system.read(state, query)             # one question, independent of the others
    system.close(state)

Five rules, each a test in tests/vlms:

1. *One way.* A system that takes the whole prompt at once (`style = "whole_prompt"`) writes by keeping the observations
   and reads by building stream + question from them: derive it from `WholePrompt`.
2. *Reads are independent.* The order of the questions changes no answer of a deterministic system. One whose read
   changes its state declares `stateful_reads = True` and is given a copy of the state for every question.
3. *Writing in pieces* equals writing at once: write(write(s, a), b) = write(s, a + b).
4. *FLOPs* are for one question per stream: F = write + read. Both are kept, so q questions cost write / q + read. A
   system whose FLOPs are not known gives no `Cost`; it is left out of compute plots, never drawn at 0.
5. *A failure is not an abstention.* When no answer arrived, the reply has an `error` and finish = "error"; the question
   is asked again by the next run.

`docs/memory_systems.md` shows a system of thirty lines. Letters: H, W height and width of a frame, L stream length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Modality = Literal["tokens", "text", "frames"]
Arm = Literal["A", "B"]
Finish = Literal["stop", "length", "error", "none"]
Decision = Literal["yes", "no", "abstain"]


@dataclass(frozen=True)
class Observation:
    """One thing written: a symbol, a piece of text or a frame.

    Attributes:
        modality: of the value.
        value: "tokens": an int symbol; "text": a str; "frames": uint8 [H, W, 3].
        t: seconds since the start of the stream; at 1 fps, the index of the frame.
    """

    modality: Modality
    value: Any
    t: float | None = None


@dataclass(frozen=True)
class AnswerSet:
    """The markers that a prompt offers, without their braces, and what each decides.

    Attributes:
        markers: marker -> decision, e.g. {"0": "yes", "1": "no", "2": "abstain"}.
        options: number of possible answers, abstention not counted; chance is 1 / options.
    """

    markers: Mapping[str, Decision]
    options: int = 2

    def __post_init__(self) -> None:
        if list(self.markers.values()).count("abstain") != 1:
            raise ValueError(f"markers {dict(self.markers)}: exactly one of them means abstain")

    @property
    def abstain(self) -> str:
        """The abstention marker with its braces, as prompts write it."""
        return next("{" + marker + "}" for marker, decision in self.markers.items() if decision == "abstain")

    @property
    def chance(self) -> float:
        return 1 / self.options


SYNTHETIC = AnswerSet({"0": "yes", "1": "no", "2": "abstain"})
"""Of the text and the synthetic-video prompt (paper, B.1)."""
NATURAL = AnswerSet({"0": "yes", "1": "no", "uncertain": "abstain"})
"""Of the natural-video prompt (paper, B.1)."""


@dataclass(frozen=True)
class Query:
    """One question about a stream.

    Attributes:
        item_id: of the question, unique within the split.
        modality: of the candidate.
        candidate: "tokens": uint8 [m] symbols; "text": a str; "frames": a sequence of m frames uint8 [H, W, 3]; None
            where the question says it all.
        question: the full instruction, arm sentence included; None for systems that read tokens.
        answer_set: what the markers in the answer mean.
        arm: payoff arm that the question states, or None.
    """

    item_id: str
    modality: Modality
    candidate: Any
    question: str | None
    answer_set: AnswerSet = SYNTHETIC
    arm: Arm | None = None


@dataclass(frozen=True)
class Cost:
    """FLOPs of one question on its own stream.

    Attributes:
        write: of taking in the stream and the question's prompt.
        read: of producing the answer, as far as its marker.
        terms: the same, itemised, e.g. vision, connector, prefill, decode.
    """

    write: float
    read: float
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What came back for one question. Generators give `text`; systems that score give `decision` and `confidence`.

    Attributes:
        text: everything generated, thoughts included.
        decision: yes, no or abstain, from systems that need no parsing.
        confidence: in the decision, 0 to 1.
        scores: one per option: p(no), p(yes).
        finish: why generation ended: "stop", "length" (out of tokens), "error", "none" (nothing was generated).
        n_in, n_out: tokens of the prompt and of the answer.
        frames_in, frames_seen: frames given, and frames that reached the model.
        grid: vision tokens per temporal group, height and width of what the model saw.
        cost: FLOPs, None where they are not known.
        seconds: wall-clock time of the read.
        error: why no answer arrived.
        meta: anything else worth keeping; JSON values.

    Raises:
        ValueError: an error that does not end in "error", or the reverse; neither text nor decision nor error.
    """

    text: str | None = None
    decision: Decision | None = None
    confidence: float | None = None
    scores: tuple[float, ...] | None = None
    finish: Finish = "none"
    n_in: int | None = None
    n_out: int | None = None
    frames_in: int | None = None
    frames_seen: int | None = None
    grid: Sequence[Sequence[int]] | None = None
    cost: Cost | None = None
    seconds: float = 0.0
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.error is not None) != (self.finish == "error"):
            raise ValueError(
                f"error={self.error!r} with finish={self.finish!r}: a failed read has both, others neither"
            )
        if self.text is None and self.decision is None and self.error is None:
            raise ValueError("a reply has a text, a decision or an error; this one has none")


class MemoryFailure(RuntimeError):
    """A memory that cannot go on: the message says what is wrong and what to do. What was answered is kept."""


@runtime_checkable
class MemorySystem(Protocol):
    """The protocol. Derive from it for the defaults, or just have these members.

    Attributes:
        name: of the system; rows of one name are one curve.
        architecture: family, for colours; the name where empty.
        width: model width, where there is one.
        modalities: what it can take in.
        counts_flops: whether its replies have a `Cost`.
        style: "read_write", or "whole_prompt" where `read` runs over stream and question.
        stateful_reads: whether a read changes the state.
        concurrency: how many `read`s of one state may run at the same time, each in a thread of its own; above 1 they
            take the place of `read_many`.
        opens_thought: whether its prompt template already opens a `<think>`, so that answers start inside a thought.
        identity: everything that determines its answers beside the question; JSON values. Answers saved under another
            identity are not mixed with its own.
    """

    name: str
    architecture: str = ""
    width: int | None = None
    modalities: frozenset[Modality]
    counts_flops: bool = False
    style: Literal["read_write", "whole_prompt"] = "read_write"
    stateful_reads: bool = False
    concurrency: int = 1
    opens_thought: bool = False
    identity: Mapping[str, Any]

    def open(self, stream_id: str, seed: int) -> Any:
        """State before anything is written."""
        ...

    def write(self, state: Any, observations: Sequence[Observation]) -> Any:
        """State after the observations; `state` itself may be reused."""
        ...

    def read(self, state: Any, query: Query) -> Reply:
        """Answer one question."""
        ...

    def read_many(self, state: Any, queries: Sequence[Query]) -> Iterable[Reply]:
        """Answer several questions, in order, as answers come; override it where a batch is faster."""
        return (self.read(state, query) for query in queries)

    def close(self, state: Any) -> None:
        """Release what the state holds outside this process."""
        return None


class WholePrompt(MemorySystem):
    """Base of systems that see stream and question in one prompt: the state is the tuple of observations so far."""

    style: Literal["read_write", "whole_prompt"] = "whole_prompt"

    def open(self, stream_id: str, seed: int) -> tuple[Observation, ...]:
        return ()

    def write(self, state: tuple[Observation, ...], observations: Sequence[Observation]) -> tuple[Observation, ...]:
        return (*state, *observations)
