"""From runs to a report: evaluate what is not evaluated yet, score the saved tables, draw, write.

A run's own evaluation lands in its `eval/`, a comparison of several in `outputs/compare-...`:

    responses-<plan>-<weights>.parquet   one row per question, beside the run
    metrics.json, metrics.parquet        every number with its 95 % interval
    figures/*.png, *.svg                 the figures of the report
    report.html                          one self-contained page
"""

from __future__ import annotations

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from backbones import lookup
from backbones.run import Run, find_runs
from scoring import read_tables
from scoring.comparisons import CellScore
from scoring.figures import save_figures
from scoring.output import save_metrics
from scoring.report import write_report
from scoring.summary import Scores, Settings, score
from scoring.wandb_log import log_scores

from .config import UsageError, import_plugins
from .evaluation import Plan, Streams, backbone_system, evaluate, plan_for, references

CAPTION = "95 % interval over streams; below it recall / specificity"
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
        UsageError: neither or both of run= and runs=.
    """
    if (cfg.run is None) == (cfg.runs is None):
        raise UsageError("name what to evaluate: run=outputs/<run> for one, or 'runs=outputs/*' for several")
    runs = find_runs(str(cfg.runs)) if cfg.run is None else [Run(Path(cfg.run))]
    for run in runs:
        import_plugins(run.record().get("plugins", []))
        lookup(run.record()["model"]["name"])
    return runs


def answers_of(run: Run, plan: Plan, device: torch.device, source: Streams) -> Path:
    """The run's response table for a plan, completed if need be."""
    run.record()
    weights = hashlib.sha256(run.best.read_bytes()).hexdigest()[:8] if run.best.exists() else "none"
    path = run.evaluation / f"responses-{plan.digest}-{weights}.parquet"
    if not path.exists():
        evaluate([backbone_system(run, device)], plan, path, source)
    return path


def evaluate_runs(cfg: DictConfig) -> Path:
    """Evaluate and score what `cfg` names.

    Returns:
        The folder of the report.
    """
    device, runs = device_for(cfg), chosen_runs(cfg)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    shared = Path(cfg.outputs) / ".evaluation"
    tables, plans = [], {}
    for run in runs:
        try:
            plan = plan_for(cfg, run.record()["trained_length"])
        except ValueError as error:
            raise UsageError(str(error)) from error
        source = Streams(plan, shared, cfg.processes)
        plans[plan.digest] = references(plan, shared, source)
        tables.append(answers_of(run, plan, device, source))
    scores = score(read_tables([*tables, *plans.values()]), Settings(redraws=cfg.redraws))
    return write_everything(cfg, runs, scores)


def write_everything(cfg: DictConfig, runs: list[Run], scores: Scores) -> Path:
    """Metrics, figures and report; prints the main table and where the rest is."""
    if cfg.out:
        out = Path(cfg.out)
    elif cfg.run:
        out = runs[0].evaluation
    else:
        digest = hashlib.sha256(" ".join(run.name for run in runs).encode()).hexdigest()[:6]
        out = Path(cfg.outputs) / f"compare-{len(runs)}-{digest}"
    _, metrics = save_metrics(scores, out)
    for table in summaries(scores):
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    if cfg.report:
        save_figures(scores, out / "figures", tuple(cfg.figures))
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
    """A table per query set: accuracy of every system and band and length, recall and specificity apart."""
    order = {"uniform": 0, "near": 1, "order": 2}
    tables = []
    for query_set in sorted({q.query_set for q in scores.questions()}, key=lambda name: order.get(name, 3)):
        questions = [q for q in scores.questions() if q.query_set == query_set]
        table = Table(title=f"accuracy, {query_set} negatives", title_justify="left", caption=CAPTION)
        table.add_column("system")
        for q in questions:
            table.add_column(f"{q.band} entropy\nL = {q.L}", justify="right")
        found = {(c.system, c.band, c.length): c for c in scores.at(query_set=query_set)}
        systems = list(dict.fromkeys(c.system for c in scores.at(references=False)))
        for system in (*systems, *SOLVERS_SHOWN):
            cells = [found.get((system, q.band, q.L)) for q in questions]
            table.add_row(system, *(_cell(c) for c in cells), style="dim" if system in SOLVERS_SHOWN else None)
        tables.append(table)
    return tables


def _cell(cell: CellScore | None) -> str:
    if cell is None:
        return ""
    accuracy, recall, specificity = (cell.estimates[name, ""] for name in ("accuracy", "recall", "specificity"))
    interval = "" if accuracy.low is None else f" [{accuracy.low:.3f}, {accuracy.high:.3f}]"
    return f"{accuracy.value:.3f}{interval}\n{recall.value:.2f} / {specificity.value:.2f}"
