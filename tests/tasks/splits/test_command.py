"""`python -m tasks`: what it prints, what it returns."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import tasks
from tasks.__main__ import main

from .conftest import RECIPES


def run(capsys, *words) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_build_and_verify(capsys, tmp_path):
    out = tmp_path / "s"
    status, said, progress = run(capsys, "build", "split=text", f"out={out}", "streams=3", "queries=4", "lengths=16")
    assert status == 0
    assert "text 1.1.0, 2 cells, 6 streams" in said
    assert "building low-L0016" in progress
    assert [cell.key for cell in tasks.load(out).cells] == ["low-L0016", "max-L0016"]
    status, said, _ = run(capsys, "verify", out, "--training-streams", "50")
    assert status == 0
    assert said.endswith("sound\n")
    assert "a sound split fails with probability at most 0.001" in said


def test_verify_fails_on_a_wrong_answer(capsys, copied, monkeypatch):
    split = tasks.load(copied)
    first, *others = split.cells[0].queries()
    wrong = [replace(first, label=1 - first.label), *others]
    split.cells[0] = replace(split.cells[0], read_queries=lambda: wrong)
    monkeypatch.setattr("tasks.__main__.load", lambda folder: split)
    status, said, _ = run(capsys, "verify", copied, "--training-streams", "10")
    assert status == 1
    assert "WRONG  low-L0008: " in said
    assert said.endswith("NOT SOUND\n")


def test_show_explains(capsys, built):
    status, said, _ = run(capsys, "show", built["text"])
    assert status == 0
    assert all(plan.key in said for plan in RECIPES["text"].plans())
    _, said, _ = run(capsys, "show", built["text"], "low-L0032")
    assert "exact 100%" in said
    _, said, _ = run(capsys, "show", built["text"], "low-L0032", "1")
    stream = tasks.load(built["text"]).cell("low-L0032").streams()[1]
    assert "variable-order n-gram" in said
    assert " ".join(map(str, stream.symbols)) in said
    assert f"{stream.stream_id}-uniform-00" in said
    _, said, _ = run(capsys, "show", built["easyhuman"], "text-L0040", "0")
    assert (
        f"at {tasks.load(built['easyhuman']).cell('text-L0040').streams()[0].rules['deviations'][0]['start']}: " in said
    )
    _, said, _ = run(capsys, "show", built["video"], "max-L0032-spatial", "0")
    assert "every symbol uniform" in said
    assert "on belts" in said


def test_render_writes_the_stream_and_a_candidate(capsys, built, tmp_path):
    from PIL import Image

    from tasks.video import read_frames

    cell = tasks.load(built["video"]).cell("max-L0008-spatial")
    stream = cell.streams()[2]
    where = (built["video"], cell.key, "2")
    status, said, _ = run(capsys, "render", *where, f"out={tmp_path / 'frames'}", "format=png")
    assert (status, said.split(": ")[1]) == (0, "8 frames of max-L0008-00002\n")
    frames = [np.array(Image.open(path)) for path in sorted((tmp_path / "frames").glob("*.png"))]
    symbols, belts = read_frames(frames)
    assert np.array_equal(symbols, stream.symbols)
    assert np.array_equal(belts, stream.belts)
    query = next(query for query in cell.queries() if query.stream_id == stream.stream_id)
    assert run(capsys, "render", *where, f"out={tmp_path / 'clip'}", f"query={query.query_id[-2:]}")[0] == 0
    frames = [np.array(Image.open(path)) for path in sorted((tmp_path / "clip").glob("*.png"))]
    symbols, belts = read_frames(frames)
    assert np.array_equal(symbols, query.candidate)
    assert np.array_equal(belts, query.candidate_belts)


def test_render_writes_mp4(capsys, built, tmp_path):
    pytest.importorskip("av")
    from tasks.video import read_frames, read_mp4

    cell = tasks.load(built["video"]).cell("low-L0008-sequential")
    status, _, _ = run(capsys, "render", built["video"], cell.key, "0", f"out={tmp_path / 'a.mp4'}", "format=mp4")
    assert status == 0
    symbols, _ = read_frames(read_mp4(tmp_path / "a.mp4"))
    assert np.array_equal(symbols, cell.streams()[0].symbols)


def test_entropy_table_in_a_document(capsys, built, tmp_path):
    document = tmp_path / "d.md"
    document.write_text("<!-- python -m tasks entropy-table X -->\n\nold\n\n<!-- end -->\n")
    assert run(capsys, "entropy-table", built["text"], f"docs={document}", "--check")[0] == 1
    assert run(capsys, "entropy-table", built["text"], f"docs={document}")[0] == 0
    status, said, _ = run(capsys, "entropy-table", built["text"], f"docs={document}", "--check")
    assert (status, said) == (0, f"{document}: is up to date\n")
    assert run(capsys, "entropy-table", built["text"])[1].strip() in document.read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["build", "split=text"], "out= is missing"),
        (["build", "split=text", "out=x", "lenghts=8"], "there is no option lenghts. Did you mean lengths"),
        (["build", "split=text", "out=x", "processes=0"], "processes=0: expected at least 1"),
        (["show", "TEXT", "low-L032"], "did you mean 'low-L0032'"),
        (["show", "TEXT", "low-L0032", "9"], "no stream '9' in cell low-L0032: name one by number, 0 to 3"),
        (["render", "TEXT", "low-L0032", "0", "out=x"], "cell low-L0032 is text; only the cells of video"),
        (["render", "VIDEO", "low-L0008-spatial", "0", "out=x", "format=gif"], "format=gif: one of png, mp4"),
        (["render", "VIDEO", "low-L0008-spatial", "0"], "out= is missing"),
        (["render", "VIDEO", "max-L0008-spatial", "0", "out=x", "query=77"], "query=77: not about max-L0008-00000"),
        (["entropy-table", "TEXT", "--check"], "name it with docs="),
        (["verify", "nowhere"], "nowhere holds no split"),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(capsys, built, words, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"TEXT": built["text"], "VIDEO": built["video"]}
    status, _, said = run(capsys, *(places.get(word, word) for word in words))
    assert status == 2
    assert said.startswith("error: ")
    assert complaint in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_lists_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["build", "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    for kind in ("text", "easyhuman", "video"):
        assert all(f"  {name}=" in said for name in RECIPES[kind].options)


def test_the_index_lists_cells_and_recipe(built):
    index = json.loads((built["video"] / "questions.json").read_text())
    assert index["recipe"] == RECIPES["video"].options
    assert [cell["key"] for cell in index["cells"]] == [plan.key for plan in RECIPES["video"].plans()]
