"""`python -m tasks.video`."""

from __future__ import annotations

import pytest
from PIL import Image

from tasks.video.__main__ import main


@pytest.mark.parametrize("variant", ["sequential", "spatial", "easyhuman"])
def test_sheet_draws_stream_and_candidates(tmp_path, capsys, variant):
    out = tmp_path / "new" / "sheet.png"
    assert main(["sheet", str(out), "--variant", variant, "--length", "24"]) == 0
    width, height = Image.open(out).size
    assert width == 12 * 116 + 4
    assert height == 2 * 116 + 4 + 2 * (24 + 120)
    assert "24 frames" in capsys.readouterr().out


def test_bench_checks_what_it_wrote(capsys):
    pytest.importorskip("av")
    assert main(["bench", "--length", "16"]) == 0
    assert "read and checked" in capsys.readouterr().out


def test_leak_lists_every_kind(capsys):
    assert main(["leak", "--streams", "10", "--length", "32"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_bad_input_is_one_line(tmp_path, capsys):
    assert main(["sheet", str(tmp_path / "x.png"), "--variant", "easyhuman", "--length", "8"]) == 2
    assert (
        capsys.readouterr().err == "error: EasyHuman streams need at least 20 symbols to show a pattern, got length=8\n"
    )
