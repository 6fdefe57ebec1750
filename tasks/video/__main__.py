"""Look at synthetic video, time it, and ask what its candidates give away.

    python -m tasks.video sheet OUT.png [--variant sequential | spatial | easyhuman]     pictures to look at
    python -m tasks.video bench                seconds and bytes of rendering, PNG, mp4
    python -m tasks.video leak                 a classifier that sees candidates only: 50 % is what it should get

`--help` after a command lists its options.

A sheet shows the stream in rows of twelve frames, then a true and a false candidate; positions of the true one are
printed. Exit code 2 and one line for bad input.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.batch import BANDS
from tasks.easyhuman import EasyHumanConfig, easy_questions, easy_stream
from tasks.membership import streams
from tasks.question import Question
from tasks.video.belts import VideoConfig, assign_belts
from tasks.video.files import read_mp4, write_mp4, write_png
from tasks.video.leak import appearance
from tasks.video.questions import QUERY_SETS, VARIANTS, sequential_questions, spatial_questions, with_belts
from tasks.video.render import contact_sheet, letters, read_frames, render_candidate, render_stream

_KINDS = (*VARIANTS, "easyhuman")
_COLUMNS = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def sheet(options: argparse.Namespace) -> None:
    """Draw a stream with one true and one false candidate."""
    symbols, belts, asked = _example(options.variant, options.band, options.length, options.seed, options.index, 2)
    true, false = sorted(asked, key=lambda q: -q.label)
    rows = [contact_sheet(render_stream(symbols, belts, options.seed), _COLUMNS)]
    for question in (true, false):
        clip = contact_sheet(render_candidate(question.candidate, question.belts, options.seed), _COLUMNS)
        clip = np.pad(clip, ((24, 0), (0, rows[0].shape[1] - clip.shape[1]), (0, 0)), constant_values=255)
        rows.append(clip)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(rows)).quantize(64).save(options.out, optimize=True)
    end = len(symbols) - true.age
    print(f"{options.out}: {len(symbols)} frames; then the true candidate {letters(true.candidate)} (frames")
    print(f"{end - len(true.candidate) + 1} to {end}) and the false candidate {letters(false.candidate)}")


def bench(options: argparse.Namespace) -> None:
    """Print what rendering one stream costs, decoded again and compared."""
    symbols, belts, _ = _example("sequential", "max", options.length, 0, 0, 2)
    next(render_stream(symbols, belts))  # the 48 frames
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "stream.mp4")
        steps = [
            ("frames", lambda: sum(1 for _ in render_stream(symbols, belts)), lambda: options.length * 448 * 448 * 3),
            ("PNG files", lambda: write_png(render_stream(symbols, belts), Path(folder, "png")), lambda: _size(folder)),
            ("mp4, written", lambda: write_mp4(render_stream(symbols, belts), video), lambda: video.stat().st_size),
            ("mp4, read and checked", lambda: _check(video, symbols, belts), lambda: video.stat().st_size),
        ]
        print(f"L={options.length}, max-entropy stream   CPU seconds        MB")
        for name, work, size in steps:
            start = time.process_time()
            work()
            seconds = time.process_time() - start
            print(f"{name:30} {seconds:13.2f} {size() / 1e6:9.2f}")


def leak(options: argparse.Namespace) -> None:
    """Print what a classifier of candidates alone gets from each kind of question."""
    kinds = [("sequential", band, query_set) for band in BANDS for query_set in QUERY_SETS]
    kinds += [*(("spatial", band, "uniform") for band in BANDS), ("easyhuman", "max", "uniform")]
    for variant, band, query_set in kinds:
        clips, labels, groups = [], [], []
        for index in range(options.streams):
            for question in _example(variant, band, options.length, 0, index, 16, query_set)[2]:
                clips.append(list(render_candidate(question.candidate, question.belts)))
                labels.append(question.label)
                groups.append(index)
        found = appearance(clips, labels, groups)
        low, high = found.interval
        name = {"sequential": f"sequential, {band}, {query_set}", "spatial": f"spatial, {band}"}.get(variant, variant)
        print(f"{name:28} {found.items:6} candidates: {found.accuracy:.3f} [{low:.3f}, {high:.3f}]", flush=True)


def _example(
    variant: str, band: str, length: int, seed: int, index: int, queries: int, query_set: str = "uniform"
) -> tuple[np.ndarray, np.ndarray, list[Question]]:
    """Symbols, belts and questions of one stream."""
    config = VideoConfig()
    if variant == "easyhuman":
        easy = EasyHumanConfig()
        stream = easy_stream(easy, seed, index, length, split="test")
        belts = assign_belts(config, seed, index, stream.symbols, split="test")
        plain = easy_questions(easy, seed, index, stream, min(queries, 2), split="test")
        asked = with_belts(config, seed, index, stream.symbols, belts, plain, split="test")
        return stream.symbols, belts, asked
    symbols = streams(config.membership, seed, [index], length, split="test", band=band)[0]
    belts = assign_belts(config, seed, index, symbols, split="test")
    if variant == "sequential":
        options = {"split": "test", "band": band, "query_set": query_set}
        asked = sequential_questions(config, seed, index, symbols, belts, queries, **options)
    else:
        asked = spatial_questions(config, seed, index, symbols, belts, queries, split="test")
    return symbols, belts, asked


def _check(video: Path, symbols: np.ndarray, belts: np.ndarray) -> None:
    found = read_frames(read_mp4(video))
    if not (np.array_equal(found[0], symbols) and np.array_equal(found[1], belts)):
        raise ValueError(f"{video} does not show the stream that was written to it")


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*.png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.video", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sheet", help=sheet.__doc__)
    command.add_argument("out")
    command.add_argument("--variant", choices=_KINDS, default="sequential")
    command.add_argument("--length", type=int, default=36)
    command.add_argument("--band", choices=BANDS, default="max")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--index", type=int, default=0)
    command.set_defaults(run=sheet)
    command = commands.add_parser("bench", help=bench.__doc__)
    command.add_argument("--length", type=int, default=1024)
    command.set_defaults(run=bench)
    command = commands.add_parser("leak", help=leak.__doc__)
    command.add_argument("--length", type=int, default=64)
    command.add_argument("--streams", type=int, default=500)
    command.set_defaults(run=leak)
    return parser


if __name__ == "__main__":
    sys.exit(main())
