"""Synthetic video: every symbol of a stream becomes one frame, a letter on one of three conveyor belts.

    stream     0 7 7 2 ...          symbols, uint8 [L]
    belts      1 0 0 2 ...          uint8 [L], 0 is the left belt
    frame i    the letter LETTERS[symbols[i]] on belt belts[i]; uint8 [448, 448, 3] RGB, 1 frame per second

Three invariants make the whole symbol stream necessary (ECCBench, appendix A.3):

1. one symbol, one frame: in the stream, in every prefix of it, and in candidates; no padding, no dwell, no motion;
2. a candidate's look says nothing about its label: `appearance` in leak.py measures what a classifier gets from it;
3. negatives are absent: as a sequence of symbols and, for the spatial variant, as a placed sequence (symbol, belt).

Streams and the two variants of questions (questions.py):

    config = VideoConfig()
    belts = assign_belts(config, seed, index, symbols, split="test")                             # uint8 [L]
    sequential_questions(config, seed, index, symbols, belts, queries=16, split="test", band="max")   # list[Question]
    spatial_questions(config, seed, index, symbols, belts, queries=16, split="test")                  # list[Question]
    with_belts(config, seed, index, symbols, belts, questions, split="test")       # EasyHuman's questions, on belts

`Question` has the fields of a split's query: candidate, belts, label, age, meta. Frames are never stored; they are
rendered when needed (render.py) and written to files (files.py):

    render_stream(symbols, belts, seed=0) -> Iterator[frame]        # `seed` chooses the belts' texture
    render_candidate(candidate, candidate_belts, seed=0)            # the same for a candidate: use its stream's seed
    read_frames(frames, seed=0) -> (symbols, belts)                 # the inverse; refuses a frame it cannot have drawn
    contact_sheet(frames, columns=8) -> image                       # to look at
    png(frame) -> bytes;  write_png(frames, folder);  write_mp4(frames, path);  read_mp4(path) -> Iterator[frame]
    letters(symbols) -> "A H H C"

`python -m tasks.video` draws contact sheets, measures the speed and runs the classifier. Files and rendering need
Pillow; mp4 needs PyAV (`pip install av`).
"""

from tasks.video.belts import BELT_MODES, BELTS, VideoConfig, assign_belts, belt_map, joint
from tasks.video.files import png, read_mp4, write_mp4, write_png
from tasks.video.leak import Appearance, appearance
from tasks.video.questions import VARIANTS, sequential_questions, spatial_questions, with_belts
from tasks.video.render import (
    LETTERS,
    SIZE,
    contact_sheet,
    letters,
    look,
    read_frames,
    render_candidate,
    render_stream,
)

__all__ = [
    "BELTS",
    "BELT_MODES",
    "LETTERS",
    "SIZE",
    "VARIANTS",
    "Appearance",
    "VideoConfig",
    "appearance",
    "assign_belts",
    "belt_map",
    "contact_sheet",
    "joint",
    "letters",
    "look",
    "png",
    "read_frames",
    "read_mp4",
    "render_candidate",
    "render_stream",
    "sequential_questions",
    "spatial_questions",
    "with_belts",
    "write_mp4",
    "write_png",
]
