"""The contract of the paper's B.6.1, checked on what the processor made: every frame, at its own resolution.

Letters: T patches along time, H and W down and across one frame, as in the `video_grid_thw` of processors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flops.vlm import VlmPrice
from vlms.protocol import MemoryFailure


class FramesLost(MemoryFailure):
    """Frames or pixels did not reach the model; the message says how many, and which setting to look at."""


@dataclass(frozen=True)
class Seen:
    """What reached the model.

    Attributes:
        frames: per clip.
        grid: patches per clip: groups of frames, down, across.
        sizes: height and width in pixels, per clip, that those patches cover.
        tokens: vision tokens in the prompt.
        intact: nothing was lost.
    """

    frames: tuple[int, ...]
    grid: tuple[tuple[int, int, int], ...]
    sizes: tuple[tuple[int, int], ...]
    tokens: int
    intact: bool = True


def looked_at(clips: Sequence[Any], inputs: Mapping[str, Any], price: VlmPrice, vision_ids: set[int]) -> Seen:
    """Frames, grids and tokens of what a processor made of the clips.

    Args:
        clips: uint8 [T, H, W, 3] each, as given to the processor.
        inputs: its result, batch of one.
        price: of the model, which knows patches and packing.
        vision_ids: ids of the tokens that stand for patches.
    """
    t, counts = price.tower, [len(clip) for clip in clips]
    ids = inputs["input_ids"][0]
    tokens = int(sum((ids == token).sum() for token in vision_ids))
    if "video_grid_thw" in inputs:
        grid = [tuple(int(n) for n in row) for row in inputs["video_grid_thw"]]
        frames = [min(n, groups * t.frames) for n, (groups, _, _) in zip(counts, grid, strict=True)]
        sizes = [(h * t.patch, w * t.patch) for _, h, w in grid]
    elif "image_pixel_values" in inputs:  # crops: the picture was resized to a whole number of them
        pictures = [tuple(int(n) for n in size) for size in inputs["image_sizes"]]
        frames = shares(counts, len(pictures))
        sizes = [pictures[min(sum(counts[:i]), len(pictures) - 1)] for i in range(len(counts))]
        grid = [(n, h // t.patch, w // t.patch) for n, (h, w) in zip(frames, sizes, strict=True)]
    else:
        tiles, _, height, width = inputs["pixel_values"].shape
        frames = shares(counts, int(tiles))
        sizes = [(int(height), int(width))] * len(counts)
        grid = [(n, height // t.patch, width // t.patch) for n in frames]
    return Seen(tuple(frames), tuple(grid), tuple(sizes), tokens)


def shares(wanted: Sequence[int], found: int) -> list[int]:
    """Pictures that came out, dealt to the clips in order; a surplus (more tiles than frames) goes to the last."""
    dealt = []
    for i, n in enumerate(wanted):
        last = i == len(wanted) - 1
        dealt.append(found if last else min(n, found))
        found -= dealt[-1]
    return dealt


def check(clips: Sequence[Any], seen: Seen, price: VlmPrice, mode: str, allow_downscale: bool = False) -> Seen:
    """Hold what was seen to what was given.

    Raises:
        FramesLost: unless `allow_downscale`, which marks the result instead.
    """
    problems = []
    given = [len(clip) for clip in clips]
    if list(seen.frames) != given:
        problems.append(f"{sum(seen.frames)} of {sum(given)} frames reached the model (per clip {seen.frames})")
    expected_tokens = 0
    for i, clip in enumerate(clips):
        size = clip.shape[1:3]
        expected_tokens += price.tokens((len(clip),), size, mode)
        expected = price.crops(size) if price.connector_shape.kind == "crops" else (1, 1)
        wanted = tuple(n * k for n, k in zip(price.grid(size), expected, strict=True))
        if seen.grid[i][1:] != wanted:
            found = " x ".join(map(str, seen.sizes[i]))
            problems.append(
                f"clip {i}: frames of {size[0]} x {size[1]} became {found} pixels, "
                f"a grid of {seen.grid[i][1:]} instead of {wanted}"
            )
    if not problems and seen.tokens != expected_tokens:
        problems.append(f"the prompt holds {seen.tokens} vision tokens, not {expected_tokens}")
    if problems and not allow_downscale:
        raise FramesLost(
            "; ".join(problems) + ". Look at memory.processor (frames sampled, a budget of pixels?), or pass "
            "memory.allow_downscale=true to go on and mark every record"
        )
    return Seen(seen.frames, seen.grid, seen.sizes, seen.tokens, intact=not problems)
