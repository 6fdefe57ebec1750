"""Tasks: streams, the queries asked about them, and the samplers and data modules that serve them.

    from tasks import MembershipConfig, sample
    batch = sample(MembershipConfig(), seed=0, indices=range(4), length=64, queries=32, split="test")

`tasks.datamodule` (Lightning) is imported only where it is used.
"""

from tasks.batch import BANDS, KINDS, MAX_CANDIDATE, PAD, QUERY_SETS, SPLITS, VOCABULARY, Batch
from tasks.dataset import EvaluationBatches, TrainingBatches
from tasks.entropy import EntropyConfig, LowStream, RuleSet, low_stream, low_streams
from tasks.membership import MembershipConfig, ask, sample, streams
from tasks.schedule import EpochSchedule, OnlineSchedule, Step
from tasks.solvers import SOLVERS, Solver, solver

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
    "low_stream",
    "low_streams",
    "sample",
    "solver",
    "streams",
]
