"""Every way an answer can end, and what it is charged for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlms.parsing import ABSTAIN_KINDS, charged_length, parse
from vlms.protocol import NATURAL, SYNTHETIC

CASES = [
    ("{0}", "stop", "yes", "answer"),
    ("{ 0 }", "stop", "yes", "answer"),
    ("{{0}}", "stop", "yes", "answer"),
    (r"\boxed{0}", "stop", "yes", "answer"),
    (r"\boxed{\{1\}}", "stop", "no", "answer"),
    ("I say {1}. Unsure: {2}", "stop", "abstain", "explicit"),
    ("{yes}", "stop", None, "format"),
    ("{}", "stop", None, "format"),
    ("{0} for f{x}", "stop", None, "format"),
    ("{uncertain}", "stop", None, "format"),  # the marker of another prompt
    ("0", "stop", None, "none"),
    ("[0]", "stop", None, "none"),
    ("{0", "stop", None, "none"),
    ("", "stop", None, "none"),
    ("", "none", None, "none"),
    ("so many words", "length", None, "overflow"),
    ("", "length", None, "overflow"),
    ("{1} and so many words", "length", "no", "answer"),  # it did answer before the limit
    ("<think>{0}?</think>{1}", "stop", "no", "answer"),
    ("<think>{0}?</think>", "stop", None, "none"),  # a marker inside a closed thought is no answer
    ("a</think>{0}</think>{1}", "stop", "no", "answer"),
    ("<think>{0}? Hm", "length", None, "overflow"),
    ("<think>{0}? Hm", "stop", "yes", "answer"),  # never closed, but ended by itself
    ("</think>{0}<think>{1}", "length", None, "overflow"),  # a second thought that never closed
]


@pytest.mark.parametrize(("text", "finish", "decision", "kind"), CASES)
def test_every_case(text, finish, decision, kind):
    parsed = parse(text, SYNTHETIC, finish)
    assert (parsed.decision, parsed.kind) == (decision, kind)
    assert parsed.char_len == len(text)
    assert (parsed.char_index is None) == (decision is None)
    if decision is not None:
        assert text[parsed.char_index] == "{"


def test_a_template_that_opens_the_thought():
    assert parse("{0}? Hm", SYNTHETIC, "length", opens_thought=True).kind == "overflow"
    assert parse("Hm</think>{0}", SYNTHETIC, "length", opens_thought=True).decision == "yes"


def test_the_natural_prompt_has_its_own_marker():
    assert parse("{Uncertain}", NATURAL).kind == "explicit"
    assert parse("{2}", NATURAL).kind == "format"


def test_the_three_abstentions_stay_apart():
    kinds = {kind: ABSTAIN_KINDS[kind] for _, _, _, kind in CASES}
    assert kinds == {
        "answer": None,
        "explicit": "explicit",
        "format": "format",
        "none": "format",
        "overflow": "overflow",
    }


@pytest.mark.parametrize(
    ("text", "n_out", "charged"),
    [
        ("{0}", 3, 1.0),  # at least one token
        ("0123456789{0}", 13, 10.0),  # as far as the marker
        ("<think>abc</think>{0}", 210, 210 * 18 / 21),  # thinking is charged
        ("{x} 0123456", 20, 10.0),  # no valid marker: half
        ("", 5, 1.0),
        ("{0}", None, None),
    ],
)
def test_charged_length(text, n_out, charged):
    assert charged_length(parse(text, SYNTHETIC), n_out) == charged


@given(st.text(alphabet="{}012x \\<>/think", max_size=40), st.sampled_from(["stop", "length"]), st.booleans())
def test_any_text_is_one_of_the_five(text, finish, opens):
    parsed = parse(text, SYNTHETIC, finish, opens)
    assert parsed.kind in ABSTAIN_KINDS
    assert (parsed.kind == "overflow") <= (finish == "length")
    assert 1 <= charged_length(parsed, 100) <= 100
