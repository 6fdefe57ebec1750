"""What every number means, in one place: the report, the documentation and the command line all print this.

A name ending in `_*` stands for a family with a parameter, e.g. `coverage_at_accuracy_0.95`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes:
        unit: "share" (0 to 1), "difference" (of shares; shown in percentage points), "FLOPs", "points", "p", "yes/no".
        better: "higher", "lower", or "" where neither is better as such.
        group: heading in the report and the documentation.
    """

    name: str
    title: str
    unit: str
    better: str
    group: str
    text: str


DEFINITIONS = (
    Definition("accuracy", "accuracy", "share", "higher", "Capacity",
        "Right answers over questions asked. An abstention counts as wrong. Also by candidate length (slice)."),
    Definition("capacity", "capacity", "share", "higher", "Capacity",
        "Accuracy on the incompressible band (`max`) at one length."),
    Definition("coverage", "coverage", "share", "", "Capacity", "Questions answered over questions asked."),
    Definition("answered_accuracy", "accuracy when answering", "share", "higher", "Capacity",
        "Right answers over questions answered. Undefined when nothing was answered."),
    Definition("recall", "recall", "share", "higher", "Capacity",
        "Of the candidates that occurred, the share answered yes. Also by age of the latest match (slice)."),
    Definition("specificity", "specificity", "share", "higher", "Capacity",
        "Of the candidates that did not occur, the share answered no."),
    Definition("balanced_accuracy", "balanced accuracy", "share", "higher", "Capacity",
        "Mean of recall and specificity; abstentions are wrong in both."),
    Definition("yes_rate", "yes rate", "share", "", "Capacity", "Of the answers given, the share that are yes."),
    Definition("above_chance", "above chance", "yes/no", "higher", "Capacity",
        "Whether the accuracy is at least chance + 0.2 x (1 - chance): 60% of yes/no questions, 40% of four-way ones. "
        "Decided in whole numbers; exactly 60% is above."),
    Definition("above_chance_p", "above chance, binomial p", "p", "lower", "Capacity",
        "Exact one-sided binomial p of at least as many right answers by guessing. For information: it takes questions "
        "of one stream for independent, which they are not."),
    Definition("order_probe", "order probe", "difference", "higher", "Capacity",
        "On the `order` query set: the share of yes on windows that occurred minus the share of yes on such windows "
        "with their symbols permuted. Near 0, the memory holds which symbols came but not in which order."),
    Definition("accuracy_over_reference", "accuracy over hist", "difference", "higher", "Capacity",
        "Accuracy minus that of the reference solver (symbol counts by default) on the same questions."),
    Definition("learned", "learned", "yes/no", "higher", "Capacity",
        "Whether accuracy over the reference is at least the margin (0.05 by default) and its interval excludes 0."),
    Definition("flops", "FLOPs per answer", "FLOPs", "lower", "Efficiency",
        "Mean over questions of write / q + read, with q questions per stream (1 by default, as in the paper)."),
    Definition("flops_to_accuracy_*", "FLOPs to accuracy", "FLOPs", "lower", "Efficiency",
        "Smallest x such that the right answers costing at most x make up the target share of all questions. For a "
        "group of systems, that of its cheapest member. The interval is open above when redraws miss the target."),
    Definition("accuracy_within_*", "accuracy within a budget", "share", "higher", "Efficiency",
        "Right answers costing at most the budget, over questions asked. For a group, that of its best member. "
        "Undefined when not even one answer fits."),
    Definition("compression", "compression", "difference", "higher", "Compression",
        "Accuracy on the band minus accuracy on `max`, same system and length. Noted as ceiling when both are at least "
        "95%. Uniform negatives are easy on regular streams, so read it beside the next number."),
    Definition("compression_over_reference", "compression over hist", "difference", "higher", "Compression",
        "Compression minus that of the reference solver: what is left once easier questions are allowed for."),
    Definition("flops_saved", "FLOPs saved", "FLOPs", "higher", "Compression",
        "Over a group of systems: cost on `max` minus cost on the band of the cheapest member reaching the highest "
        "accuracy that the group reaches on both. That accuracy is in the note."),
    Definition("aurc", "AURC", "share", "lower", "Calibration",
        "Area under the risk-coverage curve: mean over answers of the error rate among the answers at least as "
        "confident. Equal confidences enter together. Abstentions do not enter."),
    Definition("coverage_at_accuracy_*", "coverage at accuracy", "share", "higher", "Calibration",
        "Largest coverage at which some confidence threshold gives that accuracy among the answers; 0 if none does."),
    Definition("risk_at_coverage_*", "risk at coverage", "share", "lower", "Calibration",
        "Error rate at the highest threshold that covers at least that share of the questions. Undefined beyond the "
        "coverage that the system offers."),
    Definition("ece", "ECE", "share", "lower", "Calibration",
        "Expected calibration error: over 15 equal bins of the confidence, the mean distance between mean confidence "
        "and accuracy, weighted by answers."),
    Definition("brier", "Brier score", "share", "lower", "Calibration",
        "Mean of (p(yes) - label)^2 over all questions."),
    Definition("coverage_arm_a", "coverage, arm A", "share", "", "Calibration",
        "Coverage when a right answer pays 3 and a wrong one costs 1: told so, or at confidence >= 0.25."),
    Definition("coverage_arm_b", "coverage, arm B", "share", "", "Calibration",
        "Coverage when a right answer pays 1 and a wrong one costs 4: told so, or at confidence >= 0.80."),
    Definition("responsiveness", "responsiveness", "difference", "", "Calibration",
        "Coverage under arm A minus coverage under arm B; 0 for a system that ignores the cost of errors. Negative "
        "values are kept. Neither large nor small is good as such: read it beside selectivity and payoff."),
    Definition("selectivity", "selectivity", "difference", "higher", "Calibration",
        "Arm A's accuracy on the questions that arm B kept minus its accuracy on those that arm B dropped. "
        "4,000 redraws. Noted when fewer than five were dropped."),
    Definition("selectivity_fisher_p", "selectivity, Fisher p", "p", "lower", "Calibration",
        "One-sided Fisher exact p of so large a gap if arm B dropped questions blindly; takes them for independent."),
    Definition("selectivity_p_le_0", "selectivity, bootstrap p", "p", "lower", "Calibration",
        "(1 + redraws whose gap is not positive) / (1 + redraws that have a gap); allows for streams."),
    Definition("payoff_a", "payoff, arm A", "points", "higher", "Calibration",
        "Mean points per question of arm A's answers under arm A's payoff."),
    Definition("payoff_b", "payoff, arm B", "points", "higher", "Calibration",
        "Mean points per question of arm B's answers under arm B's payoff. Below 0, silence would have paid more."),
    Definition("payoff_a_under_b", "payoff of arm A's answers under arm B", "points", "higher", "Calibration",
        "Mean points per question of arm A's answers had they been paid as in arm B."),
    Definition("payoff_gain", "payoff gain", "points", "higher", "Calibration",
        "payoff_b minus payoff_a_under_b: what minding the cost of errors earns."),
    Definition("abstain_*", "abstentions by kind", "share", "", "Abstentions",
        "Share of questions without an answer because the system declined (explicit), broke the format (format), ran "
        "out of tokens (overflow), or failed (error; only with errors='abstain')."),
)  # fmt: skip


def definition(metric: str) -> Definition:
    """The definition of a metric's name.

    Raises:
        KeyError: there is none.
    """
    for entry in DEFINITIONS:
        if fnmatchcase(metric, entry.name):
            return entry
    raise KeyError(f"no metric {metric!r}; known: {', '.join(d.name for d in DEFINITIONS)}")


def title(metric: str) -> str:
    """Readable name, with the parameter of a family: "coverage at accuracy 0.95"."""
    entry = definition(metric)
    if not entry.name.endswith("*"):
        return entry.title
    rest = metric[len(entry.name) - 1 :].replace("_mflops", " MFLOPs")
    return f"{entry.title} {rest}"


def markdown() -> str:
    """All definitions as Markdown tables, one per group; part of docs/scoring.md."""
    parts = []
    for group in dict.fromkeys(d.group for d in DEFINITIONS):
        parts += [f"### {group}", "", "| name | unit | better | meaning |", "|---|---|---|---|"]
        parts += [f"| `{d.name}` | {d.unit} | {d.better or '–'} | {d.text} |" for d in DEFINITIONS if d.group == group]
        parts += [""]
    return "\n".join(parts)
