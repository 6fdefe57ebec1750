"""Committed results and the README's tables, both made from run folders by commands.

    python -m lab.results collect results/cpu outputs/gru outputs/mamba2 ...    run folders -> results/cpu/*.tsv
    python -m lab.results readme [--check]                                      results/cpu/*.tsv -> README.md

A number in the README therefore comes from a file in the repository, which names the code, the seed and the machine.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path

import polars as pl

from backbones.run import Run, replacing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "cpu"
SOLVERS = ("hist", "hist2", "set2")
PER_CELL = ("accuracy", "recall", "specificity", "aurc", "ece")


def learning(run: Run) -> pl.DataFrame:
    """Validation accuracy against time: one row per validation."""
    rows = pl.read_csv(run.path / "metrics.csv").filter(pl.col("name").str.contains(r"^(val/accuracy/L|time/)"))
    wide = rows.pivot("name", index="step", values="value", aggregate_function="last").sort("step")
    wide = wide.rename({name: name.rsplit("/", 1)[1] for name in wide.columns if "/" in name})
    return wide.select(pl.lit(run.name).alias("run"), pl.col("step") + 1, pl.exclude("step"))


def about(run: Run) -> dict[str, object]:
    """One row per run: what it was and what it took."""
    record = run.record()
    kept = ("preset", "seed", "code", "torch", "steps", "minutes", "cpu_minutes", "threads", "best_accuracy")
    model = record["model"]
    row = {"run": run.name, "backbone": model["name"], "width": model["width"]}
    return row | {key: record.get(key) for key in kept} | {"machine": platform.machine()}


def collect(folder: Path, runs: list[Run], metrics: Path) -> None:
    """Write runs.tsv, learning.tsv and metrics.tsv of some runs and their evaluation."""
    scores = pl.read_parquet(metrics).filter(pl.col("metric").is_in(PER_CELL) & (pl.col("slice") == ""))
    kept = [
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
    ]
    tables = {
        "runs": pl.DataFrame([about(run) for run in runs]),
        "learning": pl.concat([learning(run) for run in runs], how="diagonal"),
        "metrics": scores.select(kept).with_columns(pl.col("value", "low", "high").round(5)),
    }
    for name, table in tables.items():
        with replacing(folder / f"{name}.tsv") as temporary:
            table.write_csv(temporary, separator="\t")


def results_table(folder: Path) -> str:
    """Accuracy by query set, band and length, beside the reference solvers, as Markdown."""
    metrics = pl.read_csv(folder / "metrics.tsv", separator="\t")
    runs = pl.read_csv(folder / "runs.tsv", separator="\t")
    accuracy = metrics.filter(pl.col("metric") == "accuracy")
    cells = (
        accuracy.select("query_set", "band", "L")
        .unique()
        .sort(pl.col("query_set") != "uniform", "query_set", "band", "L")
    )
    cells = [c for c in cells.iter_rows() if c[0] in ("uniform", "order") and c[2] > cells["L"].min()]
    heads = [f"{query_set}, {band}, L={length}" for query_set, band, length in cells]
    lines = ["| backbone | CPU min | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
    names = [(r["run"], r["backbone"], f"{r['cpu_minutes'] or r['minutes']:.1f}") for r in runs.iter_rows(named=True)]
    for system, label, minutes in [*names, *((s, f"*{s}*", "") for s in SOLVERS)]:
        values = []
        for query_set, band, length in cells:
            row = accuracy.filter(
                (pl.col("system") == system) & (pl.col("query_set") == query_set)
                & (pl.col("band") == band) & (pl.col("L") == length)
            )  # fmt: skip
            values.append(f"{row['value'][0]:.3f} ±{(row['high'][0] - row['low'][0]) / 2:.3f}" if len(row) else "")
        lines.append(f"| {label} | {minutes} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def readme_text(text: str, folder: Path) -> str:
    """The README with what lies between its markers made again."""
    block = f"<!-- results -->\n{results_table(folder)}\n<!-- /results -->"
    return re.sub(r"<!-- results -->.*?<!-- /results -->", lambda _: block, text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="run folders -> committed tables")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("runs", nargs="+", type=Path)
    collecting.add_argument("--metrics", type=Path, required=True, help="metrics.parquet of their common evaluation")
    writing = commands.add_parser("readme", help="committed tables -> README.md")
    writing.add_argument("--check", action="store_true", help="change nothing; exit 1 when README.md is out of date")
    arguments = parser.parse_args()
    if arguments.command == "collect":
        collect(arguments.folder, [Run(path) for path in arguments.runs], arguments.metrics)
        return 0
    readme = ROOT / "README.md"
    text = readme.read_text()
    made = readme_text(text, RESULTS)
    if arguments.check:
        return int(made != text)
    with replacing(readme) as temporary:
        temporary.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
