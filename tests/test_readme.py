"""Every command and snippet of the README runs, with sizes small enough for a test."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line.split("  #")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.strip().splitlines()
]
ARCHITECTURE, ONLINE = (block for language, block in BLOCKS if language == "python")
TINY = ["preset=smoke", "schedule.steps=4", "validation.every=2", "logger=csv", "threads=1", "device=cpu"]
SMALL = ["lengths=[32]", "streams=2", "queries=8", "redraws=10", "threads=1", "report=false"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """A folder with the README's package in it, and a run called `run` in its outputs."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "forgetful.py").write_text(ARCHITECTURE)
    command = [sys.executable, str(ROOT / "train.py"), *TINY, "name=run", f"outputs={folder / 'outputs'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "outputs"


@pytest.fixture(autouse=True)
def plugins() -> Iterator[None]:
    """Forgets the architectures that a test registers, for the tests of the registry that come after it."""
    from backbones.registry import _entries

    before = dict(_entries)
    yield
    _entries.clear()
    _entries.update(before)
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]


def test_there_is_something_to_test():
    assert len(COMMANDS) > 8
    assert sum(command.startswith("python train.py") for command in COMMANDS) >= 4


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python train.py")])
def test_training_commands(run_script, outputs, monkeypatch, command):
    monkeypatch.chdir(outputs.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = shlex.split(command)[2:]
    small = [] if "--help" in arguments else TINY
    code, out, err = run_script("train.py", *arguments, *small)
    assert code == 0, err
    if small:
        jobs = 4 if "-m" in arguments else 1
        assert out.count("trained 4 steps") == jobs, out
        if "plugins" in command:
            assert "forgetful d=64" in out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python evaluate.py")])
def test_evaluation_commands(run_script, outputs, monkeypatch, command):
    monkeypatch.chdir(outputs.parent)
    arguments = [a.replace("outputs/<run>", "outputs/run") for a in shlex.split(command)[2:]]
    code, out, err = run_script("evaluate.py", *arguments, *SMALL)
    assert code == 0, err
    assert "metrics: outputs/" in out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m")])
def test_module_commands(outputs, command):
    csv = outputs.parent / "responses.csv"
    rows = [f"mine,max,8,{stream},{q},{q % 2},{(q + stream) % 2},0.{6 + q}" for stream in range(3) for q in range(4)]
    csv.write_text("\n".join(["system,band,L,stream,query,label,answer,confidence", *rows]) + "\n")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]], capture_output=True, text=True, cwd=outputs.parent, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_architecture_passes_the_identities(outputs, monkeypatch):
    """What the contract tests would say of the README's layer, in short."""
    import torch

    from backbones import build, lookup

    monkeypatch.syspath_prepend(str(outputs.parent))
    __import__("my_package.forgetful")
    assert lookup("forgetful").layer.__name__ == "Forgetful"
    memory = build("forgetful").double()
    x, q = torch.randn(2, 33, 64).double(), torch.randn(2, 3, 64).double()
    y, state = memory.write(x)
    torch.testing.assert_close(memory.read(q, state)[:, 1], memory.write(torch.cat([x, q[:, 1:2]], 1))[0][:, -1])
    torch.testing.assert_close(memory.write(x[:, 10:], memory.write(x[:, :10])[1])[0], y[:, 10:])
    assert memory.price().weights == sum(p.numel() for p in memory.parameters() if p.ndim == 2)


def test_online_use(outputs, monkeypatch):
    monkeypatch.chdir(outputs.parent)
    exec(ONLINE.replace("outputs/<run>", "outputs/run"), {})


def test_its_tables_are_those_of_the_committed_results():
    from lab.results import RESULTS, page_text

    assert page_text(TEXT, RESULTS) == TEXT, "run: python -m lab.results readme"


def test_what_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", TEXT):
        assert f"\n{target}:" in makefile, f"make {target}"
    for path in re.findall(r"`((?:docs|tests|benchmarks|results)/[\w./-]+)`", TEXT):
        assert (ROOT / path).exists(), path
