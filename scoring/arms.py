"""Does a memory answer less when errors cost more, and does it drop the right questions? (paper, sections 3, 4.3, B.8)

Arm A pays +3 / -1, so answering breaks even at confidence 25%; arm B pays +1 / -4, which raises that to 80%. A language
model is told the arm and answers the same questions twice (column `arm`). A memory with confidences needs no second
run: under an arm it answers where its confidence is at least the break-even threshold.

Letters: n questions asked in both arms, S streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import fisher_exact

from scoring.cells import Cell
from scoring.metrics import ARM_A, ARM_B, Arm
from scoring.statistics import Estimate, Redraws, estimate, ratio

SELECTIVITY_REDRAWS = 4000
FEWEST_DECLINED = 5  # Table 10 shows the gap only where arm B declined at least five of arm A's answers
ARM_METRICS = (
    "coverage_arm_a",
    "coverage_arm_b",
    "responsiveness",
    "selectivity",
    "selectivity_fisher_p",
    "selectivity_p_le_0",
    "payoff_a",
    "payoff_b",
    "payoff_a_under_b",
    "payoff_gain",
)


@dataclass(frozen=True)
class ArmPair:
    """The same n questions under both arms: bool [n] each, with the stream of each question, int [n] in 0..S-1."""

    stream: np.ndarray
    streams: int
    answered_a: np.ndarray
    correct_a: np.ndarray
    answered_b: np.ndarray
    correct_b: np.ndarray

    @classmethod
    def by_threshold(cls, cell: Cell) -> ArmPair | None:
        """Both arms from one set of confidences; None when the cell has none. Its own abstentions stay abstentions."""
        if cell.confidence is None:
            return None
        confidence = np.where(cell.answered, cell.confidence, -1.0)
        answered = [confidence >= arm.threshold for arm in (ARM_A, ARM_B)]
        return cls(cell.stream, cell.streams, *(x for a in answered for x in (a, cell.correct & a)))

    @classmethod
    def told(cls, a: Cell, b: Cell) -> ArmPair:
        """Pair two cells asked under the two arms.

        Raises:
            ValueError: they were not asked the same questions.
        """
        if not np.array_equal(a.question, b.question):
            odd = sorted(set(a.question) ^ set(b.question))[0].split("\0")
            raise ValueError(
                f"system {a.key.system!r}, band {a.key.band}, L {a.key.L}: the arms were not asked the same questions "
                f"(stream {odd[0]}, query {odd[1]} is in one only); finish the evaluation of both"
            )
        return cls(a.stream, a.streams, a.answered, a.correct, b.answered, b.correct)

    @classmethod
    def pooled(cls, pairs: Sequence[ArmPair]) -> ArmPair:
        """One pair over several cells, e.g. all lengths; streams of different cells stay different."""
        offsets = np.cumsum([0, *(p.streams for p in pairs)])
        stream = np.concatenate([p.stream + o for p, o in zip(pairs, offsets, strict=False)])
        parts = ([getattr(p, name) for p in pairs] for name in ("answered_a", "correct_a", "answered_b", "correct_b"))
        return cls(stream, int(offsets[-1]), *(np.concatenate(part) for part in parts))


def arm_metrics(pair: ArmPair | None, name: str, redraws: int = SELECTIVITY_REDRAWS) -> dict[str, Estimate]:
    """All of `ARM_METRICS` for one pair.

    Selectivity splits arm A's answers into those kept and those declined in arm B, and compares how often each were
    right in arm A. The one-sided Fisher test asks how likely so large a gap is if B declined without regard to
    difficulty; as it takes questions for independent, the bootstrap over streams stands beside it.

    Args:
        name: of the questions, for the redraws.
    """
    if pair is None:
        return {m: Estimate(None, note="no confidences and no arms") for m in ARM_METRICS}
    kept = pair.answered_a & pair.answered_b
    declined = pair.answered_a & ~pair.answered_b
    columns = {
        "n": np.ones(len(pair.stream)),
        "answered_a": pair.answered_a,
        "correct_a": pair.correct_a,
        "answered_b": pair.answered_b,
        "correct_b": pair.correct_b,
        "kept_right": kept & pair.correct_a,
        "kept": kept,
        "declined_right": declined & pair.correct_a,
        "declined": declined,
    }
    weights = columns.values()
    sums = np.stack([np.bincount(pair.stream, weights=c, minlength=pair.streams) for c in weights], axis=1)
    point = dict(zip(columns, sums.sum(axis=0), strict=True))
    drawn = dict(zip(columns, Redraws(pair.streams, redraws, name).totals(sums).T, strict=True))

    def payoff(t: dict, arm: Arm, run: str) -> np.ndarray:
        return arm.payoff(t[f"correct_{run}"], t[f"answered_{run}"], t["n"])

    def gap(t: dict) -> np.ndarray:
        return ratio(t["kept_right"], t["kept"]) - ratio(t["declined_right"], t["declined"])

    formulas = {
        "coverage_arm_a": lambda t: ratio(t["answered_a"], t["n"]),
        "coverage_arm_b": lambda t: ratio(t["answered_b"], t["n"]),
        "responsiveness": lambda t: ratio(t["answered_a"] - t["answered_b"], t["n"]),
        "selectivity": gap,
        "payoff_a": lambda t: payoff(t, ARM_A, "a"),
        "payoff_b": lambda t: payoff(t, ARM_B, "b"),
        "payoff_a_under_b": lambda t: payoff(t, ARM_B, "a"),
        "payoff_gain": lambda t: payoff(t, ARM_B, "b") - payoff(t, ARM_B, "a"),
    }
    size = (len(pair.stream), pair.streams)
    empty = "arm B declined none of arm A's answers" if point["kept"] else "arm B kept none of arm A's answers"
    found = {m: estimate(float(f(point)), f(drawn), *size, undefined=empty) for m, f in formulas.items()}
    if 0 < point["declined"] < FEWEST_DECLINED and found["selectivity"].value is not None:
        few = f"only {int(point['declined'])} declined"
        found["selectivity"] = found["selectivity"].noted(few)
    found["selectivity_fisher_p"] = Estimate(_fisher(point), None, None, *size, note="treats questions as independent")
    found["selectivity_p_le_0"] = _share_not_positive(gap(drawn), *size)
    return found


def _fisher(point: dict[str, np.ndarray]) -> float:
    right = [int(point["kept_right"]), int(point["declined_right"])]
    wrong = [int(point["kept"]) - right[0], int(point["declined"]) - right[1]]
    return float(fisher_exact([[right[0], wrong[0]], [right[1], wrong[1]]], alternative="greater").pvalue)


def _share_not_positive(gaps: np.ndarray, n: int, streams: int) -> Estimate:
    """Bootstrap counterpart of the Fisher p: (1 + redraws with gap <= 0) / (1 + redraws with a gap)."""
    valid = gaps[~np.isnan(gaps)]
    if streams < 2 or not len(valid):
        return Estimate(None, n=n, streams=streams, note="no gap to redraw")
    return Estimate(float((1 + (valid <= 0).sum()) / (1 + len(valid))), n=n, streams=streams)
