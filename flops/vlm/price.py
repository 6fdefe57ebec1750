"""Vision, connector, prefill and decode: the four terms of ECCBench's B.3 as one object per model.

Letters: V patches (tokens) of a span, S positions that one of them attends to, N tokens of the prompt, T tokens of the
answer; B, A and F_voc are the paper's price of a token, of a query-key pair and of one vocabulary projection. A *span*
is what the tower sees at once: a pair of frames, a tile, a crop. Spans are bounded, so vision is linear in frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .shapes import Connector, Decoder, Shapes, Tower, read_shapes

Size = tuple[int, int]
FrameMode = Literal["video", "images"]
PAPER_SIZE: Size = (448, 448)
"""Height and width of the paper's rendered frames."""


@dataclass(frozen=True)
class VlmCost:
    """FLOPs of one response; `write` is the paper's F_w, `read` its F_r."""

    vision: float
    connector: float
    prefill: float
    decode: float

    @property
    def write(self) -> float:
        return self.vision + self.connector + self.prefill

    @property
    def read(self) -> float:
        return self.decode

    @property
    def terms(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("vision", "connector", "prefill", "decode")}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class VlmPrice:
    """The price of one model.

    Clips are lists of frame counts: a main video of 64 frames and an option of 4 are `(64, 4)`. `frames_as="images"`
    prices frames that were sent one by one: a family that packs two frames then pays for each as for two.
    """

    shapes: Shapes

    @property
    def tower(self) -> Tower:
        return self.shapes.tower

    @property
    def connector_shape(self) -> Connector:
        return self.shapes.connector

    @property
    def decoder(self) -> Decoder:
        return self.shapes.decoder

    # -- the decoder ---------------------------------------------------------------------------------------------------

    @property
    def per_token(self) -> int:
        """B: one token through all layers, attention's pairs left out."""
        d = self.decoder
        attention = 2 * d.width * (d.q + 2 * d.kv) + 2 * d.q * d.width
        return d.layers * (attention + d.lora) + sum(d.feed_forward)

    @property
    def per_pair(self) -> int:
        """A: one query-key pair in all layers."""
        return 4 * self.decoder.layers * self.decoder.q

    @property
    def per_vocabulary(self) -> int:
        """F_voc: the output projection of one token."""
        return 2 * self.decoder.width * self.decoder.vocabulary

    def prefill(self, n: float) -> float:
        """Reading N tokens: B N + A N (N + 1) / 2."""
        return self.per_token * n + self.per_pair * n * (n + 1) / 2

    def decode(self, n: float, answer: float) -> float:
        """Writing T tokens after N; the first comes out of the prefill. T may be fractional (charged length)."""
        pairs = (answer - 1) * n + answer * (answer - 1) / 2
        return answer * self.per_vocabulary + (answer - 1) * self.per_token + self.per_pair * pairs

    # -- what the tower sees -------------------------------------------------------------------------------------------

    def grid(self, size: Size = PAPER_SIZE) -> tuple[int, int]:
        """Patches down and across one picture: of the tile, or of the picture rounded to whole merged blocks."""
        t = self.tower
        if t.tile is not None:
            return t.tile // t.patch, t.tile // t.patch
        block = t.patch * t.merge
        rows, columns = (max(1, round(pixels / block)) * t.merge for pixels in size)
        return rows, columns

    def crops(self, size: Size = PAPER_SIZE) -> tuple[int, int]:
        """Crops down and across a picture, beside the view of the whole, of a family that crops."""
        return ceil_div(size[0], self.tower.tile), ceil_div(size[1], self.tower.tile)

    def spans(self, frames: int, size: Size = PAPER_SIZE, frames_as: FrameMode = "video") -> int:
        """Passes of the tower over one clip."""
        if self.connector_shape.kind == "crops":
            down, across = self.crops(size)
            return frames * (1 + down * across)
        return ceil_div(frames, self.tower.frames) if frames_as == "video" else frames

    def span_flops(self, size: Size = PAPER_SIZE) -> int:
        """One pass of the tower: patch embedding and all blocks."""
        t = self.tower
        rows, columns = self.grid(size)
        patches = rows * columns
        v = patches + t.class_token
        block = 8 * v * t.width**2 + (6 if t.gated else 4) * v * t.width * t.ffn
        full = t.layers if t.full_blocks is None else t.full_blocks
        pairs = full * v * v
        if full < t.layers:
            pairs += (t.layers - full) * windows(rows, t.window // t.patch) * windows(columns, t.window // t.patch)
        embedding = 2 * patches * t.channels * t.patch**2 * t.frames * t.width
        return embedding + t.layers * block + 4 * pairs * t.width

    def vision(self, clips: Sequence[int], size: Size = PAPER_SIZE, frames_as: FrameMode = "video") -> int:
        return sum(self.spans(frames, size, frames_as) for frames in clips) * self.span_flops(size)

    # -- what reaches the decoder --------------------------------------------------------------------------------------

    def tokens(self, clips: Sequence[int], size: Size = PAPER_SIZE, frames_as: FrameMode = "video") -> int:
        """V_LLM: vision tokens in the prompt; the text that templates put between frames is not among them."""
        return sum(self._tokens(frames, size, frames_as) for frames in clips)

    def _tokens(self, frames: int, size: Size, frames_as: FrameMode) -> int:
        rows, columns = (n // self.tower.merge for n in self.grid(size))
        kind = self.connector_shape.kind
        if kind == "resampler":
            return self.connector_shape.queries * ceil_div(frames, self.pack(frames))
        if kind == "pool":
            return (rows * columns + 1) * (frames // self.pool(frames))
        if kind == "crops":
            down, across = self.crops(size)
            return frames * (rows * (columns + 1) + down * rows * (across * columns + 1) + 1)
        return rows * columns * self.spans(frames, size, frames_as)

    def pack(self, frames: int) -> int:
        """Frames that one call of the resampler reads."""
        return min(6, max(1, ceil_div(frames, 180))) if self.connector_shape.packs else 1

    def pool(self, frames: int) -> int:
        """Frames that LongVILA averages into one."""
        bucket = 1
        while bucket < 8 and bucket * 256 < frames:
            bucket *= 2
        return 4 * bucket

    def connector(self, clips: Sequence[int], size: Size = PAPER_SIZE, frames_as: FrameMode = "video") -> int:
        return sum(self._connector(frames, size, frames_as) for frames in clips)

    def _connector(self, frames: int, size: Size, frames_as: FrameMode) -> int:
        c, t, width = self.connector_shape, self.tower, self.decoder.width
        merged = t.width * t.merge**2
        emitted = self._tokens(frames, size, frames_as)
        if c.kind == "resampler":
            rows, columns = self.grid(size)
            pack = self.pack(frames)
            whole, rest = divmod(frames, pack)
            return whole * self._call(pack * rows * columns) + (self._call(rest * rows * columns) if rest else 0)
        if c.kind == "pool":  # paid on every frame's tokens, before the average over time (assumed)
            rows, columns = self.grid(size)
            emitted = frames * rows * columns // t.merge**2
        each = {
            "merge": 2 * merged**2 + 2 * merged * width,
            "pool": 2 * merged**2 + 2 * merged * width,
            "deepstack": c.passes * (2 * merged**2 + 2 * merged * width),
            "glm": 2 * merged * width + 2 * width**2 + 6 * width * c.ffn,
            "tile": 2 * merged * width + 2 * width**2,
            "crops": 2 * t.width * width + 2 * width**2,
        }
        return emitted * each[c.kind]

    def _call(self, patches: int) -> int:
        """One call of the resampler over `patches` tokens: projection, keys and values, cross-attention, output."""
        width, queries = self.decoder.width, self.connector_shape.queries
        keys = 2 * patches * self.tower.width * width + 4 * patches * width**2
        return keys + 4 * queries * width * patches + 6 * queries * width**2

    # -- a response ----------------------------------------------------------------------------------------------------

    def response(
        self,
        clips: Sequence[int] = (),
        size: Size = PAPER_SIZE,
        *,
        n_in: float | None = None,
        answer: float = 1.0,
        frames_as: FrameMode = "video",
    ) -> VlmCost:
        """The cost of one question on its own stream.

        Args:
            clips: frames of every clip in the prompt, the option's too.
            size: height and width of a frame in pixels.
            n_in: all tokens of the prompt, vision tokens among them; those alone where None.
            answer: charged length of the answer in tokens (`vlms.parsing.charged_length`).

        Raises:
            ValueError: fewer prompt tokens than the clips alone give.
        """
        held = self.tokens(clips, size, frames_as)
        n = held if n_in is None else n_in
        if n < held:
            raise ValueError(f"n_in={n} tokens cannot hold the {held} vision tokens of clips {tuple(clips)}")
        return VlmCost(self.vision(clips, size, frames_as), self.connector(clips, size, frames_as),
                       self.prefill(n), self.decode(n, answer))  # fmt: skip


def windows(length: int, window: int) -> int:
    """Sum of the squares of the pieces when `length` is cut into windows; the last may be short."""
    whole, rest = divmod(length, window)
    return whole * window**2 + rest**2


def price_vlm(config: Any, *, lora_rank: int | None = None) -> VlmPrice:
    """The price of a checkpoint.

    Args:
        config: its folder, its config.json, that file's content as a dict, or a transformers config.
        lora_rank: of vision adapters (Phi-4) that the config does not mention.

    Raises:
        FileNotFoundError: no config.json there.
        UnknownFamily, ValueError: see `read_shapes`.
    """
    if isinstance(config, (str, Path)):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"no config.json at {path}; give the checkpoint's folder or that file")
        config = json.loads(path.read_text(encoding="utf-8"))
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if lora_rank is not None:
        config = {**config, "vision_lora": {"r": lora_rank}}
    return VlmPrice(read_shapes(config))
