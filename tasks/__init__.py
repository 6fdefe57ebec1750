"""Tasks: streams, the queries asked about them, and the samplers and data modules that serve them.

    from tasks import MembershipConfig, sample
    batch = sample(MembershipConfig(), seed=0, indices=range(4), length=64, queries=32, split="test")

`tasks.datamodule` (Lightning) and `tasks.splits` (pyarrow) are imported only where they are used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tasks.batch import BANDS, KINDS, MAX_CANDIDATE, PAD, QUERY_SETS, SPLITS, VOCABULARY, Batch
from tasks.dataset import EvaluationBatches, TrainingBatches
from tasks.entropy import EntropyConfig, LowStream, RuleSet, low_stream, low_streams
from tasks.membership import MembershipConfig, ask, sample, streams
from tasks.schedule import EpochSchedule, OnlineSchedule, Step
from tasks.solvers import SOLVERS, Solver, solver

if TYPE_CHECKING:
    from tasks.splits import Split

__all__ = [
    "BANDS",
    "KINDS",
    "MAX_CANDIDATE",
    "PAD",
    "QUERY_SETS",
    "SOLVERS",
    "SPLITS",
    "VOCABULARY",
    "Batch",
    "EntropyConfig",
    "EpochSchedule",
    "EvaluationBatches",
    "LowStream",
    "MembershipConfig",
    "OnlineSchedule",
    "RuleSet",
    "Solver",
    "Step",
    "TrainingBatches",
    "ask",
    "load",
    "low_stream",
    "low_streams",
    "sample",
    "solver",
    "streams",
]


def load(path: str | os.PathLike[str]) -> Split:
    """A split that `python -m tasks build` wrote, checked file by file; see `tasks.splits`.

    Raises:
        tasks.splits.SplitError: for files that are missing, truncated, edited or of another version.
    """
    from tasks.splits import load as load_split

    return load_split(path)
