"""`python -m backbones`: a trained memory in a terminal, and what the registry holds."""

from __future__ import annotations

import importlib
import io

import pytest

from backbones import MembershipModel, OnlineMemory, available
from backbones.run import FORMAT, Run
from lab import catalogue
from lab.chat import HELP, obey, session, symbols

main = importlib.import_module("backbones.__main__").main


@pytest.fixture
def memory() -> OnlineMemory:
    return OnlineMemory(MembershipModel("gru", 16).eval(), "run")


def test_letters_and_numbers_are_the_same_symbols():
    assert symbols("abc") == "abc"
    assert symbols("a b c") == "abc"
    assert symbols("0 1,2") == [0, 1, 2]
    with pytest.raises(ValueError, match="no symbols"):
        symbols(" ")


def test_a_session_from_a_pipe(memory, capsys):
    """Write, ask, write more, ask again; the answers are those of the memory itself."""
    lines = [
        "# a comment",
        "write abcab",
        "",
        "ask cab",
        "state",
        "write 3 4",
        "ask 2 0 1",
        "forget",
        "state",
        "quit",
        "x",
    ]
    assert session(memory, lines) == 0
    printed = capsys.readouterr().out.splitlines()
    whole = OnlineMemory(memory.model)
    first, second = whole.write([0, 1, 2, 0, 1]).read([2, 0, 1]), whole.write([3, 4]).read("cab")
    held = OnlineMemory(memory.model).write("abcab").state.nbytes

    def said(answer) -> str:
        word = "yes" if answer.occurred else "no"
        return f"{word}, confidence {answer.confidence:.3f}, {answer.flops / 1e6:,.1f} MFLOPs so far"

    assert printed == [
        "written 5 symbols, 5 in all", said(first), f"5 symbols written, {held:,} bytes of state",
        "written 2 symbols, 7 in all", said(second), "empty", "0 symbols written, 0 bytes of state",
    ]  # fmt: skip
    assert second.flops > first.flops


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wrote abc", "there is no command 'wrote'; help lists them"),
        ("write", "no symbols: give letters"),
        ("write xyz", "'x' is not one of the letters a..p"),
        ("write 3 99", "expected symbols 0..15"),
        ("ask abcdefg", "a candidate of 7 symbols; this model takes 1 to 6"),
    ],
)
def test_a_pipe_stops_at_an_error_with_2(memory, capsys, line, message):
    assert session(memory, [line, "state"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == "", "the commands after an error were obeyed"


def test_a_terminal_goes_on_after_an_error(memory, capsys, monkeypatch):
    typed = iter(["wriet ab", "write ab"])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def answer(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", answer)
    assert session(memory) == 0
    captured = capsys.readouterr()
    assert "no command 'wriet'" in captured.err
    assert "written 2 symbols, 2 in all" in captured.out
    assert "run: symbols a to p, or 0 to 15" in captured.out
    assert obey(memory, "help") == HELP


def test_chat_opens_a_run_folder(memory, tmp_path, monkeypatch, capsys):
    run = Run(tmp_path / "run")
    run.write_record(format=FORMAT, model={"name": "gru", "width": 16}, plugins=[])
    run.save_best(memory.model, step=1)
    monkeypatch.setattr("sys.stdin", io.StringIO("write abc\nask abc\n"))
    assert main(["chat", str(run.path)]) == 0
    answer = OnlineMemory(memory.model).write("abc").read("abc")
    assert f"confidence {answer.confidence:.3f}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["chat", str(tmp_path)])
    assert stop.value.code == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_the_list_has_a_row_for_every_backbone(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in available():
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{name} "))
        assert f"{catalogue.parameters(name, 64):,}" in line


def test_the_models_page_is_what_the_registry_holds(capsys, monkeypatch, tmp_path):
    assert main(["models", "--check"]) == 0, capsys.readouterr().out
    monkeypatch.setattr(catalogue, "PAGE", tmp_path / "models.md")
    assert main(["models", "--write"]) == 0
    text = catalogue.PAGE.read_text()
    for name in available():
        assert f"\n## {name}\n" in text
        assert "arXiv" in catalogue.paper(name)
        assert all(meaning for *_, meaning in catalogue.settings(name)), f"a setting of {name} has no meaning"
    catalogue.PAGE.write_text(text.replace("GRU", "UGR"))
    assert main(["models", "--check"]) == 1
