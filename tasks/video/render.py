"""Frames: one letter, centred on one of three belts.

There are 16 letters x 3 belts, so a video of any length shows at most 48 different frames. They are composed once per
texture and reused; rendering a stream is a table lookup.

The letters are Pillow's bundled typeface, so no system font is needed. Their pixels may differ between versions of the
font library; `look` is a digest of all 48 frames, for manifests to name the exact pixels.

Letters of dimensions: L frames, H = W = 448 pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont, features

from tasks.rng import below, fold, words
from tasks.video.belts import BELTS

SIZE = 448
LETTERS = "ABCDEFHJKLMNPRTX"
"""Symbol i is LETTERS[i]: capitals without those easily taken for another or for a digit (G I O Q S U V W Y Z)."""

_BELT_WIDTH, _GAP = 112, 28  # 4 gaps and 3 belts are 448 pixels
_TOP = 56  # of the belts; the labels stand above
_SLAT = 28  # pixels between the lines across a belt
_GLYPH, _LABEL = 124, 36  # font sizes, pixels
_BOLD = 2  # pixels added around a letter's strokes, for models that shrink the frame
_FLOOR, _BELT, _LINE, _RAIL = (232, 230, 224), (58, 64, 72), (74, 81, 90), (140, 146, 152)
_INK, _LABEL_INK = (255, 255, 255), (40, 40, 40)
_SPECKS = 40  # per belt: texture that nobody is asked about


def letters(symbols: Sequence[int]) -> str:
    """The letters of some symbols, separated by spaces.

    >>> letters([0, 7, 7, 2])
    'A J J C'
    """
    return " ".join(LETTERS[symbol] for symbol in symbols)


def render_stream(symbols: Sequence[int], belts: Sequence[int], seed: int = 0) -> Iterator[np.ndarray]:
    """One frame per symbol, in order.

    Args:
        symbols: [L] integers 0..15.
        belts: [L] integers 0..2, from the left.
        seed: chooses the belts' texture.

    Yields:
        uint8 [448, 448, 3] RGB. Equal frames are the same read-only array: copy one before changing it.

    Raises:
        ValueError: at once, for unequal lengths or a value out of range.
    """
    symbols, belts = np.asarray(symbols), np.asarray(belts)
    if symbols.ndim != 1 or symbols.shape != belts.shape:
        raise ValueError(f"symbols {symbols.shape} and belts {belts.shape} must be two lists of the same length")
    for name, values, count in (("symbol", symbols, len(LETTERS)), ("belt", belts, BELTS)):
        wrong = np.flatnonzero((values < 0) | (values >= count))
        if wrong.size:
            raise ValueError(f"{name} {values[wrong[0]]} at place {wrong[0]} is outside 0..{count - 1}")
    table = _table(seed)
    return (table[symbol][belt] for symbol, belt in zip(symbols.tolist(), belts.tolist(), strict=True))


def render_candidate(candidate: Sequence[int], belts: Sequence[int], seed: int = 0) -> Iterator[np.ndarray]:
    """A candidate's clip: the frames that the stream would show, given the stream's `seed`. See `render_stream`."""
    return render_stream(candidate, belts, seed)


def read_frames(frames: Iterable[np.ndarray], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Symbols and belts (uint8 [L] each) of rendered frames.

    Raises:
        ValueError: for a frame that is not, pixel by pixel, one of the 48 of this seed; names its place.
    """
    table, places = _table(seed), _places(seed)
    found = []
    for i, frame in enumerate(frames):
        symbol, belt = places.get(_some_pixels(frame), (0, 0))
        if not np.array_equal(frame, table[symbol][belt]):
            raise ValueError(
                f"frame {i} is none of the {len(places)} frames of seed {seed}: it was resized, compressed with loss, "
                f"or rendered with another seed or font library"
            )
        found.append((symbol, belt))
    symbols, belts = np.array(found, np.uint8).reshape(-1, 2).T
    return symbols, belts


def look(seed: int = 0) -> str:
    """sha256 of the pixels of all frames of this seed, as hexadecimal digits."""
    digest = hashlib.sha256()
    for of_letter in _table(seed):
        for frame in of_letter:
            digest.update(frame)
    return digest.hexdigest()


def contact_sheet(frames: Iterable[np.ndarray], columns: int = 8, shrink: int = 4, gap: int = 4) -> np.ndarray:
    """Frames side by side, read row by row, each made smaller: one uint8 [H', W', 3] image.

    Args:
        frames: any number of frames of equal size.
        columns: frames per row.
        shrink: averages blocks of shrink x shrink pixels; must divide the size.
        gap: pixels of white between and around the frames.
    """
    small = [_shrink(frame, shrink) for frame in frames]
    if not small or columns < 1:
        raise ValueError(f"a contact sheet needs at least one frame and one column, got {len(small)} and {columns}")
    height, width, _ = small[0].shape
    rows = -(-len(small) // columns)
    sheet = np.full((rows * (height + gap) + gap, min(columns, len(small)) * (width + gap) + gap, 3), 255, np.uint8)
    for i, frame in enumerate(small):
        top, left = gap + i // columns * (height + gap), gap + i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def _shrink(frame: np.ndarray, by: int) -> np.ndarray:
    height, width, channels = frame.shape
    if height % by or width % by:
        raise ValueError(f"shrink={by} does not divide a frame of {width} x {height} pixels")
    blocks = frame.reshape(height // by, by, width // by, by, channels)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)


@lru_cache(maxsize=2)  # 29 MB each
def _table(seed: int) -> list[list[np.ndarray]]:
    """The 48 frames, read-only, as [symbol][belt]."""
    empty = _empty(seed)
    table = []
    for letter in LETTERS:
        ink = _ink(letter, _GLYPH, _BOLD)
        table.append([_draw(empty, ink, _INK, _centre(belt), (_TOP + SIZE) // 2) for belt in range(BELTS)])
        for frame in table[-1]:
            frame.flags.writeable = False
    return table


@lru_cache(maxsize=2)
def _places(seed: int) -> dict[bytes, tuple[int, int]]:
    """Some pixels of every frame -> its (symbol, belt)."""
    return {
        _some_pixels(frame): (symbol, belt)
        for symbol, of_letter in enumerate(_table(seed))
        for belt, frame in enumerate(of_letter)
    }


def _some_pixels(frame: np.ndarray) -> bytes:
    """Few enough to look up quickly, enough to tell the frames of one seed apart."""
    return np.asarray(frame)[::8, ::8].tobytes()


def _empty(seed: int) -> np.ndarray:
    """The scene without a letter."""
    image = Image.new("RGB", (SIZE, SIZE), _FLOOR)
    draw = ImageDraw.Draw(image)
    for belt in range(BELTS):
        left = _centre(belt) - _BELT_WIDTH // 2
        right = left + _BELT_WIDTH - 1
        draw.rectangle((left, _TOP, right, SIZE), fill=_BELT)
        for y in range(_TOP + _SLAT, SIZE, _SLAT):
            draw.line((left, y, right, y), fill=_LINE, width=2)
        word = words(fold(seed, belt), 2 * _SPECKS)
        xs, ys = below(word[:_SPECKS], _BELT_WIDTH - 2), below(word[_SPECKS:], SIZE - _TOP - 2)
        for x, y in zip((left + xs).tolist(), (_TOP + ys).tolist(), strict=True):
            draw.rectangle((x, y, x + 1, y + 1), fill=_LINE)
        for x in (left, right - 3):
            draw.rectangle((x, _TOP, x + 3, SIZE), fill=_RAIL)
    scene = np.array(image)
    for belt in range(BELTS):
        scene = _draw(scene, _ink(str(belt + 1), _LABEL), _LABEL_INK, _centre(belt), _TOP // 2)
    return scene


def _centre(belt: int) -> int:
    """Horizontal centre of a belt."""
    return _GAP + belt * (_BELT_WIDTH + _GAP) + _BELT_WIDTH // 2


def _ink(character: str, size: int, bold: int = 0) -> np.ndarray:
    """Coverage of a character by ink, 0..255: uint8, cropped to the character."""
    if not features.check("freetype2"):
        raise ImportError("this Pillow was built without FreeType and has no scalable font; use Pillow's own wheels")
    image = Image.new("L", (2 * size, 2 * size))
    font = ImageFont.load_default(size)
    ImageDraw.Draw(image).text((size // 2, size // 2), character, fill=255, font=font, stroke_width=bold)
    return np.array(image.crop(image.getbbox()))


def _draw(scene: np.ndarray, ink: np.ndarray, colour: tuple[int, int, int], x: int, y: int) -> np.ndarray:
    """A copy of the scene with ink centred at (x, y)."""
    drawn = scene.copy()
    height, width = ink.shape
    top, left = y - height // 2, x - width // 2
    under = drawn[top : top + height, left : left + width].astype(np.int64)
    weight = ink[..., None].astype(np.int64)
    drawn[top : top + height, left : left + width] = (under * (255 - weight) + np.array(colour) * weight + 127) // 255
    return drawn
