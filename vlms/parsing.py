r"""From what a model wrote to a decision, and the length of answer it is charged for.

The paper takes the last bracketed token of a response (B.1) and counts three behaviours as abstention, which are kept
apart here (B.8): saying so (*explicit*), breaking the format or saying nothing (*format*), and running out of tokens
without an answer (*overflow*). A failed request is none of them: it has no text, and never comes here.

    I say {1}. No: \boxed{0}          yes, the last group decides
    <think> {0}? </think> {2}         explicit abstention
    {0} for f{x}                      format: the last group is no marker
    <think> {0} ... (out of tokens)   overflow: a thought that never closed is no answer
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vlms.protocol import AnswerSet, Decision, Finish

MAX_NEW_TOKENS = 8192
"""The paper's limit on a response (B.8)."""

Kind = Literal["answer", "explicit", "format", "none", "overflow"]
ABSTAIN_KINDS: dict[str, str | None] = {
    "answer": None,
    "explicit": "explicit",
    "format": "format",
    "none": "format",
    "overflow": "overflow",
}
"""The response table's `abstain_kind` for each kind of response."""

_GROUP = re.compile(r"\{([^{}]*)\}")
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Parsed:
    """What a text says.

    Attributes:
        decision: yes, no or abstain; None unless the last group is a marker.
        kind: "answer", "explicit"; "format" where the last group is no marker, "none" where there is no group,
            "overflow" where there is none because tokens ran out.
        char_index: where the marker's brace opens, in the full text; None without a marker.
        char_len: characters of the full text.
    """

    decision: Decision | None
    kind: Kind
    char_index: int | None
    char_len: int


def parse(text: str, answers: AnswerSet, finish: Finish = "stop", opens_thought: bool = False) -> Parsed:
    """Read the decision off a response.

    Args:
        text: everything generated, thoughts included.
        answers: the markers that count.
        finish: why generation ended.
        opens_thought: the prompt already opened a thought, so that the text starts inside it.
    """
    closed = text.rfind(_CLOSE)
    start = 0 if closed < 0 else closed + len(_CLOSE)
    thinking = text.rfind(_OPEN) >= start or (opens_thought and closed < 0)
    if finish == "length" and thinking:
        return Parsed(None, "overflow", None, len(text))
    groups = list(_GROUP.finditer(text, start))
    if not groups:
        return Parsed(None, "overflow" if finish == "length" else "none", None, len(text))
    last = groups[-1]
    decision = answers.markers.get(re.sub(r"[\s\\]", "", last[1]).lower())
    if decision is None:
        return Parsed(None, "format", None, len(text))
    return Parsed(decision, "explicit" if decision == "abstain" else "answer", last.start(), len(text))


def charged_length(parsed: Parsed, n_out: int | None) -> float | None:
    """Tokens of answer that a response is charged for (paper, B.3): up to its marker, or half of it without one.

    Returns:
        At least 1, not rounded: the price is a polynomial in it. None where the tokens were not counted.
    """
    if n_out is None:
        return None
    if not parsed.char_len:
        return 1.0
    share = 0.5 if parsed.char_index is None else parsed.char_index / parsed.char_len
    return max(1.0, n_out * share)
