"""The writer: what is on disk after a kill, a full disk, a restart."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scoring import ResponseWriter, TableError, read_tables

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys, time
from scoring import ResponseWriter
with ResponseWriter(sys.argv[1], identity={"seed": 1}) as writer:
    for part in range(40):
        name = f"part-{part:03d}"
        if name in writer:
            print("kept", name, flush=True)
            continue
        writer.append(name, {"system": ["s"], "band": ["max"], "L": [8], "stream": [part], "query": [0],
                             "label": [1], "answer": [1]})
        print("wrote", name, flush=True)
        time.sleep(float(sys.argv[2]))
    writer.finish()
"""


def part(stream=0):
    return {"system": ["s"], "band": ["max"], "L": [8], "stream": [stream], "query": [0], "label": [1], "answer": [1]}


def test_a_killed_evaluation_continues_without_asking_twice(tmp_path):
    path = tmp_path / "responses.parquet"
    command = [sys.executable, "-c", RUN, str(path)]
    first = subprocess.Popen([*command, "0.05"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    for _ in range(5):
        first.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not path.exists()
    done = read_tables(tmp_path / "responses.parts").num_rows
    assert 5 <= done < 40
    second = subprocess.run([*command, "0"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert second.stdout.count("kept") == done
    assert second.stdout.count("wrote") == 40 - done
    assert sorted(map(int, read_tables(path)["stream"].to_pylist())) == list(range(40))
    assert not (tmp_path / "responses.parts").exists()


def test_a_finished_table_is_not_written_again(tmp_path):
    path = tmp_path / "r.parquet"
    writer = ResponseWriter(path, identity={"seed": 1})
    writer.append("a", part())
    writer.finish()
    before = path.read_bytes()
    again = ResponseWriter(path, identity={"seed": 1})
    assert again.finished
    assert "a" in again
    assert "never asked" in again
    assert again.finish() == path
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="already written"):
        again.append("b", part(1))


@pytest.mark.parametrize("finished", [False, True])
def test_another_evaluation_is_refused(tmp_path, finished):
    path = tmp_path / "r.parquet"
    writer = ResponseWriter(path, identity={"seed": 1, "queries": "uniform"})
    writer.append("a", part())
    if finished:
        writer.finish()
    with pytest.raises(ValueError, match=r"another evaluation: seed is 1 there and 2 now"):
        ResponseWriter(path, identity={"seed": 2, "queries": "uniform"})


def test_a_full_disk_leaves_no_half_part(tmp_path, monkeypatch):
    writer = ResponseWriter(tmp_path / "r.parquet")
    writer.append("a", part(0))

    def full(table, file, **options):
        Path(file).write_bytes(b"PAR1 half a file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(OSError, match="No space left"):
            writer.append("b", part(1))
    assert sorted(p.name for p in writer.parts.iterdir()) == ["a.parquet", "identity.json"]
    assert "b" not in writer
    writer.append("b", part(1))
    assert writer.table().num_rows == 2


def test_leftovers_of_a_kill_are_swept(tmp_path):
    writer = ResponseWriter(tmp_path / "r.parquet")
    writer.append("a", part())
    (writer.parts / ".b.parquet.77.tmp").write_bytes(b"half")
    assert ResponseWriter(tmp_path / "r.parquet").table().num_rows == 1
    assert not list(writer.parts.glob(".*"))


def test_parts_are_checked_when_they_come_and_together(tmp_path):
    writer = ResponseWriter(tmp_path / "r.parquet")
    with pytest.raises(TableError, match=r"part 'a': row 0 .*'label'"):
        writer.append("a", {**part(), "label": [3]})
    assert "a" not in writer
    writer.append("a", part())
    writer.append("b", part())
    with pytest.raises(TableError, match=r"a.parquet and .*b.parquet both answer stream 0"):
        writer.finish()
    with pytest.raises(ValueError, match=r"part name '../x'"):
        writer.append("../x", part())
    with pytest.raises(ValueError, match=r"end the name in .parquet"):
        ResponseWriter(tmp_path / "r.csv")


def test_an_unreadable_final_file_says_what_to_do(tmp_path):
    path = tmp_path / "r.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="unreadable as parquet; delete it to evaluate again"):
        ResponseWriter(path)


def test_many_parts_are_joined_quickly(tmp_path):
    writer = ResponseWriter(tmp_path / "r.parquet")
    for i in range(200):
        writer.append(f"p{i}", part(i))
    start = time.process_time()
    writer.finish()
    assert read_tables(writer.path).num_rows == 200
    assert time.process_time() - start < 10
