"""Datasets: the same batches for any worker, device or resume point; a Lightning run resumes where it stopped."""

import subprocess
import sys

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

from tasks import EpochSchedule, EvaluationBatches, MembershipConfig, OnlineSchedule, TrainingBatches
from tasks.datamodule import MembershipData

CONFIG = MembershipConfig()
SCHEDULES = {
    "online": OnlineSchedule(steps=7, batch_size=8, max_length=64, queries=16, growth=0),
    "epochs": EpochSchedule(epochs=1, batch_size=8, streams=80, lengths=(16, 32), queries=8),
}
TENSORS = ("stream", "candidates", "lengths", "labels", "age", "kinds", "pair", "index")


def assert_same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others) > 0
    for a, b in zip(batches, others, strict=True):
        assert a.times == b.times
        for name in TENSORS:
            assert torch.equal(getattr(a, name), getattr(b, name)), name


def joined(parts):
    """Shares of one global batch, back together in the order of their stream indices."""
    index = torch.cat([p.index for p in parts])
    return {name: torch.cat([getattr(p, name) for p in parts])[index.argsort()] for name in TENSORS}


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return SCHEDULES[request.param]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_yield_the_same_batches_in_the_same_order(schedule, workers):
    alone = TrainingBatches(CONFIG, schedule)
    loader = DataLoader(TrainingBatches(CONFIG, schedule), batch_size=None, num_workers=workers)
    assert_same(loader, alone)
    held_out = EvaluationBatches(CONFIG, 0, range(10), 16, 8, 3, split="validation")
    assert_same(DataLoader(held_out, batch_size=None, num_workers=workers), held_out)


def test_a_late_start_skips_exactly_what_came_before(schedule):
    whole = list(TrainingBatches(CONFIG, schedule))
    assert len(whole) == schedule.steps
    assert_same(TrainingBatches(CONFIG, schedule, start_step=3), whole[3:])


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 2), (4, 1), (2, 2)])
def test_devices_and_micro_batches_share_the_global_batch(schedule, world, accumulate):
    ranks = [list(TrainingBatches(CONFIG, schedule, 2, rank, world, accumulate)) for rank in range(world)]
    assert {len(r) for r in ranks} == {(schedule.steps - 2) * accumulate}
    for step, whole in enumerate(TrainingBatches(CONFIG, schedule, start_step=2)):
        parts = [r[step * accumulate + part] for r in ranks for part in range(accumulate)]
        assert {p.size for p in parts} == {8 // (world * accumulate)}
        for name, value in joined(parts).items():
            assert torch.equal(value, joined([whole])[name]), name


def test_evaluation_batches_cover_every_stream_once_on_any_number_of_devices():
    def make(**kwargs):
        return list(EvaluationBatches(CONFIG, 0, range(11), 16, 8, 4, split="validation", **kwargs))

    alone = make()
    assert [b.size for b in alone] == [4, 4, 3]
    ranks = [make(rank=rank, world=3) for rank in range(3)]
    assert {len(r) for r in ranks} == {3}
    assert all(b.size > 0 for r in ranks for b in r)
    for name, value in joined([b for r in ranks for b in r]).items():
        assert torch.equal(value, joined(alone)[name])
    with pytest.raises(ValueError, match="1 streams of length 16 are too few for 2 devices"):
        EvaluationBatches(CONFIG, 0, [0], 16, 8, 4, split="test", world=2)


def test_a_batch_that_does_not_split_is_refused(schedule):
    with pytest.raises(ValueError, match="8 streams does not split evenly over 3 devices"):
        TrainingBatches(CONFIG, schedule, world=3)


# -- Lightning -------------------------------------------------------------------------------------


class Recorder(lightning.LightningModule):
    """Learns nothing; remembers which batches it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained, self.validated = [], []

    def training_step(self, batch, _):
        self.trained.append(batch)
        return self.weight**2

    def validation_step(self, batch, _, dataloader_idx=0):
        self.validated.append((dataloader_idx, batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(folder, steps, schedule, resume=None, workers=0, accumulate=1):
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        val_check_interval=2 * accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lengths = (16, 32)
    data = MembershipData(
        CONFIG, schedule, validation_lengths=lengths, validation_streams=2, validation_batch=2, num_workers=workers
    )
    model = Recorder()
    trainer.fit(model, data, ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model


# Lightning advises more workers, and itself uses a deprecated torch name.
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*LeafSpec")


@quiet
@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 1), (0, 2)])
def test_a_resumed_run_sees_the_batches_that_it_has_not_seen(tmp_path, schedule, workers, accumulate):
    whole = list(TrainingBatches(CONFIG, schedule, accumulate=accumulate))
    before = fit(tmp_path, 3, schedule, workers=workers, accumulate=accumulate)
    after = fit(tmp_path, schedule.steps, schedule, tmp_path / "last.ckpt", workers, accumulate)
    assert_same(before.trained + after.trained, whole)


@quiet
def test_each_validation_length_has_its_loader(tmp_path, schedule):
    model = fit(tmp_path, 2, schedule)
    assert [(i, b.stream.shape[1]) for i, b in model.validated] == [(0, 16), (1, 32)]
    split, indices = schedule.validation(16, 2)
    assert_same([model.validated[0][1]], EvaluationBatches(CONFIG, 0, indices, 16, 32, 2, split=split))


def test_importing_the_tasks_does_not_import_lightning():
    code = (
        "import sys, tasks; sys.exit(any(m.partition('.')[0] in ('lightning', 'hydra', 'wandb') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
