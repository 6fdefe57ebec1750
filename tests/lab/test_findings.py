"""Findings: the verdict follows from the interval, and each number from the scores, on answers made to order."""

from __future__ import annotations

import numpy as np
import pytest

from lab.findings import ABSENT, APPEARS, FINDINGS, UNDECIDED, UNMEASURED, Evidence, findings, verdict
from scoring.summary import Settings, score

STREAMS, QUERIES = 40, 16


def answers(system: str, band: str, length: int, right: float, sure: bool, query_set: str = "uniform") -> dict:
    """Rows of a memory that is right that often; `sure`: more confident where it is right."""
    generator = np.random.default_rng([length, len(system), int(1000 * right)])
    n = STREAMS * QUERIES
    correct = generator.random(n) < right
    label = np.tile([0, 1], n // 2)
    confidence = 0.6 + 0.2 * correct * sure + 0.1 * generator.random(n)
    return {
        "system": [system] * n, "architecture": [system] * n, "band": [band] * n, "L": [length] * n,
        "stream": np.repeat(np.arange(STREAMS), QUERIES), "query": np.tile(np.arange(QUERIES), STREAMS),
        "label": label, "answer": np.where(correct, label, 1 - label), "confidence": confidence,
        "query_set": [query_set] * n,
    }  # fmt: skip


def scores_of(*tables: dict):
    columns = {name: np.concatenate([np.asarray(t[name]) for t in tables]) for name in tables[0]}
    return score(columns, Settings(redraws=200))


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], dict]:
    paper = {  # accuracy on noise at 128, 256, 512; on regular streams
        "transformer_rope": ((0.97, 0.52, 0.5), 0.8), "transformer_conv": ((1.0, 0.99, 0.97), 0.93),
        "retnet": ((0.8, 0.7, 0.6), 0.95), "deltanet": ((0.9, 0.8, 0.7), 0.93), "gru": ((0.7, 0.65, 0.6), 0.9),
        "ttt_mlp": ((0.8, 0.7, 0.6), 0.99), "gla": ((0.7, 0.65, 0.6), 0.9), "hist": ((0.65, 0.6, 0.57), 0.95),
    }  # fmt: skip
    tables = []
    for name, (noise, regular) in paper.items():
        for length, right in zip((128, 256, 512), noise, strict=True):
            sure = not name.startswith("transformer")
            tables += [answers(name, "max", length, right, sure), answers(name, "low", length, regular, sure)]
    found = findings(Evidence(scores_of(*tables), 128))
    return {(row["finding"], row["L"]): row for row in found}


@pytest.mark.parametrize(
    ("interval", "null", "above", "expected"),
    [
        ((0.3, 0.2, 0.4), 0.0, True, APPEARS),
        ((0.3, 0.2, 0.4), 0.0, False, ABSENT),
        ((-0.3, -0.4, -0.2), 0.0, True, ABSENT),
        ((0.5, 0.4, 0.55), 0.6, False, APPEARS),
        ((0.59, 0.57, 0.61), 0.6, False, UNDECIDED),
        ((0.3, 0.0, 0.4), 0.0, True, UNDECIDED),
        ((None, None, None), 0.0, True, UNMEASURED),
        ((0.3, None, None), 0.0, True, UNMEASURED),
    ],
)
def test_a_verdict_is_where_the_interval_lies(interval, null, above, expected):
    assert verdict(*interval, null, above) == expected


@pytest.mark.parametrize(
    ("finding", "length", "expected"),
    [
        ("rope_length", 256, APPEARS),
        ("rope_trained", 128, APPEARS),
        ("conv_capacity", 512, APPEARS),
        ("compression_retnet", 256, APPEARS),
        ("compression_retnet_beyond_counts", 256, ABSENT),
        ("compression_ttt_mlp", 512, APPEARS),
        ("low_above_conv_ttt_mlp", 256, APPEARS),
        ("low_above_conv_deltanet", 256, UNDECIDED),
        ("narrow_coverage_max", 256, APPEARS),
        ("narrow_relative_max", 512, APPEARS),
        ("rope_calibration", 256, APPEARS),
        ("mosaic_ceiling", 256, UNMEASURED),
        ("nope_chance", 128, UNMEASURED),
    ],
)
def test_the_findings_of_answers_made_to_order(rows, finding, length, expected):
    assert rows[finding, length]["verdict"] == expected, rows[finding, length]


def test_every_finding_is_there_once_per_length_and_says_what_is_missing(rows):
    assert len(rows) == sum(len(f.factors) for f in FINDINGS)
    assert rows["mosaic_ceiling", 256]["note"] == "no answers of memory_mosaic on max, uniform, L=256"
    retnet = rows["compression_retnet", 256]
    assert retnet["value"] == pytest.approx(0.25, abs=0.06)
    assert retnet["low"] < retnet["value"] < retnet["high"]


def test_the_narrowest_system_of_an_architecture_speaks_for_it():
    wide, narrow = (answers(f"gru{w}", "max", 256, r, True) for w, r in ((128, 1.0), (64, 0.5)))
    for table, width in ((wide, 128), (narrow, 64)):
        table["architecture"], table["width"] = ["gru"] * len(table["label"]), [width] * len(table["label"])
    assert Evidence(scores_of(wide, narrow), 128).accuracy("gru", "max", 2).value < 0.6


@pytest.mark.parametrize(("order", "right"), [(("plain", "variant"), 0.55), (("variant", "plain"), 0.9)])
def test_of_several_systems_of_one_width_the_first_named_speaks(order, right):
    tables = [answers("plain", "max", 256, 0.55, True), answers("variant", "max", 256, 0.9, True)]
    for table in tables:
        table["architecture"] = ["gla"] * len(table["system"])
    found = Evidence(scores_of(*tables), 128, order).accuracy("gla", "max", 2).value
    assert found == pytest.approx(right, abs=0.05)
