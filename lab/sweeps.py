"""After a sweep: the best run of every backbone and width, by the validation accuracy of its best checkpoint.

python -m lab.sweeps 'outputs/*'
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence

from omegaconf import OmegaConf
from rich.console import Console

from backbones.run import Run, RunError, find_runs
from flops.tables import Column, Table


def best_runs(runs: Iterable[Run]) -> list[tuple[Run, int]]:
    """The best finished run of every (backbone, width, depth, preset), sorted, with the number it was chosen from.

    Of equal ones the first by name, so that the choice does not depend on the order of the runs.
    """
    groups: dict[tuple, list[tuple[float, Run]]] = {}
    for run in runs:
        record = run.record()
        if record["status"] == "finished":
            model = record["model"]
            key = (model["name"], model["width"], model["depth"], record["preset"])
            groups.setdefault(key, []).append((record["best_accuracy"], run))
    return [(min(group, key=lambda one: (-one[0], one[1].name))[1], len(group)) for _, group in sorted(groups.items())]


def table(best: Sequence[tuple[Run, int]]) -> Table:
    rows = []
    for run, of in best:
        record, config = run.record(), OmegaConf.load(run.config)
        rows.append(
            {
                "backbone": record["model"]["name"], "d": record["model"]["width"], "preset": record["preset"],
                "of": of, "accuracy": record["best_accuracy"], "lr": config.lr, "batch_size": config.batch_size,
                "minutes": record["minutes"], "run": run.name,
            }
        )  # fmt: skip
    columns = [
        Column("backbone", "backbone", number=False), Column("d", "D"), Column("preset", "preset", number=False),
        Column("of", "best of"), Column("accuracy", "val/accuracy", "{:.3f}".format), Column("lr", "lr", "{:g}".format),
        Column("batch_size", "batch"), Column("minutes", "min"), Column("run", "run", number=False),
    ]  # fmt: skip
    return Table("best", "Best run of every backbone and width", columns, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.sweeps", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="run folders, or patterns in quotes")
    options = parser.parse_args(argv)
    try:
        best = best_runs(find_runs(options.runs))
    except RunError as error:
        parser.error(str(error))
    if not best:
        parser.error("no run has finished yet; the sweep's own command continues it")
    table(best).print(Console(width=None if sys.stdout.isatty() else 160))
    names = ",".join(str(run.path) for run, _ in best)
    print("evaluate them together with:\n  python evaluate.py " + shlex.quote(f'runs="{names}"'))
    return 0


if __name__ == "__main__":
    sys.exit(main())
