"""Time to score a large response table: 1,000,000 answers, 1,000 bootstrap redraws, one thread.

    python -m benchmarks.scoring [--rows 1000000] [--redraws 1000]

Two shapes: everything in one cell (31,250 streams, the largest arrays), and a study of 24 cells.
"""

from __future__ import annotations

import argparse
import os
import platform
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np
import polars as pl

from scoring import Settings, score, validate

QUERIES = 32


def table(rows: int, systems: int, lengths: int) -> pl.DataFrame:
    """Answers of simulated systems, `rows` in all, two bands where there are several lengths."""
    rng = np.random.default_rng(0)
    bands = ("max", "low") if lengths > 1 else ("max",)
    streams = rows // (systems * lengths * len(bands) * QUERIES)
    n = streams * QUERIES
    label = np.tile(np.arange(QUERIES) % 2, streams)
    parts = []
    for system in range(systems):
        for band in bands:
            for k in range(lengths):
                logit = rng.normal(0, 1, n) + (2 * label - 1) * (0.5 + np.repeat(rng.normal(0, 0.3, streams), QUERIES))
                fixed = {"system": f"s{system}", "band": band, "L": 128 << k, "flops_write": 1e9, "flops_read": 1e6}
                part = pl.DataFrame(
                    {"stream": np.repeat(np.arange(streams), QUERIES), "query": np.tile(np.arange(QUERIES), streams),
                     "label": label, "answer": (logit > 0).astype(int), "p_yes": 1 / (1 + np.exp(-logit)),
                     "candidate_length": rng.integers(3, 7, n),
                     "age": np.where(label == 1, rng.integers(0, 100, n), -1)}
                )  # fmt: skip
                parts.append(part.with_columns(**{name: pl.lit(value) for name, value in fixed.items()}))
    return pl.concat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--redraws", type=int, default=1_000)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    for name, systems, lengths in (("one cell", 1, 1), ("24 cells", 4, 3)):
        made = table(options.rows, systems, lengths)
        wall, cpu = time.perf_counter(), time.process_time()
        scores = score(validate(made), Settings(redraws=options.redraws))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name}: {made.height:,} answers, {options.redraws:,} redraws: {wall:.1f} s wall, {cpu:.1f} s CPU")
        assert sum(c.n for c in scores.cells) == made.height


if __name__ == "__main__":
    main()
