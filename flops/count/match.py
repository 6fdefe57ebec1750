"""Which of two lists of amounts has what the other lacks, when one side may split what the other has in one piece.

A closed form says "q, k, v, output: four products D x D" where a layer executes one D x 3D and one D x D; another layer
makes one product of what the paper lists as five. Equal amounts are taken away, one against one and then one against
several, and what is left has a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """An amount of FLOPs or of weights.

    Args:
        name: short.
        text: in full, with its shape.
        amount: of whatever is compared.
        shape: (m, k, n) of the product; a matrix parameter has m = 1.
    """

    name: str
    text: str
    amount: int
    shape: tuple[int, int, int]

    def akin(self, other: Item) -> bool:
        """The same inner dimension, as parts of one fused product have, or the transposed matrix."""
        (_, k, n), (_, other_k, other_n) = self.shape, other.shape
        return k == other_k or (k, n) == (other_n, other_k)


def total(items: Sequence[Item]) -> int:
    return sum(item.amount for item in items)


def unmatched(left: Sequence[Item], right: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """What is left of both lists."""
    left, right = ([item for item in side if item.amount] for side in (left, right))
    for alike in (lambda a, b: a.shape == b.shape, Item.akin, lambda a, b: True):
        for item in list(left):
            partner = next((r for r in right if r.amount == item.amount and alike(item, r)), None)
            if partner:
                _take(left, [item])
                _take(right, [partner])
    for one, many in ((left, right), (right, left)):
        for item in sorted(one, key=lambda item: -item.amount):
            parts = _subset([other for other in many if item.akin(other)], item.amount)
            if parts:
                _take(one, [item])
                _take(many, parts)
    return left, right


def _take(items: list[Item], parts: list[Item]) -> None:
    for part in parts:
        items.remove(part)


def _subset(items: list[Item], amount: int) -> list[Item]:
    """The fewest items that sum to the amount; none if there are no such items."""
    reach: dict[int, list[Item]] = {0: []}
    for item in items:
        for reached, parts in list(reach.items()):
            new = reached + item.amount
            if new <= amount and (new not in reach or len(reach[new]) > len(parts) + 1):
                reach[new] = [*parts, item]
    return reach.get(amount, [])
