"""What is there, and a trained memory in a terminal.

python -m backbones list                       every registered backbone: size and price
python -m backbones chat outputs/<run>         write symbols, ask, write more, ask again
python -m backbones models --check             does docs/models.md say what the registry holds? (--write makes it so)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def arguments(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m backbones", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every registered backbone: size and price")
    listing.add_argument("--plugins", default="", help="modules that register more, separated by commas")
    chat = commands.add_parser("chat", help="write symbols into a trained memory and ask it")
    chat.add_argument("run", help="a run folder of train.py")
    models = commands.add_parser("models", help="docs/models.md, made from the registry; prints it without an option")
    what = models.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the page again")
    what.add_argument("--check", action="store_true", help="exit code 1 if the page is not what it would be")
    return parser, parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a check fails, 2 when the command is wrong."""
    parser, options = arguments(argv)

    from rich.console import Console

    from backbones import available, load_memory
    from backbones.run import Run, RunError
    from lab import catalogue
    from lab.chat import session
    from lab.config import UsageError, import_plugins

    try:
        if options.command == "chat":
            import_plugins(Run(Path(options.run)).record().get("plugins", []))
            return session(load_memory(options.run))
        if options.command == "list":
            import_plugins(filter(None, options.plugins.split(",")))
            catalogue.table(available()).print(Console(width=None if sys.stdout.isatty() else 200))
            return 0
    except (RunError, UsageError) as error:
        parser.exit(2, f"error: {error}\n")
    page = catalogue.page(available())
    if options.write:
        catalogue.PAGE.write_text(page)
    elif options.check:
        if catalogue.PAGE.read_text() != page:
            print(f"{catalogue.PAGE} is not what the registry holds; run: python -m backbones models --write")
            return 1
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
