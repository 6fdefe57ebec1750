"""The membership task as a LightningDataModule: one training loader, and a validation loader for each length.

    data = MembershipData(MembershipConfig(), OnlineSchedule(steps=4000), validation_lengths=(32, 64, 128))
    Trainer(max_steps=data.schedule.steps, ...).fit(model, datamodule=data)

Training batches start at `trainer.global_step`, read whenever the loader is iterated, so a run resumed from a
checkpoint sees exactly the batches that it has not seen; there is no data state to save. Lightning's `dataloader_idx`
in validation counts through `validation_lengths`.

The schedule's `batch_size` is the batch of one optimiser step, over all devices and accumulated micro-batches together:
changing the number of devices leaves the data of each step as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from tasks.batch import Batch
from tasks.dataset import EvaluationBatches, TrainingBatches
from tasks.membership import MembershipConfig
from tasks.schedule import EpochSchedule, OnlineSchedule


class MembershipData(LightningDataModule):
    """Training and validation batches of the membership task."""

    def __init__(
        self,
        config: MembershipConfig,
        schedule: OnlineSchedule | EpochSchedule,
        *,
        validation_lengths: Sequence[int],
        validation_streams: int | None = 64,
        validation_queries: int = 32,
        validation_batch: int = 16,
        num_workers: int = 0,
    ):
        """
        Args:
            validation_lengths: a validation loader for each.
            validation_streams: streams per length; None takes all that an EpochSchedule holds out.
            validation_queries: queries per validation stream, all at its end.
            validation_batch: streams per validation batch, over all devices together.
            num_workers: processes that generate training batches; 0 generates them in the training process.

        Raises:
            ValueError: for no validation lengths, or lengths that the schedule holds no streams of.
        """
        super().__init__()
        self.config, self.schedule = config, schedule
        self.validation_lengths = tuple(validation_lengths)
        self._validation = [self.schedule.validation(n, validation_streams) for n in self.validation_lengths]
        if not self._validation:
            raise ValueError("validation_lengths is empty; name at least one length to validate on")
        self._queries, self._batch_size, self._num_workers = validation_queries, validation_batch, num_workers

    def train_dataloader(self) -> DataLoader:
        trainer = self.trainer
        dataset = TrainingBatches(
            self.config,
            self.schedule,
            rank=trainer.global_rank,
            world=trainer.world_size,
            accumulate=trainer.accumulate_grad_batches,
        )
        return _ResumingLoader(
            lambda: trainer.global_step,
            dataset,
            batch_size=None,
            num_workers=self._num_workers,
            pin_memory=self._on_gpu,
        )

    def val_dataloader(self) -> list[DataLoader]:
        trainer = self.trainer
        datasets = (
            EvaluationBatches(
                self.config,
                self.schedule.seed,
                indices,
                length,
                self._queries,
                self._batch_size,
                split=split,
                rank=trainer.global_rank,
                world=trainer.world_size,
            )
            for length, (split, indices) in zip(self.validation_lengths, self._validation, strict=True)
        )
        return [DataLoader(dataset, batch_size=None, pin_memory=self._on_gpu) for dataset in datasets]

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch.to(device, non_blocking=device.type == "cuda")

    @property
    def _on_gpu(self) -> bool:
        return self.trainer.strategy.root_device.type == "cuda"


class _ResumingLoader(DataLoader):
    """A loader whose dataset starts at the step that `start` tells when iteration begins."""

    def __init__(self, start: Callable[[], int], *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._start = start

    def __iter__(self) -> Iterator[Batch]:
        self.dataset.start_step = self._start()
        return super().__iter__()
