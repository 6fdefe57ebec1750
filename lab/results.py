"""Committed results and the pages that show them, both made by commands.

    python -m lab.results collect results/cpu outputs/laptop      a study's tables and main figures -> results/cpu
    python -m lab.results readme [--check]                        results/cpu -> README.md and docs/study.md
    python -m lab.results figures                                 results/cpu/*.tsv -> results/cpu/*.png

A number in a page therefore comes from a file in the repository, which names the code, the seed and the machine. A page
says where a table goes by a pair of comments, `<!-- ecc -->` and `<!-- /ecc -->`; `BLOCKS` lists them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import polars as pl

from backbones.run import replacing
from tasks.memories import MEMORIES
from tasks.solvers import SOLVERS

from .figures import is_unlearned, labels, read, save_overview, value_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "cpu"
PAGES = (ROOT / "README.md", ROOT / "docs" / "study.md")
FIGURES = ("coverage_accuracy-uniform", "frontier-uniform-L*", "cost_accuracy-uniform-L*")
"""Of the report's figures, those that are committed beside the overview."""
SHOWN = ("hist", "hist2", "set2")


def collect(folder: Path, study: Path) -> None:
    """Copy the tables and main figures of a study.

    Raises:
        FileNotFoundError: the study has no tables yet.
    """
    if not (study / "tables" / "metrics.tsv").exists():
        raise FileNotFoundError(f"{study} has no tables: run `python -m lab.study experiment=...` first")
    folder.mkdir(parents=True, exist_ok=True)
    figures = [path for pattern in FIGURES for path in sorted((study / "figures").glob(f"{pattern}.png"))]
    for path in [*(study / "tables").glob("*.tsv"), *figures]:
        name = path.name.replace("-uniform", "")
        with replacing(folder / name) as temporary:
            shutil.copyfile(path, temporary)
    save_overview(folder, folder)


# ---- tables as Markdown ----------------------------------------------------------------------------------------------
def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def share(found: tuple | None, signed: bool = False) -> str:
    """A share with its interval, e.g. "0.845 [0.829, 0.861]"."""
    if found is None:
        return ""
    sign = "+" if signed else ""
    value, low, high = (f"{x:{sign}.3f}" for x in found)
    return value if low == high else f"{value} [{low}, {high}]"


def systems_of(metrics: pl.DataFrame, shown: Iterable[str]) -> list[tuple[str, str]]:
    """(system, label): learned ones as they come, then the given memories with nothing to learn."""
    names = labels(metrics)
    learned = sorted((names[s].lower(), s) for s in names if not is_unlearned(s))
    return [(s, names[s]) for _, s in learned] + [(s, f"*{names[s]}*") for s in shown if s in names]


def longer(metrics: pl.DataFrame) -> list[int]:
    """The lengths beyond the longest that training showed."""
    lengths = sorted(metrics["L"].unique())
    return lengths[1:] or lengths


def ecc_block(folder: Path, shown: Iterable[str] = (*SOLVERS[1:], *MEMORIES)) -> str:
    """Capacity, efficiency, compression and calibration at twice the training length.

    Args:
        folder: of the tables.
        shown: memories with nothing to learn below the backbones.
    """
    metrics = read(folder, "metrics")
    length = longer(metrics)[0]
    columns = {
        "capacity": value_of(metrics, "accuracy", "uniform", "max", length),
        "MFLOPs per answer": value_of(metrics, "flops", "uniform", "max", length),
        "compression": value_of(metrics, "compression", "uniform", "low", length),
        "beyond hist": value_of(metrics, "compression_over_reference", "uniform", "low", length),
        "AURC, max": value_of(metrics, "aurc", "uniform", "max", length),
        "ECE, max": value_of(metrics, "ece", "uniform", "max", length),
        "coverage at 95 %, max": value_of(metrics, "coverage_at_accuracy_0.95", "uniform", "max", length),
    }
    rows = []
    for system, label in systems_of(metrics, shown):
        row = [label]
        for head, found in columns.items():
            if head == "MFLOPs per answer":
                row.append(f"{found[system][0] / 1e6:,.0f}" if system in found else "")
            else:
                row.append(share(found.get(system), signed=head in ("compression", "beyond hist")))
        rows.append(row)
    return markdown([f"L = {length}", *columns], rows)


def negatives_block(folder: Path) -> str:
    """How much of each gap between bands is easy negatives."""
    metrics = read(folder, "metrics")
    length = longer(metrics)[0]
    gaps = {q: value_of(metrics, "compression", q, "low", length) for q in ("uniform", "near", "order")}
    over = value_of(metrics, "compression_over_reference", "uniform", "low", length)
    counts = gaps["uniform"]["hist"][0]
    rows = []
    for system, label in systems_of(metrics, SHOWN):
        gap = gaps["uniform"].get(system)
        part = ""
        if gap is not None and gap[1] > 0:
            part = f"{min(max(counts / gap[0], 0), 1):.0%}"
        cells = [share(gap, True), part, share(over.get(system), True)]
        rows.append([label, *cells, *(share(gaps[q].get(system), True) for q in ("near", "order"))])
    heads = ["gap, uniform", "of it what counts get", "left over hist", "gap, near", "gap, order"]
    return markdown([f"L = {length}", *heads], rows)


def state_block(folder: Path) -> str:
    """Bits of state per symbol, accuracy on noise, and what so many bits allow."""
    metrics, state = read(folder, "metrics"), read(folder, "state")
    length = longer(metrics)[-1]
    accuracy = value_of(metrics, "accuracy", "uniform", "max", length)
    bits = {s: (b, limit) for s, n, b, limit in state.iter_rows() if n == length}
    chosen = [(s, label) for s, label in systems_of(metrics, (*SOLVERS[1:], *MEMORIES)) if s in bits]
    rows = [
        [label, f"{bits[s][0]:,}", f"{bits[s][0] / length:,.2f}", share(accuracy[s]), f"{bits[s][1]:.3f}"]
        for s, label in sorted(chosen, key=lambda x: bits[x[0]][0])
    ]
    return markdown(["memory", "bits of state", f"per symbol, L = {length}", "accuracy on noise", "limit"], rows)


def findings_block(folder: Path) -> str:
    """Which of the paper's findings appear."""
    rows = [
        [
            r["says"] if r["source"] == "paper" else f"*control:* {r['says']}", r["measure"], str(r["L"]),
            "" if r["value"] is None else share((r["value"], r["low"], r["high"]), signed="minus" in r["measure"]),
            f"{r['side']} {r['null']:g}", f"**{r['verdict']}**",
        ]
        for r in read(folder, "findings").iter_rows(named=True)
    ]  # fmt: skip
    return markdown(["finding", "number", "L", "value", "appears if", "verdict"], rows)


def verdicts_block(folder: Path) -> str:
    """The paper's findings and their verdicts alone, one row each."""
    found = read(folder, "findings").filter(pl.col("source") == "paper")
    rows = [
        [says[0], ", ".join(f"L = {r['L']}: **{r['verdict']}**" for r in group.iter_rows(named=True))]
        for says, group in found.group_by("says", maintain_order=True)
    ]
    return markdown(["finding", "here"], rows)


def runs_block(folder: Path) -> str:
    """Every training: what it took and what it reached."""
    rows = [
        [r["system"], f"{r['lr']:g}", str(r["seed"]), f"{r['parameters']:,}", f"{r['steps']:,}", f"{r['minutes']:.1f}",
         "" if r["cpu_minutes"] is None else f"{r['cpu_minutes']:.1f}", f"{r['best_accuracy']:.3f}",
         "yes" if r["chosen"] else "", r["code"]]
        for r in read(folder, "runs").iter_rows(named=True)
    ]  # fmt: skip
    heads = ["system", "lr", "seed", "parameters", "steps", "min", "CPU min", "validation", "chosen", "code"]
    return markdown(heads, rows)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "ecc": ecc_block,
    "ecc-brief": partial(ecc_block, shown=SHOWN),
    "verdicts": verdicts_block,
    "findings": findings_block,
    "negatives": negatives_block,
    "state": state_block,
    "runs": runs_block,
}


def page_text(text: str, folder: Path) -> str:
    """A page with what lies between its markers made again.

    Raises:
        FileNotFoundError: it shows a table that is not among the committed ones.
    """
    for name, block in BLOCKS.items():
        text = between(text, name, partial(block, folder))
    return text


def between(text: str, name: str, make: Callable[[], str]) -> str:
    """A page with what lies between the comments `<!-- name -->` and `<!-- /name -->` made again, if it has them."""
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
    if not pattern.search(text):
        return text
    made = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
    return pattern.sub(lambda _: made, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="a study -> committed tables and figures")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("study", type=Path)
    writing = commands.add_parser("readme", help="committed tables -> README.md and docs/study.md")
    writing.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is out of date")
    commands.add_parser("figures", help="committed tables -> committed figures")
    arguments = parser.parse_args()
    if arguments.command == "collect":
        collect(arguments.folder, arguments.study)
        return 0
    if arguments.command == "figures":
        save_overview(RESULTS, RESULTS)
        return 0
    wrong = False
    for page in PAGES:
        text = page.read_text()
        try:
            made = page_text(text, RESULTS)
        except FileNotFoundError as missing:
            print(
                f"{page.name} is left as it is, {missing.filename} is missing: collect a study first", file=sys.stderr
            )
            wrong = True
            continue
        if made != text and arguments.check:
            print(f"{page.name} is out of date: run python -m lab.results readme", file=sys.stderr)
            wrong = True
        elif made != text:
            with replacing(page) as temporary:
                temporary.write_text(made)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
