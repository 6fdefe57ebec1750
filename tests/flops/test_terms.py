"""Prices from terms: what adds up, how often a term runs, and what the package needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flops import (
    Price,
    Term,
    attention_pairs,
    causal_pairs,
    linear,
    per_token,
    stack,
    strict_pairs,
    windowed_pairs,
    written,
)


def toy() -> Price:
    """Two layers: one projection 4 -> 6, attention, and in the upper layer an assumed gate."""
    layer = [linear("projection", 4, 6), *attention_pairs("attention", 4, causal_pairs)]
    return stack([layer, [*layer, linear("gate", 4, 4, status="assumed")]])


@pytest.mark.parametrize("T", [0, 1, 2, 16, 17, 18, 100])
def test_rules_of_execution_count_pairs(T):
    assert per_token(T) == T
    assert causal_pairs(T) == sum(1 for t in range(T) for j in range(t + 1))
    assert strict_pairs(T) == sum(1 for t in range(T) for j in range(t))
    for window in (1, 16):
        assert windowed_pairs(window)(T) == sum(1 for t in range(T) for j in range(max(0, t - window), t + 1))


def test_a_price_by_hand():
    price = toy()
    per_layer = 2 * 4 * 6
    assert price.total(3) == 2 * 3 * per_layer + 3 * 2 * 4 * 4 + 2 * 6 * 2 * (2 * 4)
    assert price.weights == 4 * 6 * 2 + 4 * 4
    assert price.assumed == ("gate",)


@pytest.mark.parametrize("L", [1, 16, 1000])
def test_write_and_read_are_the_total(L):
    price = toy()
    assert price.write(L) + price.read(L) == price.total(L + 1)
    assert price.amortised(L, 1) == price.total(L + 1)
    assert price.amortised(L, 8) == price.write(L) / 8 + price.read(L)


def test_a_stream_serves_at_least_one_query():
    with pytest.raises(ValueError, match="queries=0"):
        toy().amortised(10, 0)


def test_a_term_at_one_token_is_the_difference_of_its_totals():
    (scores, _) = attention_pairs("attention", 4, strict_pairs)
    assert [scores.at(t) for t in (1, 2, 3)] == [0, 8, 16]


def test_the_table_has_every_flop_once():
    price, L = toy(), 33
    rows = price.table(L)
    assert sum(row["flops"] for row in rows) == price.total(L + 1)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [(row["label"], row["layers"]) for row in rows] == [
        ("projection", [0, 1]), ("attention: scores", [0, 1]), ("attention: values", [0, 1]), ("gate", [1]),
    ]  # fmt: skip
    assert rows[1]["executions"] == "T (T + 1) / 2"


def test_terms_that_run_at_different_times_stay_apart_in_the_table():
    first, second = (Term("upkeep", "state", (1, 4, 4), count=lambda T, n=n: T // n) for n in (8, 16))
    assert [row["flops"] for row in stack([[first], [second]]).table(63)] == [8 * 32, 4 * 32]


def test_a_rule_says_how_it_is_written():
    assert Term("x", "pair", (1, 1, 1), count=windowed_pairs(16)).formula == "P_16(T)"
    assert Term("x", "pair", (1, 1, 1), count=written("T / 8")(lambda T: T // 8)).formula == "T / 8"


def test_prices_need_no_torch():
    code = "import sys, flops, flops.report; print([m for m in ('torch', 'backbones') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
