"""Builds a split on disk, cell by cell, so that a build that was killed goes on where it stopped.

The index is written first and says what the split will be; a cell is made in a folder beside its place and renamed
into it when complete; croissant.json and `checksums` come last. Run the same command again after a crash, a kill -9 or
a damaged file: cells that are whole are kept, the others are made again, with the same bytes.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.files import PARTIAL, write_bytes
from tasks.splits import storage
from tasks.splits.croissant import croissant
from tasks.splits.recipes import Made, Plan, Recipe
from tasks.splits.records import Split
from tasks.splits.reference import accuracies
from tasks.splits.storage import CELL_FILES, CHECKSUMS, CROISSANT, INDEX, MANIFEST, QUERIES, STREAMS, SplitError

Report = Callable[[str, float, float], None]
"""report(cell, work done so far, all work): seconds of one core, roughly."""


def build(recipe: Recipe, out: Path, *, processes: int = 1, report: Report | None = None) -> Split:
    """Make the split of a recipe in folder `out`, or finish it.

    Args:
        processes: worker processes for low-entropy streams; the result does not depend on it.
        report: called as work proceeds.

    Raises:
        SplitError: the folder holds something else, or a split of other options.
    """
    out.mkdir(parents=True, exist_ok=True)
    trusted = _begin(recipe, out)
    plans = recipe.plans()
    total, done = sum(plan.work for plan in plans), 0.0
    for plan in plans:
        if not _whole(out, plan, recipe.version, trusted):
            _make_cell(recipe, plan, out, processes, _within(report, plan, done, total))
        done += plan.work
        if report is not None:
            report(plan.key, done, total)
    _finish(recipe, out)
    return storage.load(out)


def _begin(recipe: Recipe, out: Path) -> dict[str, str] | None:
    """Write the index, or check that the one there is of the same recipe; digests of a finished split, if it is one."""
    others = [path.name for path in out.iterdir() if not path.name.startswith(PARTIAL)]
    if others and INDEX not in others:
        raise SplitError(f"{out} holds {sorted(others)[0]} and no split; name an empty or new folder with out=")
    if INDEX not in others:
        write_bytes(out / INDEX, storage.to_json(recipe.index))
        return None
    there, wanted = storage.read_index(out), json.loads(json.dumps(recipe.index))
    if there != wanted:
        raise SplitError(
            f"{out / INDEX} is of another split ({_difference(there, wanted)}); name another folder with out=, or "
            f"delete this one"
        )
    if not (out / CHECKSUMS).is_file():
        return None
    trusted = storage.read_digests(out / CHECKSUMS)
    (out / CHECKSUMS).unlink()  # until the end this is an unfinished build again
    return trusted


def _difference(there: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The first thing that differs between two indices."""
    for name in ("split", "version"):
        if there.get(name) != wanted[name]:
            return f"{name} {there.get(name)} there, {wanted[name]} asked for"
    for name, value in wanted["recipe"].items():
        found = there["recipe"].get(name)
        if found != value:
            return f"{name}={storage.option(found)} there, {name}={storage.option(value)} asked for"
    return "its list of cells was edited"


def _whole(out: Path, plan: Plan, version: str, trusted: dict[str, str] | None) -> bool:
    """Whether a cell is there and intact, by its manifest and, in a split that was finished once, by its checksums."""
    try:
        manifest = json.loads((out / plan.key / MANIFEST).read_bytes())
        stated = {name: manifest["files"][name]["sha256"] for name in (STREAMS, QUERIES)}
        found = {name: storage.digest((out / plan.key / name).read_bytes()) for name in CELL_FILES}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if manifest.get("version") != version or any(found[name] != stated[name] for name in stated):
        return False
    return trusted is None or all(trusted.get(f"{plan.key}/{name}") == found[name] for name in CELL_FILES)


def _make_cell(recipe: Recipe, plan: Plan, out: Path, processes: int, progress: Callable[[int, int], None]) -> None:
    made = recipe.make(plan, processes=processes, progress=progress)
    folder = Path(tempfile.mkdtemp(dir=out, prefix=PARTIAL))
    folder.chmod(0o755)  # mkdtemp's 700 would hide a shared split from its other readers
    tables = {
        STREAMS: (storage.streams_table(made.streams), len(made.streams)),
        QUERIES: (storage.queries_table(made.queries), len(made.queries)),
    }
    files = {}
    for name, (table, rows) in tables.items():
        data = storage.table_bytes(table, recipe.version, plan.key)
        write_bytes(folder / name, data)
        files[name] = {"sha256": storage.digest(data), "bytes": len(data), "rows": rows}
    write_bytes(folder / MANIFEST, storage.to_json(manifest(recipe, plan, made, files)))
    place = out / plan.key
    if place.exists():  # a damaged cell: out of the way first, a folder cannot be renamed onto a full one
        place.rename(Path(tempfile.mkdtemp(dir=out, prefix=PARTIAL)) / plan.key)
    folder.rename(place)


def manifest(recipe: Recipe, plan: Plan, made: Made, files: dict[str, Any]) -> dict[str, Any]:
    """What a reader of a cell should know before using it, in JSON types."""
    accuracy = accuracies(made.streams, made.queries)
    sets = {}
    for query_set in plan.query_sets:
        labels = [query.label for query in made.queries if query.query_set == query_set]
        left_out = made.left_out[query_set]
        sets[query_set] = {
            "queries": len(labels),
            "yes": sum(labels),
            "no": len(labels) - sum(labels),
            "left_out": left_out,
        }
        if left_out:
            sets[query_set]["why_left_out"] = "pairs about a stream that has no negative of this kind"
        sets[query_set]["solvers"] = accuracy.get(query_set, {})  # none where no pair could be kept
    described = {
        "format": storage.NAME,
        "version": recipe.version,
        "split": recipe.split,
        **plan.entry,
        "recipe": recipe.options,
        "files": files,
        "streams": len(made.streams),
        "distinct_streams": len({stream.symbols.tobytes() for stream in made.streams}),
        "rate": _summary([stream.rate for stream in made.streams]),
        "estimate": _summary([stream.estimate for stream in made.streams]),
        "query_sets": list(plan.query_sets),
        "queries": sets,
    }
    if plan.medium == "video":
        from tasks.video import LETTERS, SIZE, look

        described["video"] = {"letters": LETTERS, "size": [SIZE, SIZE], "fps": 1, "texture_seed": 0, "look": look(0)}
    return described


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "mean": math.fsum(values) / len(values),
        "std": statistics.pstdev(values),
        "min": min(values),
        "max": max(values),
    }


def _finish(recipe: Recipe, out: Path) -> None:
    manifests = {plan.key: json.loads((out / plan.key / MANIFEST).read_bytes()) for plan in recipe.plans()}
    write_bytes(out / CROISSANT, storage.to_json(croissant(recipe.index, manifests)))
    names = [INDEX, CROISSANT] + [f"{key}/{name}" for key in manifests for name in CELL_FILES]
    digests = {name: storage.digest((out / name).read_bytes()) for name in names}
    for leftover in out.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    write_bytes(out / CHECKSUMS, storage.checksums_bytes(recipe.version, digests))


def _within(report: Report | None, plan: Plan, done: float, total: float) -> Callable[[int, int], None]:
    """Progress through a cell's streams as progress through the split."""

    def progress(streams: int, of: int) -> None:
        if report is not None:
            report(plan.key, done + plan.work * streams / of, total)

    return progress
