"""Metrics that are functions of sums: accuracy and its parts, answer bias, abstentions, Brier score, ECE, payoffs.

Each cell is reduced once to sums per stream; a metric is then one line over totals, the same line for the value and for
all bootstrap redraws. `docs/scoring.md` and `definitions.py` say in words what each name means.

Letters: n questions, S streams, R redraws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from scoring.cells import Cell
from scoring.statistics import Estimate, Redraws, estimate, ratio

ECE_BINS = 15
Totals = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Arm:
    """A payoff: points for a right and for a wrong answer; abstaining earns 0 (paper, B.8)."""

    name: str
    reward: float
    penalty: float

    @property
    def threshold(self) -> float:
        """Confidence at which answering breaks even, lambda / (1 + lambda) with lambda = penalty / reward."""
        return self.penalty / (self.reward + self.penalty)

    def payoff(self, correct: np.ndarray, answered: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Mean points per question asked."""
        return ratio(self.reward * correct - self.penalty * (answered - correct), asked)


ARM_A = Arm("A", reward=3, penalty=1)
ARM_B = Arm("B", reward=1, penalty=4)

YES_NO: dict[str, Callable[[Totals], np.ndarray]] = {
    "recall": lambda t: ratio(t["correct_yes"], t["yes"]),
    "specificity": lambda t: ratio(t["correct_no"], t["no"]),
    "balanced_accuracy": lambda t: (ratio(t["correct_yes"], t["yes"]) + ratio(t["correct_no"], t["no"])) / 2,
    "yes_rate": lambda t: ratio(t["answered_yes"], t["answered"]),
    "order_probe": lambda t: ratio(t["correct_yes"], t["yes"]) - ratio(t["yes_to_no"], t["no"]),
}
UNDEFINED = {
    "answered_accuracy": "no answered questions",
    "recall": "no question whose answer is yes",
    "specificity": "no question whose answer is no",
    "balanced_accuracy": "one class only",
    "yes_rate": "no answered questions",
    "order_probe": "one class only",
}


def count_metrics(cell: Cell, redraws: Redraws) -> tuple[dict[tuple[str, str], Estimate], np.ndarray]:
    """Every metric of a cell that needs sums only.

    Returns:
        estimates: by (metric, slice); the slice is "" for the whole cell, else e.g. "candidate_length=4" or "age=8-15".
        accuracy: [R], the redraws of the accuracy, for comparisons between cells.
    """
    columns = _columns(cell)
    sums = cell.sums(*columns.values())
    point = dict(zip(columns, sums.sum(axis=0), strict=True))
    drawn = dict(zip(columns, redraws.totals(sums).T, strict=True))
    found: dict[tuple[str, str], Estimate] = {}

    def add(name: str, of: Callable[[Totals], np.ndarray], slice_: str = "", n: float | None = None) -> None:
        asked = cell.n if n is None else int(n)
        undefined = UNDEFINED.get(name, "undefined")
        found[name, slice_] = estimate(float(of(point)), of(drawn), asked, cell.streams, undefined)

    add("accuracy", lambda t: ratio(t["correct"], t["asked"]))
    add("coverage", lambda t: ratio(t["answered"], t["asked"]))
    add("answered_accuracy", lambda t: ratio(t["correct"], t["answered"]))
    add("above_chance", lambda t: _above_chance(t["correct"], t["asked"], cell.options))
    for kind in ("explicit", "format", "overflow", "error"):
        if point[f"abstain_{kind}"]:
            add(f"abstain_{kind}", lambda t, kind=kind: ratio(t[f"abstain_{kind}"], t["asked"]))
    found["above_chance_p", ""] = Estimate(
        float(binomtest(int(point["correct"]), cell.n, cell.chance, alternative="greater").pvalue),
        n=cell.n,
        streams=cell.streams,
        note="treats questions as independent",
    )
    for name, of in YES_NO.items():
        if name == "order_probe" and cell.key.query_set != "order":
            continue
        if cell.options == 2:
            add(name, of)
        else:
            found[name, ""] = Estimate(None, n=cell.n, streams=cell.streams, note="not a yes/no question")
    for slice_ in (c.removeprefix("asked ") for c in columns if c.startswith("asked ")):
        name = "recall" if slice_.startswith("age") else "accuracy"
        add(name, lambda t, s=slice_: ratio(t[f"correct {s}"], t[f"asked {s}"]), slice_, point[f"asked {slice_}"])
    found |= _probability_scores(cell, point, drawn)
    return found, ratio(drawn["correct"], drawn["asked"])


def _columns(cell: Cell) -> dict[str, np.ndarray]:
    """The per-question columns whose sums the metrics need, by name."""
    columns = {"asked": np.ones(cell.n), "answered": cell.answered, "correct": cell.correct}
    for kind in ("explicit", "format", "overflow", "error"):
        columns[f"abstain_{kind}"] = cell.abstain_kind == kind
    if cell.options == 2:
        yes = cell.label == 1
        columns |= {"yes": yes, "no": ~yes, "correct_yes": cell.correct & yes, "correct_no": cell.correct & ~yes}
        columns |= {"answered_yes": cell.answer == 1, "yes_to_no": (cell.answer == 1) & ~yes}
    for name, members in {**_by_candidate_length(cell), **_by_age(cell)}.items():
        columns |= {f"asked {name}": members, f"correct {name}": cell.correct & members}
    if cell.p_yes is not None:
        columns["brier"] = (cell.p_yes - cell.label) ** 2
    if cell.confidence is not None:
        confidence = np.where(cell.answered, cell.confidence, 0.0)
        bins = _bins(confidence)
        for b in np.unique(bins[cell.answered]):
            columns[f"over {b}"] = np.where(cell.answered & (bins == b), confidence - cell.correct, 0.0)
    return columns


def _above_chance(correct: np.ndarray, asked: np.ndarray, options: int) -> np.ndarray:
    """At least a fifth of the way from chance to perfect, in whole numbers: 60% of yes/no, 40% of four-way."""
    return np.asarray(5 * options * correct >= (options + 4) * asked, float)


def _by_candidate_length(cell: Cell) -> dict[str, np.ndarray]:
    if cell.candidate_length is None:
        return {}
    return {f"candidate_length={v}": cell.candidate_length == v for v in np.unique(cell.candidate_length)}


def _by_age(cell: Cell) -> dict[str, np.ndarray]:
    """Positives by age of the latest match: 0, then doubling bins 1, 2-3, 4-7, ..."""
    if cell.age is None or cell.options != 2:
        return {}
    positive = cell.label == 1
    doubling = np.where(cell.age > 0, np.floor(np.log2(np.maximum(cell.age, 1))) + 1, 0).astype(int)
    names = {b: str(b) if b < 2 else f"{2 ** (b - 1)}-{2**b - 1}" for b in np.unique(doubling[positive])}
    return {f"age={name}": positive & (doubling == b) for b, name in names.items()}


def _bins(confidence: np.ndarray) -> np.ndarray:
    """Index of the equal-width bin (lower, upper] of each confidence, as scikit-learn's calibration_curve has it."""
    return np.searchsorted(np.linspace(0, 1, ECE_BINS + 1)[1:-1], confidence)


def _probability_scores(cell: Cell, point: Totals, drawn: Totals) -> dict[tuple[str, str], Estimate]:
    """Brier score of p(yes) and calibration error of the confidence: values by scikit-learn, redraws by sums."""
    size = (cell.n, cell.streams)
    brier = Estimate(None, None, None, *size, note="no probabilities p_yes given")
    if cell.p_yes is not None:
        value = brier_score_loss(cell.label, cell.p_yes, pos_label=1)
        brier = estimate(value, ratio(drawn["brier"], drawn["asked"]), *size)
    ece = Estimate(None, None, None, *size, note="no confidences given")
    if cell.confidence is not None:
        ece = Estimate(None, None, None, *size, note="no answered questions")
        if cell.answered.any():
            over = sum(np.abs(v) for name, v in drawn.items() if name.startswith("over "))
            ece = estimate(_ece(cell), ratio(over, drawn["answered"]), *size)
    return {("brier", ""): brier, ("ece", ""): ece}


def _ece(cell: Cell) -> float:
    confidence, correct = cell.confidence[cell.answered], cell.correct[cell.answered]
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=ECE_BINS, strategy="uniform")
    members = np.bincount(_bins(confidence), minlength=ECE_BINS)
    return float(np.average(np.abs(accuracy - mean_confidence), weights=members[members > 0]))
