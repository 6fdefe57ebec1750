"""The price list of vision-language models: `python -m flops.vlm`.

python -m flops.vlm                                    the paper's twelve models
python -m flops.vlm --config CHECKPOINT --frames 64 --answer 3
python -m flops.vlm --docs docs/vlm_pricing.md         write the tables of that page again
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..tables import Column, Table
from .price import VlmPrice, price_vlm
from .published import ANSWER, FRAMES, scaled, tables

WIDTH = 160
"""Columns of text where there is no terminal to ask."""
BLOCK = re.compile(r"(<!-- python -m flops\.vlm -->).*?(<!-- end -->)", re.DOTALL)


def generated(text: str) -> str:
    """A document with what stands between its markers written again."""
    new = "\n\n".join(table.markdown() for table in tables())
    return BLOCK.sub(lambda found: f"{found[1]}\n\n{new}\n\n{found[2]}", text)


def terms(price: VlmPrice, frames: int, answer: float) -> Table:
    """The four terms of one response."""
    cost = price.response((frames,), answer=answer)
    rows = [{"term": term, "flops": flops} for term, flops in cost.terms.items()]
    rows += [{"term": "write", "flops": cost.write}, {"term": "read", "flops": cost.read}]
    title = f"{price.shapes.family}: {frames} frames, {price.tokens((frames,))} vision tokens, {answer:g} answer tokens"
    return Table("terms", title, (Column("term", "term", number=False), Column("flops", "TF", scaled(12, 4))), rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flops.vlm", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="a checkpoint's folder or its config.json")
    parser.add_argument("--frames", type=int, default=FRAMES, help="frames of the video (%(default)s)")
    parser.add_argument("--answer", type=float, default=ANSWER, help="charged tokens of the answer (%(default)s)")
    parser.add_argument("--docs", type=Path, help="a document whose tables to write again")
    options = parser.parse_args(argv)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    try:
        if options.docs:
            options.docs.write_text(generated(options.docs.read_text(encoding="utf-8")), encoding="utf-8")
        elif options.config:
            terms(price_vlm(options.config), options.frames, options.answer).print(console)
        else:
            for table in tables():
                table.print(console)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
