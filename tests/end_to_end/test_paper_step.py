"""One optimiser step of `preset=paper` at its longest length: on the CPU with a small batch, on a GPU as it is."""

from __future__ import annotations

import lightning
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from backbones import available
from lab.config import CONFIGS, register_backbones, resolve
from lab.training import data_for, module_for


def step(name: str, accelerator: str, *overrides: str) -> lightning.Trainer:
    """One step on streams of 1024, precision and optimiser as the preset has them."""
    register_backbones()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        longest = ("schedule.lengths.first=1024", "validation.lengths=[1024]")
        cfg = resolve(compose("train", [f"backbone={name}", "preset=paper", *longest, *overrides]))
    data, module = data_for(cfg), module_for(cfg, 100)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer = lightning.Trainer(
        accelerator=accelerator, devices=1, precision=cfg.precision, max_steps=1, limit_val_batches=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data)
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    assert trainer.callback_metrics["train/length"] == 1024
    after = {key: value.to(before[key].device) for key, value in module.state_dict().items()}
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(after[key], before[key]) for key in before)
    return trainer


def test_on_the_cpu():
    step("transformer_conv", "cpu", "batch_size=2", "schedule.streams=2000")


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", available())
def test_on_a_gpu(name, width):
    step(name, "gpu", f"d={width}", "schedule.streams=20000")
