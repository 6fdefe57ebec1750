"""One recipe, one set of bytes: whatever was built before, by however many processes, killed or not."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import tasks
from tasks.splits import SplitError
from tasks.splits.build import build
from tasks.splits.recipes import TextRecipe

from .conftest import RECIPES


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_cell_is_what_the_task_samples(built):
    cell = tasks.load(built["text"]).cell("low-L0032")
    for query_set in tasks.QUERY_SETS:
        batch = tasks.sample(
            tasks.MembershipConfig(), 3, range(4), 32, 8, split="test", query_set=query_set, band="low"
        )
        assert np.array_equal(batch.stream.numpy(), [stream.symbols for stream in cell.streams()])
        wanted = [
            (batch.candidates[b, q, : batch.lengths[b, q]].tolist(), int(batch.labels[b, q]), int(batch.age[b, q]))
            for b in range(4)
            for q in range(8)
            if batch.scored[b, q]
        ]
        assert [(q.candidate.tolist(), q.label, q.age) for q in cell.queries(query_set)] == wanted


def test_two_processes_give_the_same_bytes(built, tmp_path):
    build(RECIPES["text"], tmp_path / "again", processes=2)
    assert contents(tmp_path / "again") == contents(built["text"])


def test_a_killed_build_goes_on(built, tmp_path):
    folder = tmp_path / "killed"
    options = [
        f"{name}={','.join(map(str, v)) if isinstance(v, list) else v}" for name, v in RECIPES["text"].options.items()
    ]
    command = [sys.executable, "-m", "tasks", "build", "split=text", f"out={folder}", *options]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        if "max-L0008" in line:  # the cells before it are complete
            running.send_signal(signal.SIGKILL)
            break
    running.wait()
    running.stderr.close()
    with pytest.raises(SplitError, match="its build has not finished; run `python -m tasks build split=text"):
        tasks.load(folder)
    kept = folder / "low-L0032" / "queries.parquet"
    before = kept.stat().st_mtime_ns
    (folder / ".partial-left-over").mkdir()
    build(RECIPES["text"], folder)
    assert kept.stat().st_mtime_ns == before
    assert contents(folder) == contents(built["text"])
    assert not list(folder.glob(".partial*"))


def test_building_again_repairs_what_is_damaged_and_keeps_the_rest(built, copied):
    kept = (copied / "max-L0008" / "streams.parquet").stat().st_mtime_ns
    (copied / "low-L0008" / "queries.parquet").write_bytes(b"nonsense")
    shutil.rmtree(copied / "low-L0032")
    manifest = copied / "max-L0032" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"exact": 1.0', '"exact": 0.5'))
    build(RECIPES["text"], copied)
    assert contents(copied) == contents(built["text"])
    assert (copied / "max-L0008" / "streams.parquet").stat().st_mtime_ns == kept


def test_another_recipe_does_not_overwrite(copied, tmp_path):
    with pytest.raises(SplitError, match="seed=3 there, seed=4 asked for"):
        build(TextRecipe(**RECIPES["text"].options | {"seed": 4}), copied)
    with pytest.raises(SplitError, match="split text there, video asked for"):
        build(RECIPES["video"], copied)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SplitError, match="and no split; name an empty or new folder"):
        build(RECIPES["text"], tmp_path)


def test_progress_reaches_the_end_and_never_goes_back(tmp_path):
    said = []
    build(RECIPES["easyhuman"], tmp_path / "s", report=lambda key, done, total: said.append((done, total)))
    shares = [done / total for done, total in said]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_a_manifest_counts_what_is_there(built):
    for folder in built.values():
        for cell in tasks.load(folder).cells:
            queries = cell.queries()
            for query_set, about in cell.manifest["queries"].items():
                labels = [query.label for query in queries if query.query_set == query_set]
                assert (about["yes"], about["no"]) == (sum(labels), len(labels) - sum(labels))
                asked = cell.manifest["recipe"]["queries"] * cell.manifest["streams"]
                assert about["queries"] + about["left_out"] == asked
                if labels:
                    assert about["solvers"]["exact"] == 1
