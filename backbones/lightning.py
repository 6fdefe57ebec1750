"""Training of a membership model as a LightningModule: loss, metrics, optimiser. The Trainer belongs to `train.py`.

A batch is any object with `stream`, `candidates`, `lengths`, `labels` and `times` (see `MembershipModel.forward`), so
this package does not need to know where batches come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric

from .auxiliary import auxiliary_losses
from .model import MembershipModel


@dataclass(frozen=True)
class Optimisation:
    """AdamW with a warm-up and a cosine; decay on matrices only."""

    lr: float
    """Peak learning rate."""
    steps: int
    """Length of the schedule in optimiser steps."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    warmup: float = 0.01
    """Fraction of the steps over which the rate rises linearly."""
    final_lr: float = 0.0
    """Where the cosine ends, as a fraction of the peak."""
    clip: float = 1.0
    """Largest norm of the gradient of all parameters together."""

    def __post_init__(self):
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}: a learning rate is positive")
        if self.steps < 1 or not 0 <= self.warmup < 1 or not 0 <= self.final_lr <= 1:
            raise ValueError(
                f"steps={self.steps}, warmup={self.warmup}, final_lr={self.final_lr}: "
                "steps must be at least 1, warmup and final_lr fractions of 1"
            )

    def factor(self, step: int) -> float:
        """The learning rate at a step, over its peak."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return (step + 1) / warm
        progress = min(1.0, (step - warm) / max(1, self.steps - warm))
        return self.final_lr + (1 - self.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay; vectors, scalars and parameters marked `_no_weight_decay` do not."""
    decay, keep = [], []
    for parameter in model.parameters():
        matrix = parameter.ndim >= 2 and not getattr(parameter, "_no_weight_decay", False)
        (decay if matrix else keep).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": keep, "weight_decay": 0.0}]


def untouched(model: MembershipModel, length: int) -> list[str]:
    """Names of parameters that a stream of `length` symbols gives no gradient: a memory that a short stream never
    fills has some. DistributedDataParallel waits for their gradients for ever unless it is told to look for them.

    The model's gradients are left as they were, empty.
    """
    device = model.head.weight.device
    stream = torch.zeros(1, length, dtype=torch.int64, device=device)
    candidates = stream.new_zeros(1, 1, model.candidate.longest)
    lengths = stream.new_full((1, 1), model.candidate.longest)
    with auxiliary_losses() as extra:
        loss = model(stream, candidates, lengths, (length,)).sum()
        sum(extra.values(), loss).backward()
    names = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    model.zero_grad(set_to_none=True)
    return names


class MembershipTraining(lightning.LightningModule):
    """Cross-entropy on two logits, plus whatever auxiliary losses the layers name.

    Args:
        model: what is trained.
        optimisation: schedule and decay.
        validation_lengths: the stream length of each validation dataloader, in order.
        trained_length: the longest length that training shows: `val/accuracy` is the mean up to it, and what lies
            beyond is reported but decides nothing.
        auxiliary_weights: factor of each auxiliary loss by name; 1 where none is given.
    """

    def __init__(
        self,
        model: MembershipModel,
        optimisation: Optimisation,
        validation_lengths: Sequence[int],
        trained_length: int,
        auxiliary_weights: dict[str, float] | None = None,
    ):
        super().__init__()
        self.model = model
        self.optimisation = optimisation
        self.validation_lengths = tuple(validation_lengths)
        self.trained_length = trained_length
        self.auxiliary_weights = auxiliary_weights or {}
        self.accuracy, self.recall, self.specificity = (
            nn.ModuleList(MeanMetric() for _ in self.validation_lengths) for _ in range(3)
        )

    def training_step(self, batch, _index: int) -> Tensor:
        with auxiliary_losses() as extra:
            logits = self.model(batch.stream, batch.candidates, batch.lengths, batch.times)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.labels.flatten())
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)  # the mean over all processes, as one would log
        self.log("train/length", float(batch.stream.shape[1]))
        for name, value in extra.items():
            self.log(f"train/{name}", value, sync_dist=True)
            loss = loss + self.auxiliary_weights.get(name, 1.0) * value
        return loss

    def validation_step(self, batch, _index: int, dataloader_idx: int = 0) -> None:
        logits = self.model(batch.stream, batch.candidates, batch.lengths, batch.times)
        right = (logits.argmax(-1) == batch.labels).float()
        yes = batch.labels == 1
        self.accuracy[dataloader_idx].update(right)
        self.recall[dataloader_idx].update(right[yes])
        self.specificity[dataloader_idx].update(right[~yes])

    def on_validation_epoch_end(self) -> None:
        trained = []
        for i, length in enumerate(self.validation_lengths):
            accuracy = self.accuracy[i].compute()
            if length <= self.trained_length:
                trained.append(accuracy)
            self.log(f"val/accuracy/L{length}", accuracy, prog_bar=True)
            self.log(f"val/recall/L{length}", self.recall[i].compute())
            self.log(f"val/specificity/L{length}", self.specificity[i].compute())
            for metric in (self.accuracy[i], self.recall[i], self.specificity[i]):
                metric.reset()
        self.log("val/accuracy", torch.stack(trained).mean())
        self.log("val/worst_accuracy", torch.stack(trained).min())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        """Clip here: Lightning refuses to for a fused optimiser under mixed precision, even without a scaler."""
        nn.utils.clip_grad_norm_(self.parameters(), self.optimisation.clip)

    def configure_optimizers(self):
        plan = self.optimisation
        groups = parameter_groups(self.model, plan.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=plan.lr, betas=tuple(plan.betas), fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
