"""How much of a batch to work on at a time.

On a CPU most sequence operators wait for memory, not for arithmetic: a temporary of the whole batch does not fit in
a cache, and fresh pages cost as much as filling them. Working through the batch in slabs whose temporaries stay in
the cache removes both costs. A GPU wants the opposite, one large launch, so there a slab is the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

CACHE_BYTES = 2 << 20
"""What one slab's largest temporary may take: about the second-level cache of a current core."""


def slabs(batch: int, bytes_per_item: int, device: torch.device) -> Iterator[slice]:
    """Slices that cut `batch` items into runs whose temporaries, `bytes_per_item` each, stay in the cache."""
    step = max(1, CACHE_BYTES // max(1, bytes_per_item)) if device.type == "cpu" else batch
    for start in range(0, batch, step):
        yield slice(start, min(start + step, batch))
