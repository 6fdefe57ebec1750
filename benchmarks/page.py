"""docs/speed.md from saved outputs of the benchmarks: python -m benchmarks.page [--check]

`results/speed/NAME.tsv` is what a command of the page printed, as it came; the page shows it between a pair of
comments, `<!-- NAME -->` and `<!-- /NAME -->`, with the line about code and machine above the table. The table `wanted`
holds the operators against the ratios that their specification measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from backbones.run import replacing
from lab.results import between, markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE, SAVED = ROOT / "docs" / "speed.md", ROOT / "results" / "speed"

WANTED = {
    ("retnet", "FLA naive_retention"): (18, 14),
    ("retnet", "FLA naive_chunk_simple_gla"): (2.1, 5.5),
    ("retnet", "FLA naive_recurrent_simple_gla"): (3.9, None),
    ("gla", "FLA naive_recurrent_gla"): (3.3, None),
    ("mamba2", "transformers mamba2_chunk_scan C=64"): (3.3, 2.8),
    ("mamba2", "transformers mamba2_chunk_scan C=256"): (5.7, 6.5),
    ("deltanet", "FLA delta_rule_chunkwise C=32"): (3.6, 5.3),
    ("deltanet", "FLA delta_rule_chunkwise C=64"): (19, 19),
    ("deltanet", "FLA delta_rule_recurrence"): (2.8, None),
    ("gated_deltanet", "FLA naive_chunk_gated_delta_rule"): (6.3, 10.4),
    ("gated_deltanet", "transformers torch_chunk_gated_delta_rule"): (1.25, 1.92),
    ("gated_deltanet", "FLA naive_recurrent_gated_delta_rule"): (2.2, None),
}
"""Peer over ours, forward and forward + backward, one thread (spec/backbones-1.md, section 4.2); None was not run."""


def shown(saved: str) -> str:
    """A saved output as Markdown: its `#` line in italics, its rows as a table."""
    about, *lines = saved.strip().splitlines()
    header, *rows = (line.split("\t") for line in lines)
    return f"*{about.lstrip('# ')}*\n\n{markdown(header, rows)}"


def wanted(saved: str) -> str:
    """The operators that have a wanted ratio, beside it; bold where it is not reached."""
    _about, header, *lines = saved.strip().splitlines()
    found = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    reached = {(r["operator"], r["peer"]): (r["forward"], r["forward+backward"]) for r in found if r["threads"] == "1"}
    rows = []
    for key, least in WANTED.items():
        got = [x if w is None or float(x) >= w else f"**{x}**" for x, w in zip(reached[key], least, strict=True)]
        rows.append([*key, " / ".join("-" if w is None else f"{w:g}" for w in least), " / ".join(got)])
    return markdown(["operator", "peer", "wanted", "reached"], rows)


def page_text(text: str) -> str:
    """The page with every saved output in its place."""
    for path in sorted(SAVED.glob("*.tsv")):
        text = between(text, path.stem, lambda path=path: shown(path.read_text()))
    return between(text, "wanted", lambda: wanted((SAVED / "operators.tsv").read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the page is out of date")
    check, text = parser.parse_args().check, PAGE.read_text()
    made = page_text(text)
    if made != text and check:
        print(f"{PAGE.name} is out of date: run python -m benchmarks.page", file=sys.stderr)
        return 1
    if made != text:
        with replacing(PAGE) as temporary:
            temporary.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
