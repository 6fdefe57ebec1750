"""The memory of the Compressive Transformer without its arithmetic: slots, the sizes of its levels, windows onto time.

What a level holds at any moment is a window onto everything that was ever put into it. So a write first computes all
slots that it will make, each level's in one product, and then reads the memory of every block, and the state at any
time, as slices: `History`. `Layout` says how many slots there are, in closed form.

Letters: B batch, L tokens of a write, S slots, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .state import State


@dataclass
class Slots(State):
    """Places that attention can see, oldest first."""

    x: Tensor  # [B, S, D]: normed inputs, or compressions of them
    kv: Tensor  # [B, S, 2 D]: their keys and values

    def __len__(self) -> int:
        return self.x.shape[1]

    def __getitem__(self, part: slice) -> Slots:
        return Slots(self.x[:, part], self.kv[:, part])

    def __add__(self, other: Slots) -> Slots:
        return Slots(torch.cat([self.x, other.x], 1), torch.cat([self.kv, other.kv], 1))


@dataclass
class CompressiveState(State):
    """Every length is the shape of a tensor: there is no counter."""

    long_term: Slots  # one, or none yet
    level2: Slots
    level1: Slots
    recent: Slots  # the previous block, or nothing
    block: Slots  # the open block: fewer tokens than a full one

    def past(self, chronological: bool = True) -> list[Slots]:
        """The memory, without the open block, in the order in which attention sees it."""
        levels = [self.level2, self.level1] if chronological else [self.level1, self.level2]
        return [self.long_term, *levels, self.recent]


@dataclass(frozen=True)
class Layout:
    """Sizes of the memory.

    Args:
        block: tokens of a block.
        ratios: tokens to a slot of level 1, slots of level 1 to one of level 2.
        slots: capacity of the two levels.
    """

    block: int
    ratios: tuple[int, int]
    slots: tuple[int, int]

    @property
    def groups(self) -> tuple[int, int]:
        """Slots that one block becomes in level 1, and then in level 2."""
        level1 = self.block // self.ratios[0]
        return level1, level1 // self.ratios[1]

    @property
    def positions(self) -> int:
        """The most slots that a token can see, itself included."""
        return 2 * self.block + sum(self.slots) + 1

    def made(self, blocks: int) -> tuple[int, int, int]:
        """Slots put into level 1, into level 2, and updates of the long-term slot, by the end of a block."""
        level1 = max(0, blocks - 1) * self.groups[0]
        level2 = max(0, level1 - self.slots[0]) // self.ratios[1]
        return level1, level2, max(0, level2 - self.slots[1]) // self.groups[1]

    def past(self, blocks: int) -> int:
        """m: slots that the block after `blocks` full ones sees."""
        level1, level2, long_term = self.made(blocks)
        kept = min(level1, self.slots[0]) + min(level2, self.slots[1]) + min(long_term, 1)
        return kept + (self.block if blocks else 0)

    def pairs(self, T: int) -> int:
        """Pairs of a token with a slot, with a token before it in its block, or with itself, over T tokens."""
        blocks, rest = divmod(T, self.block)
        memory = self.block * sum(self.past(b) for b in range(blocks)) + rest * self.past(blocks)
        return memory + blocks * self.block * (self.block + 1) // 2 + rest * (rest + 1) // 2


@dataclass(frozen=True)
class History:
    """All slots behind a write, each level's old and new ones in one line of time.

    Args:
        layout: sizes.
        before: the state that the write continues from.
        tokens: the previous block, the open block and the new tokens.
        level1, level2, long_term: what the state had, then what the write has put there.
    """

    layout: Layout
    before: CompressiveState
    tokens: Slots
    level1: Slots
    level2: Slots
    long_term: Slots

    def _windows(self, blocks: int) -> tuple[slice, slice, slice, slice]:
        """What is in long-term memory, level 2, level 1 and the previous block when `blocks` more blocks are full."""
        (group1, group2), (size1, size2) = self.layout.groups, self.layout.slots
        end = len(self.before.recent) + blocks * self.layout.block
        compressed = blocks if len(self.before.recent) else max(0, blocks - 1)
        end1 = len(self.before.level1) + compressed * group1
        start1 = max(0, end1 - size1)
        end2 = len(self.before.level2) + start1 // self.layout.ratios[1]
        start2 = max(0, end2 - size2)
        updates = len(self.before.long_term) + start2 // group2
        recent = slice(max(0, end - self.layout.block), end)
        return slice(max(0, updates - 1), updates), slice(start2, end2), slice(start1, end1), recent

    def at(self, blocks: int, t: int | None = None) -> CompressiveState:
        """The memory when `blocks` more blocks are full, with the next one up to the t-th new token or its end."""
        long_term, level2, level1, recent = self._windows(blocks)
        first = len(self.before.recent) + len(self.before.block)
        stop = recent.stop + self.layout.block if t is None else first + t
        return CompressiveState(
            self.long_term[long_term],
            self.level2[level2],
            self.level1[level1],
            self.tokens[recent],
            self.tokens[recent.stop : stop],
        )

    def state(self, t: int) -> CompressiveState:
        """The state after the t-th new token, in memory of its own: a view would keep the whole stream alive."""
        return self.at((len(self.before.block) + t) // self.layout.block, t).map(torch.clone)

    def blocks(self) -> Iterator[tuple[slice, CompressiveState]]:
        """For every block that the write touches: its new tokens, and what they see, the whole block included."""
        size, start, t, b = self.layout.block, len(self.before.block), 0, 0
        length = len(self.tokens) - len(self.before.recent) - start
        while t < length:
            stop = min((b + 1) * size - start, length)
            yield slice(t, stop), self.at(b)
            t, b = stop, b + 1

    def evictions(self) -> Iterator[tuple[slice, list[Slots]]]:
        """For every block that the write completes: its new tokens, and what was evicted from the previous block and
        from level 1 when it ended."""
        for b, (rows, seen) in enumerate(self.blocks()):
            if len(seen.block) == self.layout.block:
                level1, after = self._windows(b)[2], self._windows(b + 1)[2]
                yield rows, [seen.recent, self.level1[level1.start : after.start]]
