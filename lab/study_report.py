"""The results of a study: tables, findings, figures and the comparison report, all from saved answers.

    <study>/tables/runs.tsv       every training: what it was, what it took, whether it was chosen
    <study>/tables/learning.tsv   validation accuracy against time
    <study>/tables/metrics.tsv    every number of every system and memory with its interval
    <study>/tables/state.tsv      bits of state at each length, and the accuracy that they allow at most
    <study>/tables/findings.tsv   which of the paper's findings appear
    <study>/figures/*.png         those of the report, and lab/figures.py's
    <study>/report.html           one self-contained page

`python -m lab.results` commits these tables and renders them into the README and docs/study.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.compute as pc
import torch

from backbones.run import Run, replacing
from scoring import read_tables
from scoring.figures import save_figures
from scoring.output import metrics_frame, save_metrics
from scoring.report import write_report as write_page
from scoring.summary import Scores, Settings, score
from tasks.limit import best_accuracy
from tasks.memories import MEMORIES
from tasks.solvers import SOLVERS, solver

from .figures import save_overview
from .findings import Evidence, findings

if TYPE_CHECKING:
    from .study import Study

METRICS = (
    "accuracy", "recall", "specificity", "accuracy_over_reference", "order_probe", "flops", "compression",
    "compression_over_reference", "aurc", "ece", "coverage_at_accuracy_0.95", "risk_at_coverage_0.50",
)  # fmt: skip
"""What the committed table keeps of each cell."""
COLUMNS = (
    "system",
    "architecture",
    "width",
    "query_set",
    "band",
    "L",
    "metric",
    "value",
    "low",
    "high",
    "n",
    "streams",
)


def write_report(study: Study, tables: dict[str, Path]) -> None:
    """Score the answers of a study's systems and write everything.

    Args:
        tables: response tables by system.
    """
    say, settings = study.say, Settings(redraws=study.config.redraws)
    chosen = {system: run for system, (_, run) in study.chosen().items() if system in tables}
    lengths = {run.record()["trained_length"] for run in chosen.values()}
    say(f"scoring {len(chosen)} systems")
    unlearned = {study.plan(run).digest: study.memories(run) for run in chosen.values()}
    references, bounded = (list(paths) for paths in zip(*unlearned.values(), strict=True))
    scores = scored([*tables.values(), *references], settings)
    say(f"scoring {len(MEMORIES)} memories with nothing to learn")
    unlearned_scores = scored([*bounded, *references], settings)

    folder = study.path / "tables"
    metrics = pl.concat(
        [kept(scores, [*(r.name for r in chosen.values()), *SOLVERS]), kept(unlearned_scores, MEMORIES)]
    )
    save(folder / "runs.tsv", pl.DataFrame(run_rows(study, chosen), infer_schema_length=None))
    save(folder / "learning.tsv", pl.concat([learning(run) for run in chosen.values()], how="diagonal"))
    save(folder / "metrics.tsv", metrics)
    save(folder / "state.tsv", states(chosen.values(), sorted(metrics["L"].unique())))
    if len(lengths) == 1:
        rows = findings(Evidence(scores, lengths.pop(), tuple(run.name for run in chosen.values())))
        save(folder / "findings.tsv", pl.DataFrame(rows, infer_schema_length=None))
    else:
        say(f"no findings: the systems were trained to different lengths, {sorted(lengths)}")
    save_metrics(scores, study.path)
    say("drawing")
    figures = study.path / "figures"
    save_overview(folder, figures)
    save_figures(scores, figures, ("png",))
    page = write_page(scores, study.path / "report.html", title=f"Study: {study.name}")
    say(f"tables: {folder}, figures: {figures}")
    say(f"report: {page}")


def scored(paths: Iterable[Path], settings: Settings) -> Scores:
    """As scoring all tables at once, a query set at a time: no number joins two of them, and memory is bounded."""
    table = read_tables(paths)
    sets = sorted(table["query_set"].unique().to_pylist())
    parts = [score(table.filter(pc.equal(table["query_set"], name)), settings) for name in sets]
    cells, joint = ([x for part in parts for x in getattr(part, name)] for name in ("cells", "joint"))
    return Scores(tuple(cells), tuple(joint), settings, parts[0].provenance | {"rows": table.num_rows})


def kept(scores: Scores, systems: Iterable[str]) -> pl.DataFrame:
    """The rows of the committed table."""
    frame = metrics_frame(scores).filter(
        pl.col("system").is_in(list(systems)) & pl.col("metric").is_in(METRICS) & (pl.col("slice") == "")
        & pl.col("L").is_not_null() & pl.col("arm").is_null()
    )  # fmt: skip
    return frame.select(COLUMNS).sort("system", "query_set", "band", "L", "metric")


def run_rows(study: Study, chosen: dict[str, Run]) -> list[dict[str, object]]:
    """One row per finished training: what it was and what it took."""
    rows, names = [], {run.name for run in chosen.values()}
    for training in study.trainings:
        run = training.find(study.outputs)
        if not run.record_file.exists() or run.record()["status"] != "finished":
            continue
        record = run.record()
        row = {"system": training.system, "run": run.name, "backbone": record["model"]["name"]}
        row |= {"width": record["model"]["width"], "settings": " ".join(training.overrides[1:])}
        row |= {"parameters": sum(p.numel() for p in run.load_model().parameters())}
        row |= {key: record.get(key) for key in ("lr", "seed", "code", "torch", "steps", "minutes", "cpu_minutes")}
        row |= {"lr": training.cfg.lr, "threads": record.get("threads"), "best_accuracy": record["best_accuracy"]}
        rows.append(row | {"chosen": run.name in names, "machine": machine()})
    return rows


def machine() -> str:
    """Processor and cores, e.g. "x86_64, 2 cores"."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def learning(run: Run) -> pl.DataFrame:
    """Validation accuracy against time: one row per validation."""
    rows = pl.read_csv(run.path / "metrics.csv").filter(pl.col("name").str.contains(r"^(val/accuracy/L|time/)"))
    wide = rows.pivot("name", index="step", values="value", aggregate_function="last").sort("step")
    wide = wide.rename({name: name.rsplit("/", 1)[1] for name in wide.columns if "/" in name})
    return wide.select(pl.lit(run.name).alias("run"), pl.col("step") + 1, pl.exclude("step"))


def states(runs: Iterable[Run], lengths: Iterable[int]) -> pl.DataFrame:
    """Bits of state after a stream of each length, and the accuracy on noise that no memory of so many bits passes."""
    rows = []
    for run in runs:
        model = run.load_model()
        for length in lengths:
            with torch.inference_mode():
                bits = 8 * model.write(torch.zeros((1, length), dtype=torch.int64)).nbytes
            rows.append((run.name, length, bits))
    rows += [(name, length, solver(name).state_bits(length)) for name in (*SOLVERS, *MEMORIES) for length in lengths]
    bounds = [best_accuracy(bits, length) for _, length, bits in rows]
    names, sizes, bits = zip(*rows, strict=True)
    return pl.DataFrame({"system": names, "L": sizes, "state_bits": bits, "limit": bounds})


def save(path: Path, table: pl.DataFrame) -> None:
    """Write a table as TSV, numbers to five places, or to nine significant digits where they are large."""
    floats = [name for name, kind in table.schema.items() if kind == pl.Float64]
    with replacing(path) as temporary:
        table.with_columns(pl.col(floats).round(5)).write_csv(temporary, separator="\t")
