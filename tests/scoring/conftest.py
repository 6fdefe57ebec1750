"""Small response tables: written out by hand, or simulated from a known system."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest


def rows(outcomes, *, system="s", band="max", L=16, stream=0, **more):
    """Rows from (label, answer, confidence) triples of one stream; answer None abstains."""
    return [
        {"system": system, "band": band, "L": L, "stream": stream, "query": i, "label": label, "answer": answer,
         "confidence": confidence, **more}
        for i, (label, answer, confidence) in enumerate(outcomes)
    ]  # fmt: skip


def simulate(
    skill: float,
    *,
    streams=12,
    queries=16,
    seed=0,
    calibrated=1.0,
    system="s",
    band="max",
    L=64,
    training_seed=0,
    **more,
) -> pl.DataFrame:
    """A yes/no memory: logits around +-skill; `calibrated` scales its confidence without changing its answers."""
    rng = np.random.default_rng(seed)
    n = streams * queries
    label = np.tile(np.arange(queries) % 2, streams)
    logit = rng.normal(0, 1, n) + (2 * label - 1) * (skill + np.repeat(rng.normal(0, 0.3, streams), queries))
    p_yes = 1 / (1 + np.exp(-2 * skill * calibrated * logit))
    table = {
        "system": system, "band": band, "L": L, "stream": np.repeat(np.arange(streams), queries),
        "query": np.tile(np.arange(queries), streams), "label": label, "answer": (logit > 0).astype(int),
        "p_yes": p_yes, "candidate_length": rng.integers(3, 7, n),
        "age": np.where(label == 1, rng.integers(0, L - 6, n), -1), "seed": training_seed, **more,
    }  # fmt: skip
    return pl.DataFrame({k: np.broadcast_to(v, n) if isinstance(v, np.ndarray) else [v] * n for k, v in table.items()})


@pytest.fixture(name="rows")
def _rows():
    return rows


@pytest.fixture(name="simulate")
def _simulate():
    return simulate


@pytest.fixture(scope="session")
def study() -> pl.DataFrame:
    """A small study: three systems of known cost and two reference solvers, two bands, two lengths, two query sets."""
    about = [
        ("gru-64", "gru", 64, 0.5, 1e9), ("gla-64", "gla", 64, 0.9, 2e9), ("gla-128", "gla", 128, 1.4, 12e9),
        ("hist", "hist", None, 0.3, None), ("set3", "set3", None, 0.8, None),
    ]  # fmt: skip
    parts = []
    for k, (system, architecture, width, skill, flops) in enumerate(about):
        for band, gain in (("max", 1.0), ("low", 1.5)):
            for L in (32, 64):
                for query_set in ("uniform", "order"):
                    fixed = {"architecture": architecture, "width": width, "query_set": query_set,
                             "code_version": "abc", "flops_write": flops, "flops_read": flops and 1e6}  # fmt: skip
                    strength = skill * gain * (32 / L) ** 0.3
                    parts.append(simulate(strength, seed=k, training_seed=3, system=system, band=band, L=L, **fixed))
    return pl.concat(parts, how="vertical_relaxed")
