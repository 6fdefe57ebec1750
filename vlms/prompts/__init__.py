"""The paper's evaluation prompts, word for word, and how a prompt and a stream become one input.

The words lie in the text files beside this one; `source.json` says where they are from, and a test pins them. What
the paper leaves open is decided here once for all systems: the arm's sentence is the last line of the prompt, and the
input is laid out stream first, as a memory meets it:

    Main sequence: 3, 14, 1, 5, ...          Main video: <frames>
    Candidate sequence: 14, 1, 5             Option video: <frames>
    <blank line, then the prompt>            <the prompt>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vlms.protocol import NATURAL, SYNTHETIC, AnswerSet, Arm, Observation, Query

FOLDER = Path(__file__).parent
Template = Literal["text", "video", "natural"]
ANSWERS: dict[str, AnswerSet] = {"text": SYNTHETIC, "video": SYNTHETIC, "natural": NATURAL}


@dataclass(frozen=True)
class TextPart:
    """A stretch of text."""

    text: str


@dataclass(frozen=True)
class VideoPart:
    """Frames in order, one per second: each uint8 [H, W, 3]."""

    frames: tuple[Any, ...]


Part = TextPart | VideoPart


@cache
def words(name: str) -> str:
    """A file's text, without the line break that ends the file."""
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def instruction(template: Template, arm: Arm | None = None, question: str | None = None) -> str:
    """The prompt of a modality, with the arm's sentence appended where there is one.

    Args:
        question: fills the place of the question in the natural-video prompt; the others have none.

    Raises:
        ValueError: an unknown template; a question too many or too few.
    """
    if template not in ANSWERS:
        raise ValueError(f"no prompt is called {template!r}; there are {', '.join(ANSWERS)}")
    text = words(template)
    if (question is None) == ("{question}" in text):
        raise ValueError(
            f"the {template} prompt takes {'one' if question is None else 'no'} question (got {question!r})"
        )
    text = text.replace("{question}", question or "")
    if arm is None:
        return text
    return text + "\n" + words(f"arm_{arm.lower()}").replace("{X}", ANSWERS[template].abstain)


def compose(observations: Sequence[Observation], query: Query) -> tuple[Part, ...]:
    """Stream, candidate and prompt as the parts of one input, in order.

    Args:
        observations: the whole stream, of the candidate's modality.
        query: with its full instruction.

    Raises:
        ValueError: tokens, which no prompt can hold; modalities that differ; a query without instruction.
    """
    kinds = {o.modality for o in observations}
    if query.modality == "tokens" or kinds - {query.modality}:
        raise ValueError(f"a prompt holds text or frames of one kind, not {sorted(kinds | {query.modality})}")
    if not query.question:
        raise ValueError(f"query {query.item_id} has no instruction to prompt with")
    stream = tuple(o.value for o in observations)
    if query.modality == "text":
        lines = [f"Main sequence: {', '.join(stream)}"]
        lines += [] if query.candidate is None else [f"Candidate sequence: {query.candidate}"]
        return (TextPart("\n".join([*lines, "", query.question])),)
    if query.candidate is None:
        return VideoPart(stream), TextPart(query.question)
    main, option = TextPart("Main video:"), TextPart("Option video:")
    return main, VideoPart(stream), option, VideoPart(tuple(query.candidate)), TextPart(query.question)
