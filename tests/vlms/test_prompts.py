"""The paper's words are exact, and a prompt is laid out in one way."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from vlms.prompts import FOLDER, TextPart, VideoPart, compose, instruction, words
from vlms.protocol import Observation, Query


def test_the_words_are_pinned():
    found = {path.stem: hashlib.sha256(words(path.stem).encode()).hexdigest() for path in FOLDER.glob("*.txt")}
    assert found == {
        "text": "c0a70a4f5eda8a5ae4f87fa3410ec07ed32acf78a9cb6c861e19a13757c74c84",
        "video": "4f209a0292bc2346799427ec50dc22eea8f5edc4f3b98869318b7a92fce33d8a",
        "natural": "c91aa468ce06b33cff6d398b944c26b2c76c207fa20f7a71327f2ac3a1b5b83c",
        "arm_a": "04235ededea24578305b7011f7ae0af4926be09a37f9e2fef9ed3ade4dd43246",
        "arm_b": "4f24879d7940c5969fa58b8bf315a4e583b96ed231ffa7cd30fdda0edc2c173f",
    }, "the prompts are quotations: restore them"


def test_the_paper_s_spelling_is_kept():
    assert words("video").count("conveyer belt") == 5
    assert "conveyor" not in words("video")


@pytest.mark.parametrize("template", ["text", "video", "natural"])
@pytest.mark.parametrize(("arm", "numbers"), [("A", ("+3", "-1", "25%")), ("B", ("+1", "-4", "80%"))])
def test_an_arm_adds_its_sentence_and_nothing_else(template, arm, numbers):
    question = "Did the person wash a plate in this video?" if template == "natural" else None
    plain, told = instruction(template, None, question), instruction(template, arm, question)
    assert told.startswith(plain + "\nScoring: a correct answer earns ")
    sentence = told.removeprefix(plain)
    assert all(number in sentence for number in numbers)
    assert sentence.count("{uncertain}" if template == "natural" else "{2}") == 2
    assert "{X}" not in told


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="no prompt is called 'audio'"):
        instruction("audio")
    with pytest.raises(ValueError, match="takes one question"):
        instruction("natural")
    with pytest.raises(ValueError, match="takes no question"):
        instruction("text", None, "Why?")


def test_text_is_laid_out_stream_first():
    stream = [Observation("text", s, t) for t, s in enumerate(("3", "14", "1"))]
    (part,) = compose(stream, Query("q", "text", "14, 1", "Well?"))
    assert part == TextPart("Main sequence: 3, 14, 1\nCandidate sequence: 14, 1\n\nWell?")


def test_every_frame_is_in_the_prompt_in_order():
    frames = [np.full((2, 2, 3), i, np.uint8) for i in range(5)]
    stream = [Observation("frames", f, t) for t, f in enumerate(frames[:3])]
    main, video, option, candidate, prompt = compose(stream, Query("q", "frames", frames[3:], "Well?"))
    assert [main.text, option.text, prompt.text] == ["Main video:", "Option video:", "Well?"]
    assert [f[0, 0, 0] for f in (*video.frames, *candidate.frames)] == [0, 1, 2, 3, 4]
    clip, prompt = compose(stream, Query("q", "frames", None, "Well?"))
    assert isinstance(clip, VideoPart)
    assert prompt.text == "Well?"


def test_mixed_streams_are_refused():
    with pytest.raises(ValueError, match="text or frames of one kind"):
        compose([Observation("text", "3")], Query("q", "frames", None, "Well?"))
    with pytest.raises(ValueError, match="no instruction"):
        compose([Observation("text", "3")], Query("q", "text", "1", None))
