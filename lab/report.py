"""From systems to a report: ask what is not answered yet, score the saved tables, draw, write.

Without `split=`, runs answer generated questions about streams longer than they were trained on (lab/evaluation.py).
With it, any memory systems and runs answer a split's questions (lab/harness.py). Either way the answers are files, and
scoring is a function of them. A run's own evaluation lands in its `eval/`, a memory's in `outputs/memories/<name>`, a
comparison of several in `outputs/compare-...`:

    responses-<what>-<digest>.parquet    one row per question, beside the run or memory
    answers-<split>-<digest>.jsonl       of a split: every answer as it came, with the text of models that write one
    metrics.json, metrics.parquet        every number with its 95 % interval
    figures/*.png, *.svg                 the figures of the report
    report.html                          one self-contained page
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

import tasks
from backbones import lookup
from backbones.run import Run, find_runs
from scoring import read_tables, write_table
from scoring.comparisons import CellScore
from scoring.definitions import definition
from scoring.figures import save_figures
from scoring.output import save_metrics
from scoring.report import write_report
from scoring.subjects import Subject, subjects
from scoring.summary import Scores, Settings, score
from scoring.tables import estimates_of, show, show_interval
from scoring.wandb_log import log_scores
from tasks import SOLVERS
from tasks.splits import Split, SplitError
from vlms import MemoryFailure, MemorySystem, build

from .adapters import BackboneMemory, SolverMemory
from .config import UsageError, import_plugins
from .curves import save_curves
from .evaluation import Plan, Streams, backbone_system, evaluate, plan_for, references, trained_task, united
from .harness import ERRORS_IN_A_ROW, Selection, interview

CAPTION = "95 % interval over streams; below it recall / specificity"
ARMS_CAPTION = "arm A pays +3 / -1, arm B +1 / -4; of systems that were not told, the arms are thresholds on confidence"
SOLVERS_SHOWN = ("hist", "hist2", "set2")
"""Reference solvers printed beside every accuracy; all of them are in the table and the report."""


def device_for(cfg: DictConfig) -> torch.device:
    """The device of an evaluation.

    Raises:
        UsageError: unknown, or CUDA where there is none.
    """
    if cfg.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device={cfg.device}: choose auto, cpu or cuda")
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda, but torch sees no CUDA device; leave device out for the CPU")
    return torch.device("cuda" if torch.cuda.is_available() and cfg.device != "cpu" else "cpu")


def chosen_runs(cfg: DictConfig) -> list[Run]:
    """The run folders that the command names.

    Raises:
        UsageError: both of run= and runs=.
    """
    if cfg.run is not None and cfg.runs is not None:
        raise UsageError("run= names one run and runs= several: give one of them")
    if cfg.run is None and cfg.runs is None:
        return []
    runs = find_runs(str(cfg.runs)) if cfg.run is None else [Run(Path(cfg.run))]
    for run in runs:
        import_plugins(run.record().get("plugins", []))
        lookup(run.record()["model"]["name"])
    return runs


def report(cfg: DictConfig) -> Path:
    """Evaluate and score what `cfg` names.

    Returns:
        The folder of the report.

    Raises:
        UsageError: the command names nothing, or what cannot be asked together.
    """
    if cfg.errors not in ("raise", "abstain"):
        raise UsageError(f"errors={cfg.errors}: choose raise or abstain")
    runs = chosen_runs(cfg)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if cfg.split is not None:
        return evaluate_split(cfg, runs)
    if cfg.get("memory") is not None:  # a group without a choice is no key
        raise UsageError(
            "memory= answers the questions of a split: add split=FOLDER (`python -m tasks build` makes one)"
        )
    if not runs:
        raise UsageError(
            "name what to evaluate: run=outputs/<run> for one, 'runs=outputs/*' for several, or memory=... split=FOLDER"
        )
    return evaluate_runs(cfg, runs)


# -- generated questions for runs --------------------------------------------------------------------------------------


def answers_of(run: Run, plan: Plan, device: torch.device, source: Streams) -> Path:
    """The run's response table for a plan, completed if need be."""
    run.record()
    weights = hashlib.sha256(run.best.read_bytes()).hexdigest()[:8] if run.best.exists() else "none"
    path = run.evaluation / f"responses-{plan.digest}-{weights}.parquet"
    if not path.exists():
        evaluate([backbone_system(run, device)], plan, path, source)
    return path


def evaluate_runs(cfg: DictConfig, runs: Sequence[Run]) -> Path:
    """Ask runs generated questions; returns the folder of the report."""
    device, shared = device_for(cfg), Path(cfg.outputs) / ".evaluation"
    try:
        plans = [plan_for(cfg, run.record()["trained_length"], trained_task(run)) for run in runs]
    except ValueError as error:
        raise UsageError(str(error)) from error
    tables = [references(plan, shared, Streams(plan, shared, cfg.processes)) for plan in united(plans)]
    for run, plan in zip(runs, plans, strict=True):
        tables.append(answers_of(run, plan, device, Streams(plan, shared, cfg.processes)))
    scores = score(read_tables(tables), Settings(redraws=cfg.redraws))
    out = runs[0].evaluation if cfg.run else _compared([run.name for run in runs], cfg)
    return write_everything(cfg, out, scores)


# -- a split, for any memory system ------------------------------------------------------------------------------------


def evaluate_split(cfg: DictConfig, runs: Sequence[Run]) -> Path:
    """Ask a memory system, runs and the reference solvers the questions of a split.

    Returns:
        The folder of the report.

    Raises:
        UsageError: nothing to ask; the split or the memory cannot be used; questions got no answer.
    """
    try:
        split = tasks.splits.load(cfg.split)
        memory = chosen_memory(cfg)
        if memory is None and not runs:
            raise UsageError("name what to ask about the split: memory=... (or run=, runs=)")
        outputs, selection = Path(cfg.outputs), selection_of(cfg)
        where: dict[MemorySystem, Path] = {}
        if memory is not None:
            where[memory] = outputs / "memories" / _plain(memory.name)
        where |= {BackboneMemory(str(run.path), str(device_for(cfg))): run.evaluation for run in runs}
        named = [system.name for system in where]
        taken = [system.name for system in where if system.name in SOLVERS and not isinstance(system, SolverMemory)]
        if twice := sorted({*taken, *(name for name in named if named.count(name) > 1)}):
            raise UsageError(
                f"two systems are called {twice[0]!r}: rename a run's folder, or the memory (memory.name=)"
            )
        where |= {SolverMemory(n): outputs / ".evaluation" for n in SOLVERS if n not in named}
        tables = [answers_to_split(cfg, system, split, selection, folder) for system, folder in where.items()]
    except (MemoryFailure, SplitError) as error:
        raise UsageError(str(error)) from error
    scores = score(read_tables(tables), Settings(redraws=cfg.redraws, errors=cfg.errors))
    own = next(iter(where.values())) / split.name
    return write_everything(cfg, own if len(named) == 1 else _compared([split.name, *named], cfg), scores)


def chosen_memory(cfg: DictConfig) -> MemorySystem | None:
    """The memory system of `memory=...`; None without one.

    Raises:
        UsageError: a setting that it needs is not given.
    """
    if cfg.get("memory") is None:
        return None
    for name in sorted(OmegaConf.missing_keys(cfg.memory)):
        raise UsageError(f"memory={cfg.memory.get('kind', '')} needs {name}=...; configs/memory says what it is")
    settings: dict[str, Any] = OmegaConf.to_container(cfg.memory, resolve=True)
    kind, own = settings.pop("kind"), settings.pop("settings", None)
    return build(kind, **settings, **(own or {}))


def selection_of(cfg: DictConfig) -> Selection:
    """Which questions of a split the command asks for.

    Raises:
        UsageError: an unknown arm, or none.
    """
    arms = tuple(None if arm in ("none", None) else str(arm) for arm in cfg.arms)
    if not arms or set(arms) - {None, "A", "B"}:
        raise UsageError(f"arms={list(cfg.arms)}: choose from none (the plain prompt), A and B")

    def chosen(values: Any) -> tuple[Any, ...] | None:
        return None if values is None else tuple(values)

    return Selection(
        chosen(cfg.lengths), chosen(cfg.bands), chosen(cfg.query_sets), chosen(cfg.variants), cfg.streams, arms
    )


def answers_to_split(cfg: DictConfig, system: MemorySystem, split: Split, selection: Selection, folder: Path) -> Path:
    """The response table of a system's answers to a split, completed if need be.

    Raises:
        UsageError: some questions got no answer, and `errors` is not "abstain".
    """
    # Who accepts errors as abstentions may have questions that always fail: many in a row when only they are left.
    patience = None if cfg.errors == "abstain" else ERRORS_IN_A_ROW
    asked = interview(system, split, selection, folder, cfg.seed, patience)
    if asked.kept:
        print(f"{system.name}: {asked.kept} of {len(asked.records)} questions were answered before", file=sys.stderr)
    if asked.errors:
        text = (
            f"{len(asked.errors)} of {len(asked.records)} questions to {system.name} ended in an error, not in an "
            f"answer (the first: {asked.errors[0]['error']})"
        )
        if cfg.errors == "raise":
            raise UsageError(f"{text}. The same command asks them again; errors=abstain scores them as abstentions")
        print(f"{text}; counted as abstentions", file=sys.stderr)
    return write_table(
        asked.records, asked.path.with_name(asked.path.name.replace("answers-", "responses-")).with_suffix(".parquet")
    )


# -- scores to files ---------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    """A name as a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "memory"


def _compared(names: Sequence[str], cfg: DictConfig) -> Path:
    """Folder of a comparison."""
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:6]
    return Path(cfg.outputs) / f"compare-{len(names)}-{digest}"


def write_everything(cfg: DictConfig, out: Path, scores: Scores) -> Path:
    """Metrics, figures and report; prints the main tables and where the rest is."""
    out = Path(cfg.out) if cfg.out else out
    _, metrics = save_metrics(scores, out)
    for table in summaries(scores):
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    if cfg.report:
        save_figures(scores, out / "figures", tuple(cfg.figures))
        if cfg.split is not None:
            save_curves(scores, out / "figures", tuple(cfg.figures))
        print(f"report: {write_report(scores, out / 'report.html')}")
    if cfg.logger.wandb != "off":
        if not find_spec("wandb"):
            raise UsageError(f"logger.wandb={cfg.logger.wandb} needs W&B: pip install 'ecclab[wandb]'")
        ids = log_scores(
            scores, out, cfg.logger.project, cfg.logger.group or "evaluation", tuple(cfg.logger.tags), cfg.logger.wandb,
            report=out / "report.html" if cfg.report else None,
        )  # fmt: skip
        print(f"W&B runs: {', '.join(ids)} (offline ones lie in {out / 'wandb'}; `wandb sync` sends them)")
    print(f"metrics: {metrics}")
    return out


def summaries(scores: Scores) -> list[Table]:
    """A table per kind of question: accuracy of every system at every band and length, recall and specificity apart;
    then, for systems that were told about the payoff arms, what they made of it."""
    tables = [_accuracies(scores, subject) for subject in subjects(scores)]
    return [*tables, *(t for subject in subjects(scores) if (t := _arms(scores, subject)).row_count)]


def _accuracies(scores: Scores, subject: Subject) -> Table:
    cells = subject.cells(scores)
    columns = sorted({(c.band != scores.settings.base_band, c.band, c.length) for c in cells})
    table = Table(title=f"accuracy, {subject.title}", title_justify="left", caption=CAPTION)
    table.add_column("system")
    for _, band, length in columns:
        table.add_column(f"{band} entropy\nL = {length}", justify="right")
    found = {(c.system, c.band, c.length): c for c in cells}
    systems = list(dict.fromkeys(c.system for c in cells if not c.is_reference))
    shown = [s for s in ("coin", *SOLVERS_SHOWN) if s in {c.system for c in cells}]
    for system in (*systems, *shown):
        values = [found.get((system, band, length)) for _, band, length in columns]
        table.add_row(system, *(_cell(c) for c in values), style="dim" if system in shown else None)
    return table


ARM_COLUMNS = {
    "coverage_arm_a": "coverage\narm A",
    "coverage_arm_b": "coverage\narm B",
    "responsiveness": "respon-\nsiveness",
    "selectivity": "selectivity",
    "selectivity_fisher_p": "Fisher p",
    "payoff_a_under_b": "payoff of arm A's\nanswers under B",
    "payoff_b": "payoff\narm B",
}


def _arms(scores: Scores, subject: Subject) -> Table:
    """One row per system, band and length; empty where no system was told about an arm."""
    table = Table(title=f"payoff arms, {subject.title}", title_justify="left", caption=ARMS_CAPTION)
    for head in ("system", "band", "L", *ARM_COLUMNS.values()):
        table.add_column(head, justify="left" if head in ("system", "band") else "right")
    told = scores.at(**subject.where, arm="A")
    for cell in subject.cells(scores) if told else []:
        found = estimates_of(scores, cell)
        if cell.is_reference or found.get("coverage_arm_a") is None or found["coverage_arm_a"].value is None:
            continue
        values = []
        for metric in ARM_COLUMNS:
            e, unit = found[metric], definition(metric).unit
            values.append("–" if e.value is None else f"{show(e.value, unit)}\n{show_interval(e, unit)}".strip())
        table.add_row(cell.system, cell.band, str(cell.length), *values)
    return table


def _cell(cell: CellScore | None) -> str:
    if cell is None:
        return ""
    accuracy, recall, specificity = (cell.estimates[name, ""] for name in ("accuracy", "recall", "specificity"))
    interval = "" if accuracy.low is None else f" [{accuracy.low:.3f}, {accuracy.high:.3f}]"
    return f"{accuracy.value:.3f}{interval}\n{recall.value:.2f} / {specificity.value:.2f}"
