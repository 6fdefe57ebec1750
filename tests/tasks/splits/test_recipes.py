"""What the three splits hold, and which options are refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tasks
from tasks.splits.entropy_table import entropy_table, in_document
from tasks.splits.options import OptionError, pairs, recipe
from tasks.splits.recipes import RECIPES, EasyHumanRecipe, TextRecipe, VideoRecipe, rule_set

DOCS = Path(__file__).parents[3] / "docs" / "splits.md"


def test_the_defaults_are_the_papers_cells():
    text, easy, video = TextRecipe(), EasyHumanRecipe(), VideoRecipe()
    assert text.lengths == (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    assert (text.streams, text.queries, text.bands) == (20, 16, ("low", "max"))
    assert len(text.plans()) == 20
    assert [(plan.medium, plan.length) for plan in easy.plans()] == [("text", 256), ("text", 1024), ("video", 256)]
    assert {(plan.variant, plan.medium) for plan in video.plans()} == {("sequential", "video"), ("spatial", "video")}


def test_all_query_sets_ask_about_the_same_positives(built):
    cell = tasks.load(built["text"]).cell("max-L0032")

    def yes(query_set: str) -> set[tuple]:
        found = (query for query in cell.queries(query_set) if query.label)
        return {(query.stream_id, query.query_id[-2:], query.candidate.tobytes()) for query in found}

    assert yes("near") <= yes("uniform")
    assert yes("order") <= yes("uniform")
    assert yes("order")


def test_both_variants_ask_about_the_same_streams_with_one_belt_per_letter(built):
    split = tasks.load(built["video"])
    for band in ("low", "max"):
        sequential, spatial = (split.cell(f"{band}-L0032-{variant}").streams() for variant in ("sequential", "spatial"))
        text = tasks.load(built["text"]).cell(f"{band}-L0032").streams()
        for a, b, c in zip(sequential, spatial, text, strict=True):
            assert a.stream_id == b.stream_id == c.stream_id
            assert np.array_equal(a.symbols, b.symbols)
            assert np.array_equal(a.symbols, c.symbols)
            assert np.array_equal(a.belts, b.belts)
            belts_of = {symbol: set(a.belts[a.symbols == symbol].tolist()) for symbol in a.symbols}
            assert all(len(belts) == 1 for belts in belts_of.values())


def test_a_video_of_one_letter_has_no_spatial_questions():
    video = VideoRecipe(lengths=(8,), bands=("low",), streams=20, queries=2)
    sequential, spatial = video.plans()
    constant = [len(set(s.symbols.tolist())) == 1 for s in video.make(sequential).streams]
    made = video.make(spatial)
    assert any(constant)
    asked = {query.stream_id for query in made.queries}
    assert [stream.stream_id not in asked for stream in made.streams] == constant
    assert made.left_out == {"spatial": 2 * sum(constant)}


def test_easyhuman_shows_the_same_streams_in_both_media():
    easy = EasyHumanRecipe(streams=6, lengths=(64,), video_lengths=(64,))
    text, video = (easy.make(plan) for plan in easy.plans())
    for a, b in zip(text.streams, video.streams, strict=True):
        assert np.array_equal(a.symbols, b.symbols)
        assert a.rules == b.rules
        assert a.belts is None
        assert b.belts.shape == b.symbols.shape
    assert [q.candidate.tolist() for q in text.queries] == [q.candidate.tolist() for q in video.queries]


def test_rules_come_back_from_a_split(built):
    for record in tasks.load(built["text"]).cell("low-L0032").streams():
        made = tasks.low_stream(tasks.EntropyConfig(), 3, int(record.stream_id[-5:]), 32, split="test")
        assert rule_set(record.rules) == made.rules
        assert (record.rate, record.rules["tries"]) == (made.rate, made.tries)


def test_the_independent_sampler_can_be_chosen():
    made = TextRecipe(streams=2, lengths=(64,), bands=("low",), sampler="independent", acceptance="band")
    (plan,) = made.plans()
    assert {record.rules["sampler"] for record in made.make(plan).streams} == {"independent"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, r"split= is missing: one of text, easyhuman, video"),
        ({"split": "vidoe"}, r"unknown split 'vidoe'.*did you mean 'video'"),
        ({"split": "text", "lenghts": "8"}, r"there is no option lenghts. Did you mean lengths\?"),
        ({"split": "text", "variants": "spatial"}, r"there is no option variants"),
        ({"split": "text", "streams": "many"}, r"streams=many: expected a whole number"),
        ({"split": "text", "streams": "0"}, r"streams=0: a cell needs at least 1"),
        ({"split": "text", "queries": "7"}, r"queries=7: use an even number"),
        ({"split": "text", "lengths": "8,8"}, r"lengths=8,8: name different lengths of at least 6"),
        ({"split": "text", "lengths": "8,4"}, r"lengths=8,4: name different lengths of at least 6"),
        ({"split": "text", "bands": "middle"}, r"unknown bands 'middle': it is one of max, low"),
        ({"split": "text", "query_sets": "near,near"}, r"query_sets=near,near: name one or more of .*, each once"),
        ({"split": "text", "sampler": "open"}, r"unknown sampler 'open'"),
        ({"split": "easyhuman", "lengths": "16"}, r"lengths=16: name different lengths of at least 20"),
        ({"split": "easyhuman", "video_lengths": "8"}, r"video_lengths=8: name lengths of at least 20"),
        ({"split": "video", "belt_mode": "iidd"}, r"unknown belt_mode 'iidd'.*did you mean 'iid'"),
    ],
)
def test_a_mistyped_option_is_refused_with_the_fix(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        recipe(options)


def test_options_are_read():
    assert recipe(
        {"split": "text", "seed": "5", "lengths": "8, 16", "streams": "2_000", "bands": "[low]"}
    ) == TextRecipe(seed=5, lengths=(8, 16), streams=2000, bands=("low",))
    for name, kind in RECIPES.items():
        words = [f"{key}={','.join(map(str, v)) if isinstance(v, list) else v}" for key, v in kind().options.items()]
        assert recipe({"split": name} | pairs(words, list(kind().options))) == kind()
    with pytest.raises(OptionError, match="expected option=value"):
        pairs(["seed"], ["seed"])
    with pytest.raises(OptionError, match="seed is given twice, as 1 and as 2"):
        pairs(["seed=1", "seed=2"], ["seed"])


def test_the_documented_entropy_table_is_of_this_code(built):
    """The rows of the short lengths again; `python -m tasks entropy-table ... --check` does them all."""
    text = DOCS.read_text()
    default = TextRecipe()
    for plan in default.plans():
        if plan.band == "low" and plan.length in (16, 32, 64, 128):
            rates = [record.rate for record in default.make(plan).streams]
            numbers = (np.mean(rates), np.std(rates), np.min(rates), np.max(rates))
            row = f"| {plan.length} | 20 | {' | '.join(f'{number:.2f}' for number in numbers)} |"
            assert row in text, row
    pooled = re.search(r"\| ours, pooled \| 200 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
    mean, std, low, high = map(float, pooled.groups())
    assert abs(mean - 0.67) < 0.03
    assert abs(std - 0.16) < 0.03
    assert 0.33 <= low < high <= 0.99


def test_a_document_gets_its_table(built):
    table = entropy_table(tasks.load(built["text"]))
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
        "| 8", "| 32", "| ours, pooled", "| paper, pooled (A.1)",
    ]  # fmt: skip
    document = "before\n\n<!-- python -m tasks entropy-table X -->\n\nold\n\n<!-- end -->\n\nafter\n"
    assert in_document(document, table) == document.replace("old", table)
    with pytest.raises(ValueError, match="no block from"):
        in_document("nothing here", table)
    with pytest.raises(ValueError, match="no low band of text"):
        entropy_table(tasks.load(built["easyhuman"]))
