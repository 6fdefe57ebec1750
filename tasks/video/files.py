"""Frames to PNG and mp4 files, without loss and always the same bytes.

PNG goes to models that take images. The mp4 (H.264 in RGB, quantiser 0) is exact too, at one frame per second and one
frame per symbol; players that know H.264 only in YUV 4:2:0 will not show it, ffmpeg-based readers do.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

from tasks.files import replacing, write_bytes

_CODEC = "libx264rgb"


def png(frame: np.ndarray) -> bytes:
    """A frame (uint8 [H, W, 3]) as a PNG file. Equal frames are encoded once."""
    return _png(np.ascontiguousarray(frame).tobytes(), frame.shape)


@lru_cache(maxsize=64)  # a video has 48 different frames; 40 MB
def _png(pixels: bytes, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(shape)).save(file, "PNG", compress_level=9)
    return file.getvalue()


def write_png(frames: Iterable[np.ndarray], folder: str | Path) -> int:
    """Write frame i to folder/00000i.png (five digits); returns how many there are.

    Raises:
        ValueError: when the folder holds further PNG files, e.g. of a longer stream written before.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = set()
    for i, frame in enumerate(frames):
        path = folder / f"{i:05d}.png"
        write_bytes(path, png(frame), durable=False)
        written.add(path.name)
    others = sorted(path.name for path in folder.glob("*.png") if path.name not in written)
    if others:
        raise ValueError(
            f"{folder} also holds {others[0]} and {len(others) - 1} more PNG files; write to an empty folder"
        )
    return len(written)


def write_mp4(frames: Iterable[np.ndarray], path: str | Path, fps: int = 1) -> int:
    """Write frames as one mp4, one after the other at `fps` per second; returns how many there are.

    Raises:
        ImportError: without PyAV; says how to install it.
        ValueError: for no frames, or frames of different sizes.
    """
    av = _av()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with replacing(path) as partial, av.open(str(partial), "w", format="mp4") as file:
        stream = file.add_stream(_CODEC, rate=fps, options={"qp": "0", "preset": "veryfast"})
        stream.pix_fmt = "rgb24"
        stream.thread_count = 1  # more threads, other bytes
        for frame in frames:
            if not count:
                stream.height, stream.width = frame.shape[:2]
            if frame.shape != (stream.height, stream.width, 3):
                raise ValueError(f"frame {count} is {frame.shape}, the first was {stream.width} x {stream.height}")
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts = count
            file.mux(stream.encode(picture))
            count += 1
        if not count:
            raise ValueError(f"no frames to write to {path}")
        file.mux(stream.encode())
    return count


def read_mp4(path: str | Path, fps: int = 1) -> Iterator[np.ndarray]:
    """Frames (uint8 [H, W, 3]) of an mp4 that must show frame i from second i / fps on.

    Raises:
        ImportError: without PyAV.
        ValueError: for a frame shown at another time; names it.
    """
    av = _av()
    with av.open(str(path)) as file:
        for i, frame in enumerate(file.decode(video=0)):
            if frame.pts * frame.time_base * fps != i:
                raise ValueError(f"{path}: frame {i} is shown at second {frame.time}, not {i / fps:g}")
            yield frame.to_ndarray(format="rgb24")


def _av() -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise ImportError("mp4 files need PyAV: pip install 'ecclab[video]'") from error
    return av
