"""Which belt each symbol of a stream travels on.

The paper does not say how belts are chosen; its prompt says that a letter always stays on one belt.

`per_symbol`  each stream draws, for every symbol, one of the three belts (default). Belts then add nothing to the
              stream's entropy, so its band describes the video too.
`iid`         a belt per frame. It adds log2(3) = 1.58 bits per frame to both bands, which hides most of the contrast
              between them.

The symbols' belts are independent of each other. So moving one letter to another belt gives a placement exactly as
likely as the true one, and a spatial negative cannot be told by its look. (Insisting that every belt be used would
break this independence slightly; a map leaves a belt empty in one stream of 200.)

Letters: L symbols per stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tasks.batch import SPLITS, VOCABULARY, check_name
from tasks.membership import MembershipConfig
from tasks.rng import below, fold, words

VERSION = 1  # raise it when the same arguments would give other data
BELTS = 3
BELT_MODES = ("per_symbol", "iid")
_TASK = 0xBE17  # keeps keys apart from those of other tasks


@dataclass(frozen=True)
class VideoConfig:
    """How streams become placed streams, and which candidates are asked about."""

    belt_mode: str = "per_symbol"
    """How belts are chosen, one of BELT_MODES."""
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    """Vocabulary and candidate lengths; sequential questions are this task's."""
    version: int = VERSION
    """Version of the generated data; this code makes one only."""

    def __post_init__(self) -> None:
        check_name("belt_mode", self.belt_mode, BELT_MODES)
        if self.version != VERSION:
            raise ValueError(f"data version {self.version} was asked for, but this code makes version {VERSION}")


def stream_key(config: VideoConfig, seed: int, index: int, length: int, split: str) -> np.ndarray:
    """The random key of everything that is drawn for one stream here."""
    check_name("split", split, SPLITS)
    return fold(_TASK, config.version, seed, SPLITS.index(split), length, index)


def belt_map(config: VideoConfig, seed: int, index: int, length: int, *, split: str) -> np.ndarray:
    """Belt of each symbol: uint8 [16]. In mode `iid` nothing uses it."""
    return below(words(stream_key(config, seed, index, length, split), VOCABULARY), BELTS).astype(np.uint8)


def assign_belts(config: VideoConfig, seed: int, index: int, symbols: np.ndarray, *, split: str) -> np.ndarray:
    """Belts of a stream's symbols [L]: uint8 [L], a function of the arguments alone."""
    if config.belt_mode == "iid":
        key = stream_key(config, seed, index, len(symbols), split)
        return below(words(key, len(symbols), start=VOCABULARY), BELTS).astype(np.uint8)
    return belt_map(config, seed, index, len(symbols), split=split)[symbols]


def joint(symbols: np.ndarray, belts: np.ndarray) -> np.ndarray:
    """Placed symbols as one alphabet of 48: symbol * 3 + belt, uint8."""
    return (np.asarray(symbols) * BELTS + np.asarray(belts)).astype(np.uint8)
