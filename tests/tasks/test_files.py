"""Files that are there whole or not at all."""

from __future__ import annotations

import threading

import pytest

from tasks.files import replacing, write_bytes


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_whole(tmp_path, durable):
    path = tmp_path / "a.json"
    write_bytes(path, b"old", durable)
    with replacing(path, durable) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_bytes(path, b"old")

    def write_half() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"ne")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_do_not_share_an_unfinished_file(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as partial:
        partial.write_bytes(b"first")
        other = threading.Thread(target=write_bytes, args=(path, b"second"))
        other.start()
        other.join()
        assert path.read_bytes() == b"second"
        assert partial.read_bytes() == b"first"
    assert path.read_bytes() == b"first"
