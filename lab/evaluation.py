"""Evaluation: memories answer queries about longer streams than they were trained on, and every answer becomes a row.

The streams of a (band, length) cell are generated once and kept beside the runs, so all systems answer the same
questions. Rows are appended chunk by chunk: a killed evaluation continues where it stopped. Scoring is a function of
the saved tables alone, so a comparison of many runs asks no model again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from backbones.run import Run, RunError, replacing
from scoring import ResponseWriter
from tasks import BANDS, QUERY_SETS, Batch, MembershipConfig, ask, low_streams, streams
from tasks.solvers import SOLVERS, solver

from .console import progress

TOKENS_PER_CHUNK = 1 << 14
"""Stream tokens written at once: bounds the memory of an evaluation whatever its lengths."""
STREAMS = 200
"""Per band and length, where the command names no number."""


@dataclass(frozen=True)
class Plan:
    """Which questions are asked. Two evaluations with the same plan ask exactly the same.

    Args:
        lengths: stream lengths.
        bands: entropy bands, "max" and "low".
        query_sets: where negatives come from: "uniform" (the paper's), "near", "order".
        streams: streams per (band, length) cell.
        queries: queries per stream and query set, half of them positive.
        seed: of streams and queries.
        task: the streams' and queries' configuration.
        version: of what a row of the table is; raised when that changes, so that saved answers are not mixed.
    """

    lengths: tuple[int, ...]
    bands: tuple[str, ...]
    query_sets: tuple[str, ...]
    streams: int
    queries: int
    seed: int
    task: MembershipConfig
    version: int = 2

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def task_name(self) -> str:
        """Of the response table: the paper's task is "membership"; another alphabet or other candidates are named."""
        if self.task == MembershipConfig():
            return "membership"
        candidates = ", ".join(map(str, self.task.candidate_lengths))
        return f"membership of {candidates} among {self.task.vocabulary} symbols"

    def chunks(self) -> Iterator[tuple[str, int, range]]:
        """(band, length, stream indices), few enough streams at a time to write them together."""
        for band in self.bands:
            for length in self.lengths:
                size = max(1, TOKENS_PER_CHUNK // length)
                for start in range(0, self.streams, size):
                    yield band, length, range(start, min(start + size, self.streams))


@dataclass(frozen=True)
class System:
    """A memory under evaluation.

    Args:
        name: of the system: one trained model, or a reference solver.
        architecture, width: what it is, for colours and markers.
        answer: a batch of streams, and the batches of queries about them -> p(yes) [B, Q] for each.
        price: FLOPs of (writing a stream, one read) at a length, or None where they are not counted.
        identity: what its answers depend on beside the plan.
    """

    name: str
    architecture: str
    width: int | None
    seed: int
    code: str
    answer: Callable[[torch.Tensor, Sequence[Batch]], list[torch.Tensor]]
    price: Callable[[int], tuple[float | None, float | None]]
    identity: dict[str, Any]


def backbone_system(run: Run, device: torch.device) -> System:
    """A trained run as a system."""
    record, model = run.record(), run.load_model(device)
    price = model.price()

    @torch.inference_mode()
    def answer(stream: torch.Tensor, batches: Sequence[Batch]) -> list[torch.Tensor]:
        state = model.write(stream.to(device))
        logits = [model.read(b.candidates.to(device), b.lengths.to(device), state) for b in batches]
        return [x.float().softmax(-1)[..., 1].cpu() for x in logits]

    weights = hashlib.sha256(run.best.read_bytes()).hexdigest()[:16]
    name, width = record["model"]["name"], record["model"]["width"]
    return System(
        run.name, name, width, record["seed"], record["code"], answer,
        lambda L: (float(price.write(L)), float(price.read(L))), {"weights": weights},
    )  # fmt: skip


def solver_system(name: str) -> System:
    """A reference solver as a system: a memory with no learning and no counted FLOPs."""
    memory = solver(name)

    def answer(stream: torch.Tensor, batches: Sequence[Batch]) -> list[torch.Tensor]:
        state = memory.write(stream)
        return [memory.read(b.candidates, b.lengths, state) for b in batches]

    return System(name, name, None, 0, "reference", answer, lambda L: (None, None), {"solver": name})


class Streams:
    """The evaluation streams, generated once per (band, length) and kept in a folder.

    Args:
        plan: which.
        folder: where to keep low-entropy streams, which take a while to generate.
        processes: to generate them with.
    """

    def __init__(self, plan: Plan, folder: Path, processes: int = 1):
        self.plan, self.folder, self.processes = plan, folder, processes

    def cell(self, band: str, length: int) -> np.ndarray:
        """uint8 [streams, length]."""
        plan, indices = self.plan, range(self.plan.streams)
        if band == "max":
            return streams(plan.task, plan.seed, indices, length, split="test", band=band)
        what = json.dumps([asdict(plan.task.entropy), plan.task.version, plan.seed, plan.streams], sort_keys=True)
        path = self.folder / f"{band}-L{length}-{hashlib.sha256(what.encode()).hexdigest()[:8]}.npy"
        if not path.exists():
            with progress(f"generating {band}-entropy streams, L={length}", plan.streams) as advance:
                made = low_streams(
                    plan.task.entropy, plan.seed, indices, length, split="test", processes=self.processes,
                    progress=lambda done, total: advance(done),
                )  # fmt: skip
            with replacing(path) as temporary, open(temporary, "wb") as file:
                np.save(file, np.stack([stream.symbols for stream in made]))
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise RunError(f"{path} is damaged ({error}); delete it, it will be generated again") from None


def rows(system: System, batch: Batch, length: int, p_yes: torch.Tensor, task: str) -> dict[str, Any]:
    """Columns of the response table for one batch: a row per query that is of the kind asked for (`Batch.scored`)."""
    B, Q = batch.labels.shape
    keep = batch.scored.numpy().ravel()
    p = p_yes.double().numpy().ravel()
    answer = (p > 0.5).astype(np.int64)  # an even p is a no: the solvers' rule is a strict inequality
    write, read = system.price(length)
    columns = {
        "system": np.full(B * Q, system.name),
        "architecture": np.full(B * Q, system.architecture),
        "width": [system.width] * (B * Q),
        "task": np.full(B * Q, task),
        "split": np.full(B * Q, batch.split),
        "query_set": np.full(B * Q, batch.query_set),
        "band": np.full(B * Q, batch.band),
        "L": np.full(B * Q, length),
        "stream": np.repeat(batch.index.numpy(), Q),
        "query": np.tile(np.arange(Q), B),
        "candidate_length": batch.lengths.numpy().ravel(),
        "age": batch.age.numpy().ravel(),
        "label": batch.labels.numpy().ravel(),
        "answer": answer,
        "p_yes": p,
        "confidence": np.maximum(p, 1 - p),
        "flops_write": [write] * (B * Q),
        "flops_read": [read] * (B * Q),
        "seed": np.full(B * Q, system.seed),
        "code_version": np.full(B * Q, system.code),
    }
    return {name: np.asarray(values)[keep] for name, values in columns.items()}


def evaluate(systems: Sequence[System], plan: Plan, path: Path, source: Streams) -> Path:
    """Let systems answer every question of a plan; returns the response table's path.

    Args:
        systems: asked in turn about each chunk of streams.
        plan: the questions.
        path: of the Parquet table; parts lie beside it until it is finished.
        source: the streams.
    """
    identity = {"plan": plan.digest, **{s.name: json.dumps(s.identity, sort_keys=True) for s in systems}}
    chunks = list(plan.chunks())
    held: tuple[str, int] | None = None
    with (
        ResponseWriter(path, identity=identity) as writer,
        progress(f"asking {', '.join(s.name for s in systems)}", len(chunks)) as advance,
    ):
        for number, (band, length, indices) in enumerate(chunks):
            for system in systems:
                part = f"{system.name}-{band}-L{length}-{indices.start:06d}"
                if part in writer:
                    continue
                if held != (band, length):
                    held, cell = (band, length), source.cell(band, length)
                chosen = cell[indices.start : indices.stop]
                batches = [
                    ask(plan.task, plan.seed, chosen, indices, plan.queries, split="test", query_set=q, band=band)
                    for q in plan.query_sets
                ]
                answers = system.answer(batches[0].stream, batches)
                columns = [rows(system, b, length, p, plan.task_name) for b, p in zip(batches, answers, strict=True)]
                writer.append(part, {k: np.concatenate([c[k] for c in columns]) for k in columns[0]})
            advance(number + 1)
        writer.finish()
    return path


def trained_task(run: Run) -> MembershipConfig:
    """What streams and candidates a run was trained on, from its own configuration.

    Raises:
        RunError: its configuration is missing, or does not say.
    """
    try:
        task = OmegaConf.load(run.config).task
        return MembershipConfig(vocabulary=task.vocabulary, candidate_lengths=tuple(task.candidate_lengths))
    except (OSError, YAMLError, AttributeError) as error:
        raise RunError(f"{run.config} does not say what the run was trained on ({error}); train it again") from None


def plan_for(cfg: DictConfig, trained_length: int, task: MembershipConfig | None = None) -> Plan:
    """The questions for a run: 1x, 2x and 4x its longest training length unless the configuration names lengths."""
    lengths = cfg.lengths or [factor * trained_length for factor in cfg.factors]
    return Plan(
        tuple(int(n) for n in lengths),
        tuple(cfg.bands or BANDS),
        tuple(cfg.query_sets or QUERY_SETS),
        cfg.streams or STREAMS,
        cfg.queries,
        cfg.seed,
        task or MembershipConfig(),
    )


def united(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that differ in their lengths only as one, so that no question is in two of them."""
    lengths: dict[str, set[int]] = {}
    without: dict[str, Plan] = {}
    for plan in plans:
        bare = replace(plan, lengths=())
        without[bare.digest] = bare
        lengths.setdefault(bare.digest, set()).update(plan.lengths)
    return [replace(plan, lengths=tuple(sorted(lengths[digest]))) for digest, plan in without.items()]


def references(plan: Plan, folder: Path, source: Streams) -> Path:
    """The reference solvers' answers to a plan, computed once for all runs that share it."""
    return evaluate([solver_system(n) for n in SOLVERS], plan, folder / f"reference-{plan.digest}.parquet", source)
