"""What is read is what was made, and what was touched is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tasks
from tasks.splits import SplitError, storage

from .conftest import RECIPES


def same(a, b) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


@pytest.mark.parametrize("name", RECIPES)
def test_reading_gives_back_every_record(built, name):
    recipe = RECIPES[name]
    split = tasks.load(built[name])
    assert (split.name, split.seed, split.version) == (name, 3, recipe.version)
    assert split.recipe == recipe.options
    assert [cell.key for cell in split.cells] == [plan.key for plan in recipe.plans()]
    for cell, plan in zip(split.cells, recipe.plans(), strict=True):
        made = recipe.make(plan)
        assert (cell.band, cell.length, cell.medium, cell.variant) == (
            plan.band,
            plan.length,
            plan.medium,
            plan.variant,
        )
        for read, written in ((cell.streams(), made.streams), (cell.queries(), made.queries)):
            assert len(read) == len(written)
            for a, b in zip(read, written, strict=True):
                assert all(same(getattr(a, field), getattr(b, field)) for field in vars(b)), (a, b)


def test_queries_of_one_set(built):
    cell = tasks.load(built["text"]).cell("max-L0032")
    assert {query.query_set for query in cell.queries("near")} == {"near"}
    assert sum(len(cell.queries(name)) for name in cell.query_sets) == len(cell.queries())
    with pytest.raises(ValueError, match="did you mean 'near'"):
        cell.queries("naer")
    with pytest.raises(ValueError, match="did you mean 'max-L0032'"):
        tasks.load(built["text"]).cell("max-L032")


def test_every_file_carries_the_version(built):
    folder = built["video"]
    for path in folder.rglob("*"):
        if path.suffix == ".json":
            assert json.loads(path.read_text())["version"] == "1.1.0", path
        elif path.suffix == ".parquet":
            assert pq.read_schema(path).metadata[b"version"] == b"1.1.0", path
        elif path.is_file():
            assert path.name == "checksums"
            assert path.read_text().startswith("# ecclab-split 1.1.0\n")


def test_sha256sum_accepts_the_checksums(built):
    done = subprocess.run(["sha256sum", "--check", "--strict", "checksums"], cwd=built["text"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b": OK") == 2 + 3 * 4  # index and metadata, three files in each of four cells


CELL = "low-L0032"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["streams.parquet", "queries.parquet", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_touched_file_is_refused_by_name(copied, name, damage):
    damage(copied / CELL / name)
    with pytest.raises(SplitError, match=rf"{CELL}/{name}: SHA-256 .* truncated, edited or") as refusal:
        tasks.load(copied)
    assert f"python -m tasks build split=text out={copied} seed=3 streams=4 queries=8 lengths=8,32" in str(
        refusal.value
    )


def reseal(folder, *names):
    """Write the checksums of some files again, as somebody who edits on purpose might."""
    digests = storage.read_digests(folder / "checksums")
    digests |= {name: storage.digest((folder / name).read_bytes()) for name in names}
    version = json.loads((folder / "questions.json").read_text())["version"]
    (folder / "checksums").write_bytes(storage.checksums_bytes(version, digests))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_table_other_than_its_manifest_says_is_refused(copied):
    flip(copied / CELL / "queries.parquet")
    reseal(copied, f"{CELL}/queries.parquet")
    with pytest.raises(SplitError, match=rf"{CELL}/manifest.json: another SHA-256 for queries.parquet"):
        tasks.load(copied)


def test_a_format_of_the_future_is_refused(copied):
    edit(copied / "questions.json", version="2.1.0")
    with pytest.raises(SplitError, match=r"questions.json: .*version '2.1.0'; this code reads 'ecclab-split' 1.x"):
        tasks.load(copied)


def test_files_of_different_versions_are_refused(copied):
    edit(copied / CELL / "manifest.json", version="1.2.0")
    reseal(copied, f"{CELL}/manifest.json")
    with pytest.raises(SplitError, match=rf"{CELL}/manifest.json: version '1.2.0' in a split of version '1.1.0'"):
        tasks.load(copied)


def test_a_table_of_another_cell_is_refused(copied):
    place, name = copied / CELL, "streams.parquet"
    table = pq.read_table(place / name)
    data = storage.table_bytes(table, "1.1.0", "low-L0008")
    (place / name).write_bytes(data)
    files = json.loads((place / "manifest.json").read_text())["files"]
    edit(place / "manifest.json", files=files | {name: {**files[name], "sha256": storage.digest(data)}})
    reseal(copied, f"{CELL}/manifest.json", f"{CELL}/{name}")
    with pytest.raises(SplitError, match=rf"{CELL}/{name}: 4 rows of cell 'low-L0008'"):
        tasks.load(copied)


def test_an_index_that_disagrees_with_a_manifest_is_refused(copied):
    index = json.loads((copied / "questions.json").read_text())
    index["cells"][0]["length"] = 16
    (copied / "questions.json").write_text(json.dumps(index))
    reseal(copied, "questions.json")
    with pytest.raises(SplitError, match=r"low-L0008/manifest.json: length=8, but questions.json says 16"):
        tasks.load(copied)


def test_missing_files_are_named(copied):
    (copied / CELL / "manifest.json").unlink()
    with pytest.raises(SplitError, match=rf"{CELL}/manifest.json is missing"):
        tasks.load(copied)
    (copied / "checksums").unlink()
    with pytest.raises(SplitError, match="no file checksums: its build has not finished"):
        tasks.load(copied)
    (copied / "questions.json").write_text('{"format"')
    with pytest.raises(SplitError, match=r"questions.json is not JSON .* truncated or edited"):
        tasks.load(copied)
    with pytest.raises(SplitError, match="holds no split"):
        tasks.load(copied / "elsewhere")


def test_a_file_without_a_checksum_is_refused(copied):
    lines = (copied / "checksums").read_text().splitlines(keepends=True)
    (copied / "checksums").write_text("".join(line for line in lines if f"{CELL}/streams" not in line))
    with pytest.raises(SplitError, match=rf"checksums does not list {CELL}/streams.parquet"):
        tasks.load(copied)


def test_other_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"stream_id": ["a"]}), tmp_path / "streams.parquet")
    with pytest.raises(SplitError, match=r"streams.parquet: columns \['stream_id'\]"):
        storage.read_streams(tmp_path / "streams.parquet")


def test_importing_tasks_stays_light():
    heavy = {"pyarrow", "lightning", "polars", "scipy", "sklearn", "PIL", "tasks.splits"}
    code = f"import sys, tasks; sys.exit(', '.join({heavy!r} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
