"""Every command and class of docs/memory_systems.md runs, but for those marked as needing a real model or a key."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.conftest import ROOT
from vlms import registry

TEXT = (ROOT / "docs" / "memory_systems.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line
    for language, block in BLOCKS
    if language == "bash" and not block.startswith("# needs")
    for line in block.strip().splitlines()
]
(EXAMPLE,) = (block for language, block in BLOCKS if language == "python")


def test_the_page_runs_from_top_to_bottom(run_script, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recent.py").write_text(EXAMPLE)
    assert len(COMMANDS) == 4
    for command in COMMANDS:
        program, script, *arguments = shlex.split(command)
        if script == "-m":
            done = subprocess.run(
                [sys.executable, "-m", *arguments], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
            )
            assert done.returncode == 0, done.stderr
            continue
        code, out, err = run_script(script, *arguments, "redraws=10", "threads=1", "report=false")
        assert code == 0, err
        assert program == "python"
        assert "accuracy, uniform negatives, text" in out
    assert "last 12 symbols" in out
    assert len(list(tmp_path.glob("outputs/memories/last-*-symbols/answers-text-*.jsonl"))) == 2


def test_the_messages_of_the_page_are_those_of_the_code():
    """The fixed words of every message in the table are in a source file."""
    sources = " ".join(
        re.sub(r'["\n]\s*f?"?', "", path.read_text()) for path in [*ROOT.glob("vlms/*.py"), *ROOT.glob("lab/*.py")]
    )
    squeezed = re.sub(r"\s+", "", sources)
    rows = re.findall(r"^\| [^|]+ \| `+(.+?)`+ \|$", TEXT, re.MULTILINE)
    assert len(rows) >= 9
    for message in rows:
        longest = max(re.split(r"URL|MODEL|FILE|'toi'|'server'|\b[XNQ]\b|[0-9]+|[`().?:;\[]", message), key=len)
        assert re.sub(r"\s+", "", longest) in squeezed, longest
