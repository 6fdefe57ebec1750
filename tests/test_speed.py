"""docs/speed.md shows what results/speed holds, and its commands, at a small size, print what it holds."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.page import SAVED, WANTED, page_text, wanted

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "speed.md").read_text()
COMMANDS = [line.partition("  #")[0].split(" > ") for line in re.findall(r"^python -m .* > .*$", PAGE, re.MULTILINE)]
SMALL = {
    "benchmarks.kernels": ["retnet", "--rounds", "2", "--length", "64", "--threads", "1"],
    "benchmarks.linear_backbones": ["gla", "--rounds", "2", "--length", "64", "--threads", "1"],
    "benchmarks.other_backbones": ["ttt_mlp", "--rounds", "2"],
}


def test_the_page_shows_the_saved_outputs():
    assert page_text(PAGE) == PAGE
    assert len(COMMANDS) == len(list(SAVED.glob("*.tsv"))) == 5
    for path in SAVED.glob("*.tsv"):
        assert f"<!-- {path.stem} -->" in PAGE


def test_what_is_not_reached_is_bold():
    rows = [f"{operator}\t{peer}\t1\t100\t{1 if peer.endswith('C=256') else 100}" for operator, peer in WANTED]
    table = wanted("\n".join(["# machine", "operator\tpeer\tthreads\tforward\tforward+backward", *rows]))
    assert table.count("**") == 2
    assert "| mamba2 | transformers mamba2_chunk_scan C=256 | 5.7 / 6.5 | 100 / **1** |" in table


@pytest.mark.parametrize(("command", "file"), COMMANDS, ids=lambda x: x)
def test_a_command_prints_what_is_saved(monkeypatch, capsys, command, file):
    """The same columns and, in the line above them, the same kind of machine."""
    pytest.importorskip("fla")
    _, _, module, *arguments = shlex.split(command)
    modes = [x for x in arguments if x in ("--chunks", "--states")]
    monkeypatch.setattr(sys, "argv", [module, *SMALL[module], *modes])
    before = torch.get_num_threads()
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        torch.set_num_threads(before)
    about, header, first, *_ = [line for line in capsys.readouterr().out.splitlines() if line]
    saved_about, saved_header, saved_first, *_ = (ROOT / file.strip()).read_text().splitlines()
    assert about.startswith("# ")
    assert saved_about.startswith("# ")
    assert header == saved_header
    assert first.count("\t") == saved_first.count("\t") == header.count("\t")
