"""Score response tables from the command line.

    python -m scoring report TABLES... --out DIR     report.html, figures, metrics.json, metrics.parquet
    python -m scoring metrics TABLES... [--json | --tsv]
    python -m scoring frontier TABLES... [--band low] [--length 128] [--budget 1750 ...]
    python -m scoring schema | definitions           what a table holds, what each number means

A table is a .parquet, .csv or .jsonl file, or a folder of them. Exit code 2 and one line for bad input.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from scoring.definitions import DEFINITIONS, definition, markdown
from scoring.frontier import PAPER_BUDGETS
from scoring.output import metrics_json, save_metrics
from scoring.statistics import Estimate
from scoring.storage import read_tables
from scoring.subjects import distinct_budgets, mflops, subjects
from scoring.summary import ROW_COLUMNS, Scores, Settings, frontier_of, score
from scoring.table import COLUMNS
from scoring.tables import show, show_interval


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def report(options: argparse.Namespace) -> int:
    """Write the report, the figures and the metrics of some tables."""
    from scoring.figures import save_figures
    from scoring.report import write_report

    scores, out = _scores(options), Path(options.out)
    save_metrics(scores, out)
    page = write_report(scores, out / "report.html", options.title)
    if options.figures:
        save_figures(scores, out / "figures", options.figures)
    if options.wandb != "off":
        from scoring.wandb_log import log_scores

        log_scores(
            scores, out, project=options.project, group=options.group or out.name, mode=options.wandb, report=page
        )
    print(page)
    return 0


def metrics(options: argparse.Namespace) -> int:
    """Print the metrics: for people, or every row as JSON or tab-separated values."""
    scores = _scores(options)
    if options.json:
        print(metrics_json(scores))
    elif options.tsv:
        writer = csv.DictWriter(sys.stdout, ROW_COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(scores.rows())
    else:
        _print_metrics(scores)
    return 0


def frontier(options: argparse.Namespace) -> int:
    """Print who holds the coverage-accuracy frontier, per question set, band, length and budget."""
    scores = _scores(options)
    found = False
    for subject in subjects(scores):
        cells = [c for c in subject.cells(scores) if not c.is_reference and c.curve is not None]
        for band, length in sorted({(c.band, c.length) for c in cells}):
            if options.band not in (None, band) or options.length not in (None, length):
                continue
            found = True
            shown = [c for c in cells if c.band == band and c.length == length]
            for budget in distinct_budgets([c.flops for c in shown], scores.settings.budgets):
                front = frontier_of(shown, budget)
                limit = "no budget" if budget is None else f"at most {mflops(budget)}"
                print(f"{subject.title}, {band}, L={length}, {limit}: {len(front.admitted)} of {len(shown)} systems")
                for system, support in sorted(front.support.items(), key=lambda x: (-x[1], x[0])):
                    held = [p for p in front.points if system in p.systems]
                    if held:
                        span = f"coverage {held[-1].coverage:.3f} to {held[0].coverage:.3f}"
                        print(f"  {system}: {span}, on the frontier in {100 * support:.0f}% of redraws")
    if not found:
        raise ValueError("no answers at this band and length; `metrics` lists what the table holds")
    return 0


def schema(options: argparse.Namespace) -> int:
    """Print the columns of a response table."""
    for column in COLUMNS:
        need = (
            "required" if column.required else ("optional" if column.default is None else f"default {column.default}")
        )
        print(f"{column.name:17} {str(column.dtype.__name__).lower():8} {need:20} {column.meaning}")
    return 0


def definitions(options: argparse.Namespace) -> int:
    """Print what each number means."""
    if options.markdown:
        print(markdown())
        return 0
    for entry in DEFINITIONS:
        print(f"{entry.name}  ({entry.unit}{', ' + entry.better + ' is better' if entry.better else ''})")
        print(textwrap.fill(entry.text, 100, initial_indent="    ", subsequent_indent="    "))
    return 0


def _scores(options: argparse.Namespace) -> Scores:
    settings = Settings(
        redraws=options.redraws,
        budgets=tuple(b * 1e6 for b in options.budget) if options.budget else PAPER_BUDGETS,
        base_band=options.base_band,
        queries=options.queries,
        reference=options.reference,
        margin=options.margin,
        errors=options.errors,
    )
    return score(read_tables(options.tables), settings)


def _print_metrics(scores: Scores) -> None:
    """Whole-cell metrics, one block per system and kind of question."""
    heading = None
    for row in scores.rows():
        if row["slice"]:
            continue
        length = "all lengths" if row["L"] is None else f"L={row['L']}"
        who = (
            row["system"] or f"all of {row['architecture']}" if row["system"] or row["architecture"] else "all systems"
        )
        where = (
            who,
            row["task"],
            row["split"],
            row["query_set"],
            row["band"],
            length,
            row["arm"] and f"arm {row['arm']}",
        )
        if where != heading:
            print(("" if heading is None else "\n") + "  ".join(x for x in where if x))
            heading = where
        unit = definition(row["metric"]).unit
        if row["value"] is None:
            text = f"– ({row['note']})"
        else:
            interval = show_interval(Estimate(row["value"], row["low"], row["high"]), unit)
            text = f"{show(row['value'], unit):>14}  {interval}"
            text += f"  ({row['note']})" if row["note"] else ""
        print(f"  {row['metric']:32} {text.rstrip()}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scoring", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("tables", nargs="+", metavar="TABLE", help=".parquet, .csv, .jsonl, or a folder of them")
    common.add_argument("--redraws", type=int, default=1000, help="bootstrap redraws of streams (default 1000)")
    common.add_argument(
        "--budget", type=float, nargs="+", metavar="MFLOPS", help="FLOPs budgets per answer (default: the paper's)"
    )
    common.add_argument("--queries", type=int, default=1, help="questions per stream that share a write (default 1)")
    common.add_argument("--base-band", default="max", help="the incompressible band (default max)")
    common.add_argument("--reference", default="hist", help="architecture of the reference solver (default hist)")
    common.add_argument("--margin", type=float, default=0.05, help="accuracy above it that counts as learned (0.05)")
    common.add_argument(
        "--errors", choices=("raise", "abstain"), default="raise", help="questions that ended in an error"
    )

    command = commands.add_parser("report", parents=[common], help="write report.html, figures and metrics")
    command.add_argument("--out", required=True, metavar="DIR")
    command.add_argument("--title", default="How good is this memory?")
    command.add_argument("--figures", nargs="*", choices=("png", "svg", "pdf"), default=["png", "svg"])
    command.add_argument("--wandb", choices=("off", "auto", "online", "offline"), default="off")
    command.add_argument("--project", default="ecclab", help="W&B project")
    command.add_argument("--group", help="W&B group (default: the name of DIR)")
    command.set_defaults(run=report)

    command = commands.add_parser("metrics", parents=[common], help="print the metrics")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every row, with provenance")
    form.add_argument("--tsv", action="store_true", help="every row, tab-separated")
    command.set_defaults(run=metrics)

    command = commands.add_parser("frontier", parents=[common], help="print who holds the frontiers")
    command.add_argument("--band")
    command.add_argument("--length", type=int)
    command.set_defaults(run=frontier)
    commands.add_parser("schema", help="print the columns of a response table").set_defaults(run=schema)
    command = commands.add_parser("definitions", help="print what each number means")
    command.add_argument("--markdown", action="store_true", help="as the tables of docs/scoring.md")
    command.set_defaults(run=definitions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
