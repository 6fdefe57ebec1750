"""Benchmark splits: build, check, look at and render them.

    python -m tasks build split=text out=outputs/text                  every cell of the paper's lengths and bands
    python -m tasks build split=video out=outputs/video lengths=8,64 streams=5
    python -m tasks verify outputs/text                                checksums, every answer, leak tests
    python -m tasks show outputs/text [low-L0064 [3]]                  cells; a cell; one stream and its queries
    python -m tasks render outputs/video low-L0064-spatial 3 out=clip format=mp4
    python -m tasks entropy-table outputs/text                         rates of the low band beside the paper's

A build that was killed goes on where it stopped when the same command is given again. Exit status: 0; 1 when a check
fails; 2 when a command cannot be carried out, with one line that says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tasks.splits import load
from tasks.splits.build import Report, build
from tasks.splits.entropy_table import entropy_table, in_document
from tasks.splits.explain import explain_cell, explain_split, explain_stream, find_stream
from tasks.splits.leaks import ALPHA, check
from tasks.splits.options import OptionError, option_names, pairs, recipe, whole
from tasks.splits.recipes import RECIPES

_FORMATS = ("png", "mp4")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _build(options: argparse.Namespace) -> int:
    known = [name for kind in RECIPES.values() for name in option_names(kind)]
    given = pairs(options.options, list(dict.fromkeys(["split", "out", "processes", *known])))
    if "out" not in given:
        raise OptionError("out= is missing: the folder to build in, such as out=outputs/text")
    out = Path(given.pop("out"))
    processes = whole("processes", given.pop("processes", "1"), least=1)
    plan = recipe(given)
    with _bar("building") as report:
        split = build(plan, out, processes=processes, report=report)
    streams = sum(cell.manifest["streams"] for cell in split.cells)
    queries = sum(about["queries"] for cell in split.cells for about in cell.manifest["queries"].values())
    print(f"{out}: {split.name} {split.version}, {len(split.cells)} cells, {streams} streams, {queries} queries")
    return 0


def _verify(options: argparse.Namespace) -> int:
    split = load(options.folder)
    with _bar("checking") as report:
        keys = [cell.key for cell in split.cells]
        found = check(
            split,
            alpha=options.alpha,
            training_seeds=options.training_seeds,
            training_streams=options.training_streams,
            report=lambda key: report(key, keys.index(key), len(keys)),
        )
    for what in found.wrong[:20]:
        print(f"WRONG  {what}")
    if len(found.wrong) > 20:
        print(f"       and {len(found.wrong) - 20} more")
    for test in found.leaks:
        print(f"LEAK   {test.where}: {test.name}, p={test.p:.1e}: {test.about}")
    counts = ", ".join(f"{count} {what}" for what, count in found.checked.items())
    print(f"{options.folder}: checksums match; {counts} looked at")
    smallest = min(found.tests, key=lambda test: test.p)
    print(
        f"{len(found.tests)} tests, smallest p={smallest.p:.2g} ({smallest.where}: {smallest.name}), "
        f"{found.threshold:.1e} would fail; a sound split fails with probability at most {found.alpha:g}"
    )
    print("sound" if found.sound else "NOT SOUND")
    return 0 if found.sound else 1


def _show(options: argparse.Namespace) -> int:
    split = load(options.folder)
    if options.cell is None:
        lines = explain_split(split)
    elif options.stream is None:
        lines = explain_cell(split.cell(options.cell))
    else:
        cell = split.cell(options.cell)
        stream = find_stream(cell, options.stream)
        asked = [query for query in cell.queries() if query.stream_id == stream.stream_id]
        lines = explain_stream(cell, stream, asked)
    for line in lines:
        print(line)
    return 0


def _render(options: argparse.Namespace) -> int:
    given = pairs(options.options, ("out", "format", "query"))
    kind = given.get("format", "png")
    if kind not in _FORMATS:
        raise OptionError(f"format={kind}: one of {', '.join(_FORMATS)}")
    if "out" not in given:
        raise OptionError("out= is missing: a folder for format=png, a file for format=mp4")
    cell = load(options.folder).cell(options.cell)
    stream = find_stream(cell, options.stream)
    if cell.medium != "video":
        raise ValueError(f"cell {cell.key} is text; only the cells of video have belts to render")
    from tasks.video import render_candidate, render_stream, write_mp4, write_png

    seed = cell.manifest["video"]["texture_seed"]
    if "query" in given:
        asked = [query for query in cell.queries() if query.stream_id == stream.stream_id]
        chosen = [query for query in asked if given["query"] in (query.query_id, query.query_id.rsplit("-", 1)[1])]
        if not chosen:
            raise ValueError(f"query={given['query']}: not about {stream.stream_id}; see `python -m tasks show`")
        frames = render_candidate(chosen[0].candidate, chosen[0].candidate_belts, seed=seed)
    else:
        frames = render_stream(stream.symbols, stream.belts, seed=seed)
    count = write_png(frames, given["out"]) if kind == "png" else write_mp4(frames, given["out"], fps=1)
    print(f"{given['out']}: {count} frames of {stream.stream_id}")
    return 0


def _entropy_table(options: argparse.Namespace) -> int:
    given = pairs(options.options, ("docs",))
    table = entropy_table(load(options.folder))
    if "docs" not in given:
        if options.check:
            raise OptionError("--check compares with a document: name it with docs=")
        print(table)
        return 0
    path = Path(given["docs"])
    before = path.read_text()
    after = in_document(before, table)
    if options.check:
        print(f"{path}: {'is up to date' if before == after else 'another table than of this split'}")
        return 0 if before == after else 1
    path.write_text(after)
    return 0


@contextmanager
def _bar(what: str) -> Iterator[Report]:
    """A bar with the time left; without a terminal a line per cell."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=300) as bar:
        task = bar.add_task(what, total=None)
        yield lambda key, done, total: bar.update(task, description=f"{what} {key}", completed=done, total=total)


def _lines(what: str) -> Callable[[str, float, float], None]:
    said: set[str] = set()

    def report(key: str, done: float, total: float) -> None:
        if key not in said:
            said.add(key)
            print(f"{what} {key} ({100 * done / total:.0f}%)", file=sys.stderr, flush=True)

    return report


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tasks", description=__doc__, formatter_class=plain)
    commands = parser.add_subparsers(required=True, metavar="command")

    one = commands.add_parser("build", help="make a split, or finish it", description=_options(), formatter_class=plain)
    one.add_argument("options", nargs="*", metavar="option=value")
    one.set_defaults(run=_build)

    one = commands.add_parser("verify", help="check a split: files, answers, leaks")
    one.add_argument("folder", type=Path)
    one.add_argument("--alpha", type=float, default=ALPHA, help="probability to fail a sound split (%(default)s)")
    one.add_argument("--training-seeds", type=int, nargs="+", default=(0, 1, 2, 3), help="beside the split's own")
    one.add_argument("--training-streams", type=int, default=20_000, help="per seed and length (%(default)s)")
    one.set_defaults(run=_verify)

    one = commands.add_parser("show", help="explain a split, a cell or a stream")
    one.add_argument("folder", type=Path)
    one.add_argument("cell", nargs="?")
    one.add_argument("stream", nargs="?", help="number within the cell, or identity")
    one.set_defaults(run=_show)

    one = commands.add_parser("render", help="frames of a stream or candidate: out=, format=png|mp4, query=")
    one.add_argument("folder", type=Path)
    one.add_argument("cell")
    one.add_argument("stream", help="number within the cell, or identity")
    one.add_argument("options", nargs="*", metavar="option=value", help="out=, format=png|mp4, query=<its number>")
    one.set_defaults(run=_render)

    one = commands.add_parser("entropy-table", help="rates of the low band beside the paper's")
    one.add_argument("folder", type=Path)
    one.add_argument("options", nargs="*", metavar="docs=FILE")
    one.add_argument("--check", action="store_true", help="exit status 1 when the document has another table")
    one.set_defaults(run=_entropy_table)
    return parser


def _options() -> str:
    """Options of every split, from their recipes."""
    lines = ["split=  one of " + ", ".join(RECIPES), "out=  folder", "processes=1  does not change the result"]
    for name, kind in RECIPES.items():
        lines += ["", f"split={name}: {(kind.__doc__ or '').strip()}"]
        for key, value in kind().options.items():
            lines.append(f"  {key}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
