"""PNG and mp4 files show exactly the frames that were written, and are the same bytes every time."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from tasks.video import png, read_frames, read_mp4, render_stream, write_mp4, write_png

SYMBOLS, BELTS = [3, 3, 15, 0, 8, 8, 8, 1], [0, 0, 2, 1, 1, 1, 1, 0]


def frames():
    return render_stream(SYMBOLS, BELTS)


def test_png_files_hold_every_frame_exactly(tmp_path):
    assert write_png(frames(), tmp_path / "a") == 8
    paths = sorted((tmp_path / "a").iterdir())
    assert [path.name for path in paths] == [f"{i:05d}.png" for i in range(8)]
    symbols, belts = read_frames(np.array(Image.open(path)) for path in paths)
    assert (symbols.tolist(), belts.tolist()) == (SYMBOLS, BELTS)
    assert all(path.stat().st_size < 10_000 for path in paths)
    before = [path.read_bytes() for path in paths]
    assert write_png(frames(), tmp_path / "a") == 8  # again, over itself
    assert [path.read_bytes() for path in paths] == before


def test_png_of_any_frame():
    frame = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(np.array(Image.open(io.BytesIO(png(frame)))), frame)


def test_leftover_frames_are_refused(tmp_path):
    write_png(frames(), tmp_path)
    with pytest.raises(ValueError, match=r"also holds 00005.png and 2 more"):
        write_png(render_stream(SYMBOLS[:5], BELTS[:5]), tmp_path)


def test_mp4_is_one_frame_per_symbol_at_one_per_second(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "new" / "clip.mp4"
    assert write_mp4(frames(), path) == 8
    symbols, belts = read_frames(read_mp4(path))
    assert (symbols.tolist(), belts.tolist()) == (SYMBOLS, BELTS)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert stream.frames == 8
        assert stream.average_rate == 1
        assert file.duration == 8 * av.time_base
        assert [frame.time for frame in file.decode(stream)] == [float(i) for i in range(8)]
    write_mp4(frames(), tmp_path / "again.mp4")
    assert path.read_bytes() == (tmp_path / "again.mp4").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.mp4", "new"]  # nothing half written is left


def test_mp4_of_candidates_and_other_rates(tmp_path):
    pytest.importorskip("av")
    assert write_mp4(render_stream([2], [2]), tmp_path / "one.mp4") == 1
    assert len(list(read_mp4(tmp_path / "one.mp4"))) == 1
    write_mp4(frames(), tmp_path / "two.mp4", fps=2)
    assert len(list(read_mp4(tmp_path / "two.mp4", fps=2))) == 8
    with pytest.raises(ValueError, match=r"frame 1 is shown at second 0.5, not 1"):
        list(read_mp4(tmp_path / "two.mp4"))


def test_mp4_refusals_leave_no_file(tmp_path):
    pytest.importorskip("av")
    with pytest.raises(ValueError, match="no frames"):
        write_mp4([], tmp_path / "none.mp4")
    uneven = [np.zeros((16, 16, 3), np.uint8), np.zeros((16, 32, 3), np.uint8)]
    with pytest.raises(ValueError, match=r"frame 1 is \(16, 32, 3\), the first was 16 x 16"):
        write_mp4(uneven, tmp_path / "uneven.mp4")
    assert not list(tmp_path.iterdir())


def test_without_pyav_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'ecclab\[video\]'"):
        write_mp4(frames(), tmp_path / "a.mp4")
