"""`python -m flops`: what it prints, in every form, and what it says to a mistake."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from backbones import available, build
from flops import price
from flops.__main__ import generated, main, state_bytes

DOCS = Path(__file__).parents[2] / "docs" / "flops.md"


def run(capsys, *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_text_has_every_configuration_and_the_budgets(capsys):
    out = run(capsys, "--L", "64,128")
    for name in available():
        assert len(re.findall(rf"^ +{name} +(?:64|128) +(?:64|128) ", out, re.MULTILINE)) == 4, name
    assert "assumed: the paper is silent" in out
    assert "<= 1,750" in out
    assert "gla D=64 (1,674)" in out


def test_json_has_raw_values(capsys):
    found = json.loads(run(capsys, "--backbone", "gla,gru", "--d", "64", "--L", "4096", "--queries", "1,8", "--json"))
    gla = found["costs"][0]
    expected, memory = price("gla"), build("gla")
    assert gla["flops_write"] == expected.write(4096)
    assert gla["flops_read"] == expected.read(4096)
    assert gla["flops_per_answer_q8"] == expected.amortised(4096, 8)
    assert gla["matrix_parameters"] == expected.weights
    assert gla["parameters"] == sum(p.numel() for p in memory.parameters())
    assert gla["state_bytes"] == 3 * 4 * 8 * 64
    assert gla["source"] == "declared"
    assert [c["backbone"] for c in found["tiers"][0]["configurations"]] == ["gru", "gla"]


@pytest.mark.parametrize(("flag", "delimiter"), [("--csv", ","), ("--tsv", "\t")])
def test_separated_values(capsys, flag, delimiter):
    out = run(capsys, "--backbone", "gru", "--L", "32,64", flag)
    rows = list(csv.DictReader(io.StringIO(out), delimiter=delimiter))
    assert [(row["d"], row["L"]) for row in rows] == [("64", "32"), ("64", "64"), ("128", "32"), ("128", "64")]
    assert int(rows[0]["flops_total"]) == price("gru").total(33)


def test_terms_add_up_to_the_price(capsys):
    rows = json.loads(run(capsys, "--backbone", "gla", "--d", "128", "--L", "100", "--terms", "--json"))["terms"]
    assert sum(row["flops"] for row in rows) == price("gla", width=128).total(101)
    assert {row["status"] for row in rows} <= {"given", "derived", "assumed"}


def test_state_table(capsys):
    argv = ("--backbone", "gru,transformer_rope", "--d", "64", "--L", "256", "--queries", "16", "--state", "--json")
    gru, rope = json.loads(run(capsys, *argv))["state"]
    assert rope["state_bytes"] == 3 * 2 * 64 * 256 * 4
    assert rope["state_bytes_per_token"] == 3 * 2 * 64 * 4
    assert rope["state_bits_per_stream_bit"] == 8 * rope["state_bytes"] / (4 * 256)
    assert gru["state_bytes_per_token"] == 0
    # The GRU is the cheapest: sharing its own write pays from the first question on.
    assert gru["break_even_q"] == pytest.approx(1)
    q = rope["break_even_q"]
    per_answer = rope["flops_write"] / q + rope["flops_read"]
    assert per_answer == pytest.approx(gru["flops_total"])


@pytest.mark.parametrize("name", available())
def test_state_bytes_layer_by_layer(name):
    """The command writes every layer on its own, which is cheap at L = 4096; the whole memory holds the same."""
    memory, times = build(name), (1, 100, 300)
    assert state_bytes(memory, times) == [memory.state_bytes(t) for t in times]


def test_markdown_is_a_table(capsys):
    lines = run(capsys, "--backbone", "gru", "--d", "64", "--formulas", "--markdown").splitlines()
    assert "| gru | 3 (12 D^2 T) | - |" in lines


def test_check_prints_what_holds_and_fails_where_it_does_not(capsys, monkeypatch):
    argv = ("--backbone", "gru", "--d", "64", "--check")
    assert "declared = counted" in run(capsys, *argv)
    layer = type(build("gru").layers[0])
    right = layer.terms
    monkeypatch.setattr(layer, "terms", lambda self: right(self)[:1])
    assert main(argv) == 1
    assert "counted, not declared: rnn.weight_hh_l0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--backbone", "mambo2"], "Did you mean mamba2"),
        (["--d", "64,x"], "'64,x': expected whole numbers"),
        (["--L", "0"], "'0': expected whole numbers from 1"),
        (["--d", "65", "--backbone", "gla"], "width 65 is not divisible"),
        (["--plugins", "no_such_module"], "no_such_module"),
        (["--terms", "--state"], "not allowed with"),
        (["--docs", "no/such/page.md"], "no/such/page.md"),
    ],
)
def test_mistakes_exit_with_2_and_say_why(capsys, argv, said):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_plugin_without_terms_is_marked(capsys, monkeypatch, tmp_path):
    from backbones import registry

    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "surprise_plugin.py").write_text(
        "from backbones import register\n"
        "from backbones.gru import GRU\n"
        "from backbones.base import MemoryLayer\n\n\n"
        "@register('surprise')\n"
        "class Surprise(GRU):\n"
        "    terms = MemoryLayer.terms\n"
    )
    out = run(capsys, "--plugins", "surprise_plugin", "--backbone", "surprise", "--d", "64", "--L", "32")
    assert "counted: no closed form is declared. surprise: counted at" in out
    assert re.search(r"surprise +64 +32 +counted", out)


def test_the_tables_of_the_docs_are_up_to_date():
    text = DOCS.read_text()
    assert text.count("<!-- python -m flops ") == text.count("<!-- end -->") >= 3
    assert generated(text) == text, "run: python -m flops --docs docs/flops.md"


def test_docs_are_written_in_place(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- python -m flops --backbone gru --formulas --d 64 -->\nold\n<!-- end -->\nafter\n")
    run(capsys, "--docs", str(page))
    assert "| gru | 3 (12 D^2 T) | - |" in page.read_text()
    assert "old" not in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
