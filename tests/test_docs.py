"""Every command and snippet in docs/ runs, with sizes small enough for a test, and every link leads somewhere.

A command whose comment says that it needs Slurm, a GPU, a cluster or hours is composed instead of run: its settings
exist and fit each other. Pages whose commands need material that other tests make are in `ELSEWHERE`, with the test.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from scoring import read_tables, write_table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
ELSEWHERE = {
    "memory_systems.md": "tests/vlms/test_page.py",
    "speed.md": "tests/test_speed.py",
    "splits.md": "tests/tasks/splits/test_recipes.py",
    "study.md": "tests/lab/test_study.py",
}
NEEDS = re.compile(r"needs (Slurm|a GPU|a cluster|hours)")
TINY = ["preset=smoke", "schedule.steps=2", "validation.every=1", "logger=csv", "threads=1", "device=cpu"]


@dataclass(frozen=True)
class Command:
    """A line of a ```bash block: what to run, and the comment behind it."""

    page: str
    text: str
    comment: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of the fenced blocks of a language."""
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    pages = [page for page in PAGES if page.name not in ELSEWHERE]
    return [(page.name, block) for page in pages for block in pattern.findall(page.read_text())]


def commands() -> list[Command]:
    found = []
    for page, block in blocks("bash"):
        for line in block.strip().splitlines():
            text, _, comment = line.partition("  #")
            text, _, close = text.partition(" # ")
            found.append(Command(page, text.strip(), comment or close))
    return found


COMMANDS = commands()
TRAINING = [c for c in COMMANDS if c.text.startswith("python train.py")]
OTHERS = [c for c in COMMANDS if c not in TRAINING]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run called `run` in its outputs, and beside it a backbone and two response tables."""
    folder = tmp_path_factory.mktemp("docs")
    for system, file in (("mine", "mine.csv"), ("theirs", "theirs.csv")):
        asked = [(band, s, q) for band in ("low", "max") for s in range(3) for q in range(4)]
        rows = [f"{system},{band},256,{s},{q},{q % 2},{(q + s) % 2},9,1" for band, s, q in asked]
        head = "system,band,L,stream,query,label,answer,flops_write,flops_read"
        (folder / file).write_text("\n".join([head, *rows]) + "\n")
    write_table(read_tables([folder / "theirs.csv"]), folder / "theirs.parquet")
    (folder / "fading.py").write_text(dict(blocks("python"))["add_a_backbone.md"])
    command = [sys.executable, str(ROOT / "train.py"), *TINY, "backbone=gru", "name=run", "outputs=outputs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_there_is_something_to_test():
    assert len(TRAINING) >= 10
    assert len(OTHERS) >= 5
    assert any(NEEDS.search(c.comment) for c in TRAINING)
    assert sum(not NEEDS.search(c.comment) for c in TRAINING) >= 4


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_left_out_have_a_test_that_reads_them(page, test):
    assert page in (ROOT / test).read_text()


@pytest.mark.parametrize("command", TRAINING, ids=str)
def test_training_commands(run_script, folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = shlex.split(command.text)[2:]
    if NEEDS.search(command.comment):
        if "launcher=submitit" in command.text:
            pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
        if "launcher=ray" in command.text:
            pytest.importorskip("ray")
        single = [re.sub(r"=(\w+),.*", r"=\1", a) for a in arguments if a != "-m"]  # --cfg knows no sweeps
        code, out, err = run_script("train.py", *single, "--cfg", "job")
        assert code == 0, err
        assert "backbone:" in out
        return
    if "launcher=submitit_local" in command.text:
        pytest.skip("tests/lab/test_sweeps.py runs this launcher")
    code, out, err = run_script("train.py", *arguments, *TINY, "schedule.steps=1")
    assert code == 0, err
    assert "trained 1 steps" in out or "already trained" in out


@pytest.mark.parametrize("command", OTHERS, ids=str)
def test_other_commands(folder, monkeypatch, capsys, snippet, command):
    """`python -m ...`, alone or at the end of a pipe; `snippet` forgets what a plugin registers."""
    before, _, text = command.text.replace("<run>", "run").rpartition("| ")
    typed = subprocess.run(["sh", "-c", before], capture_output=True, text=True, check=True).stdout
    python, option, module, *arguments = shlex.split(text)
    assert (python, option) == ("python", "-m"), f"no rule for the command {command.text}"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    monkeypatch.delitem(sys.modules, "fading", raising=False)  # a plugin registers when it is imported
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    assert printed.out.strip() or arguments[0] == "chat", "nothing was printed"
    assert printed.out.count("confidence") == typed.count("ask "), printed.out


@pytest.fixture
def snippet(monkeypatch):
    """Run a page's snippet; what it registers is forgotten afterwards."""
    from backbones.registry import _entries, available

    available()  # loads those of the lab

    def run(page: str, code: str) -> None:
        module = ModuleType("snippet")
        monkeypatch.setitem(sys.modules, "snippet", module)  # dataclasses look their module up
        exec(compile(code.replace("<run>", "run"), f"docs/{page}", "exec"), module.__dict__)

    before = dict(_entries)
    yield run
    _entries.clear()
    _entries.update(before)


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda value: value if value.endswith(".md") else "")
def test_snippets(folder, monkeypatch, snippet, page, code):
    monkeypatch.chdir(folder)
    snippet(page, code)


def test_the_backbone_of_the_page_keeps_its_promises(snippet):
    """Its declared price is what its step executes, and a wrong setting says why."""
    from backbones import build
    from flops.count import tie

    snippet("add_a_backbone.md", dict(blocks("python"))["add_a_backbone.md"])
    assert not tie(build("fading", 16)).problems
    with pytest.raises(ValueError, match="keep=2 must lie within 0 and 1"):
        build("fading", 16, keep=2)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for path in re.findall(r"`((?:docs|tests|benchmarks|notebooks|configs|lab|tasks|backbones)/[\w./-]+\.\w+)`", text):
        if "fading" not in path:
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"({page.name})" in index, f"docs/README.md does not link {page.name}"
