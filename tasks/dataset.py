"""Ready-made batches for a torch DataLoader: `DataLoader(TrainingBatches(...), batch_size=None, num_workers=n)`.

Each item is a whole `Batch`, generated where it is needed. Items depend on their step alone, so that any number of
worker processes yields the same batches in the same order, and a start at step s needs nothing from before s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from tasks.batch import Batch
from tasks.membership import MembershipConfig, sample
from tasks.schedule import EpochSchedule, OnlineSchedule


class TrainingBatches(IterableDataset):
    """The batches of steps start_step .. schedule.steps - 1.

    Device `rank` of `world` gets its share of every global batch. With `accumulate` micro-batches per optimiser step,
    that many items follow each other per step, and together with all ranks' they make up the same global batch.
    """

    def __init__(
        self,
        config: MembershipConfig,
        schedule: OnlineSchedule | EpochSchedule,
        start_step: int = 0,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ):
        """
        Raises:
            ValueError: when the global batch does not split evenly.
        """
        if schedule.batch_size % (world * accumulate):
            raise ValueError(
                f"a global batch of {schedule.batch_size} streams does not split evenly over {world} devices x "
                f"{accumulate} accumulated micro-batches; make batch_size a multiple of {world * accumulate}"
            )
        self.config, self.schedule, self.start_step = config, schedule, start_step
        self.rank, self.world, self.accumulate = rank, world, accumulate

    def __iter__(self) -> Iterator[Batch]:
        items = range(self.start_step * self.accumulate, self.schedule.steps * self.accumulate)
        for item in _mine(items):
            yield self.batch(*divmod(item, self.accumulate))

    def batch(self, step: int, part: int = 0) -> Batch:
        """Micro-batch `part` (0 .. accumulate - 1) of an optimiser step, this rank's share."""
        plan = self.schedule.at(step)
        indices = plan.indices[part * self.world + self.rank :: self.world * self.accumulate]
        seed = self.schedule.seed
        return sample(self.config, seed, indices, plan.length, plan.queries, split="train", times=plan.times)


class EvaluationBatches(IterableDataset):
    """A fixed set of streams of one length, asked at the end, in batches of at most `batch_size` streams."""

    def __init__(
        self,
        config: MembershipConfig,
        seed: int,
        indices: Sequence[int],
        length: int,
        queries: int,
        batch_size: int,
        *,
        split: str,
        query_set: str = "uniform",
        band: str = "max",
        rank: int = 0,
        world: int = 1,
    ):
        """
        Raises:
            ValueError: with fewer streams than devices.
        """
        if len(indices) < world:
            raise ValueError(f"{len(indices)} streams of length {length} are too few for {world} devices")
        self.config, self.seed, self.length, self.queries = config, seed, length, queries
        self.split, self.query_set, self.band = split, query_set, band
        # Batches of nearly equal size: every rank then has as many batches as every other, none of them empty.
        size = max(batch_size, world)
        batches = np.array_split(np.asarray(indices), -(-len(indices) // size))
        self._batches = [batch[rank::world] for batch in batches]

    def __iter__(self) -> Iterator[Batch]:
        for indices in _mine(self._batches):
            yield sample(
                self.config,
                self.seed,
                indices,
                self.length,
                self.queries,
                split=self.split,
                query_set=self.query_set,
                band=self.band,
            )


def _mine(items: Sequence) -> Sequence:
    """This worker's share of the items. A DataLoader takes from its workers in turn, which restores the order."""
    worker = get_worker_info()
    return items if worker is None else items[worker.id :: worker.num_workers]
