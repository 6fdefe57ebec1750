"""Drives any memory system over a split: open, write in pieces, read every question, close.

Every system is driven in the same way, whatever it is, and every answer is kept the moment it comes (lab/answers.py):
after a kill the same command asks only what is left. An answer belongs to the system's `identity` and to the split's
content; both are in the name of its file, by digest.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backbones.run import replacing
from lab.answers import Answers, key_of
from lab.config import UsageError
from lab.console import progress
from tasks.splits import Cell, QueryRecord, Split, StreamRecord
from tasks.video.render import render_candidate, render_stream
from vlms.parsing import ABSTAIN_KINDS, charged_length, parse
from vlms.prompts import ANSWERS, instruction
from vlms.protocol import Arm, MemoryFailure, MemorySystem, Modality, Observation, Query, Reply

PIECE = 64
"""Observations written at once: bounds what a system must take in one call, and changes no answer (rule 3)."""
ERRORS_IN_A_ROW = 3
"""After so many questions in a row without an answer the system is taken to be gone."""
ANSWER = {"yes": 1, "no": 0, "abstain": None, None: None}


@dataclass(frozen=True)
class Selection:
    """Which questions of a split are asked, and under which arms.

    Attributes:
        lengths, bands, query_sets, variants: of cells; None for all.
        streams: of each cell, from its first; None for all.
        arms: None is the plain prompt; systems that give confidences are asked once, whatever the arms.
    """

    lengths: tuple[int, ...] | None = None
    bands: tuple[str, ...] | None = None
    query_sets: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    streams: int | None = None
    arms: tuple[Arm | None, ...] = (None, "A", "B")

    def cells(self, split: Split) -> list[Cell]:
        """The cells chosen.

        Raises:
            UsageError: a value that no cell has, or values that no cell has together.
        """
        have = {
            "lengths": {c.length for c in split.cells},
            "bands": {c.band for c in split.cells},
            "query_sets": {q for c in split.cells for q in c.query_sets},
            "variants": {c.variant for c in split.cells if c.variant},
        }
        for name, values in have.items():
            for wanted in getattr(self, name) or ():
                if wanted not in values:
                    raise UsageError(f"{name}: this split has no {wanted!r}; it has {sorted(values)}")
        chosen = [
            c
            for c in split.cells
            if (self.lengths is None or c.length in self.lengths)
            and (self.bands is None or c.band in self.bands)
            and (self.query_sets is None or set(c.query_sets) & set(self.query_sets))
            and (self.variants is None or c.variant in self.variants)
        ]
        if not chosen:
            raise UsageError("no cell of this split has the lengths, bands, query_sets and variants given together")
        return chosen

    def streams_of(self, cell: Cell) -> list[StreamRecord]:
        return cell.streams()[: self.streams]

    def queries_of(self, cell: Cell) -> dict[str, list[QueryRecord]]:
        """The cell's questions by stream; pairs whose negative is a stand-in of another kind are left out."""
        found: dict[str, list[QueryRecord]] = {}
        for query in cell.queries():
            wanted = self.query_sets is None or query.query_set in self.query_sets
            if wanted and query.meta.get("scored", True):
                found.setdefault(query.stream_id, []).append(query)
        return found


# -- from a split to observations and queries --------------------------------------------------------------------------


def modality_for(system: MemorySystem, cell: Cell) -> Modality:
    """How a system is shown a cell: as text or frames where it takes them, else as symbols.

    Raises:
        UsageError: it can take neither.
    """
    shown: Modality = "text" if cell.medium == "text" else "frames"
    for modality in (shown, "tokens"):
        if modality in system.modalities:
            return modality
    raise UsageError(
        f"{system.name} takes {', '.join(sorted(system.modalities))}, but cell {cell.key} is {cell.medium}: choose "
        "another split or another memory"
    )


def observations(stream: StreamRecord, modality: Modality) -> Iterator[Observation]:
    """A stream as a system is shown it, one observation per symbol, one per second."""
    values: Any = (int(s) for s in stream.symbols)
    if modality == "text":
        values = map(str, values)
    elif modality == "frames":
        values = render_stream(stream.symbols, stream.belts)
    return (Observation(modality, value, float(t)) for t, value in enumerate(values))


def query_for(record: QueryRecord, modality: Modality, arm: Arm | None) -> Query:
    """A question as a system is asked it."""
    if modality == "tokens":
        return Query(record.query_id, "tokens", record.candidate, None)
    if modality == "text":
        candidate: Any = ", ".join(str(int(s)) for s in record.candidate)
    else:
        candidate = tuple(render_candidate(record.candidate, record.candidate_belts))
    template = "text" if modality == "text" else "video"
    return Query(record.query_id, modality, candidate, instruction(template, arm), ANSWERS[template], arm)


# -- asking ------------------------------------------------------------------------------------------------------------


def identity_of(system: MemorySystem, split: Split, seed: int) -> dict[str, Any]:
    """What the answers of a system to a split depend on; JSON values."""
    tables = [(cell.key, cell.manifest) for cell in split.cells]
    digest = hashlib.sha256(json.dumps([split.name, split.version, split.recipe, tables], sort_keys=True).encode())
    return {
        "system": {"name": system.name, **system.identity},
        "split": {"name": split.name, "sha256": digest.hexdigest()},
        "seed": seed,
    }


def answers_file(system: MemorySystem, split: Split, folder: Path, seed: int = 0) -> Path:
    """Where the answers of a system to a split are kept."""
    digest = hashlib.sha256(json.dumps(identity_of(system, split, seed), sort_keys=True).encode()).hexdigest()[:8]
    return folder / f"answers-{split.name}-{digest}.jsonl"


@dataclass(frozen=True)
class Asked:
    """What an evaluation did.

    Attributes:
        path: the file of answers.
        records: of all questions of the selection, in the order of the split.
        kept: how many of them were answered before.
    """

    path: Path
    records: list[dict[str, Any]]
    kept: int

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The questions that got no answer."""
        return [record for record in self.records if record["error"] is not None]


def interview(
    system: MemorySystem,
    split: Split,
    selection: Selection,
    folder: Path,
    seed: int = 0,
    patience: int | None = ERRORS_IN_A_ROW,
) -> Asked:
    """Ask a system every question of a selection that it has not answered yet.

    Args:
        folder: of the file of answers.
        seed: given to the system with every stream.
        patience: errors in a row after which to stop; None goes on whatever fails.

    Raises:
        UsageError: the selection is empty, or the system cannot take what the split holds.
        MemoryFailure: the system cannot go on; what it answered is kept.
    """
    cells = selection.cells(split)
    path = answers_file(system, split, folder, seed)
    arms: tuple[Arm | None, ...] = selection.arms if {"text", "frames"} & system.modalities else (None,)
    with Answers(path) as answers:
        with replacing(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(identity_of(system, split, seed), indent=2, sort_keys=True) + "\n")
        interviewer = _Interviewer(system, split, answers, seed, patience)
        todo = [(cell, stream) for cell in cells for stream in selection.streams_of(cell)]
        wanted: list[tuple[Any, ...]] = []
        kept = 0
        with progress(f"asking {system.name}", len(todo)) as advance:
            by_cell = {cell.key: selection.queries_of(cell) for cell in cells}
            for number, (cell, stream) in enumerate(todo, start=1):
                asked = [(q, arm) for arm in arms for q in by_cell[cell.key].get(stream.stream_id, [])]
                keys = [interviewer.key(cell, stream, q, arm) for q, arm in asked]
                open_questions = [pair for pair, key in zip(asked, keys, strict=True) if key not in answers]
                wanted += keys
                kept += len(asked) - len(open_questions)
                if open_questions:
                    interviewer.ask(cell, stream, open_questions)
                advance(number)
        return Asked(path, [answers.records[key] for key in wanted], kept)


def arriving(
    system: MemorySystem, state: Any, queries: Sequence[Query], enough: Callable[[], bool] = lambda: False
) -> Iterator[list[tuple[int, Reply]]]:
    """Replies of a system to questions about one state, each with the number of its question, as they come.

    What comes together, from a batch, is one group. With several reads at once the next question is put when a reply
    was taken, so no more than `system.concurrency` questions are asked whose replies are not yet kept.

    Args:
        system: it is asked one question after the other, all in its own way, or several at once.
        state: what it has seen.
        queries: the questions.
        enough: asked before a question is put; true ends it. Replies under way still come.
    """
    if system.concurrency > 1 and not system.stateful_reads:
        yield from _several_at_once(system, state, queries, enough)
        return
    if system.stateful_reads:
        replies: Iterable[Reply] = (system.read(copy.deepcopy(state), query) for query in queries)
    else:
        replies = system.read_many(state, queries)
    numbered = enumerate(replies)
    if isinstance(replies, list):
        yield list(numbered)
    while not enough() and (pair := next(numbered, None)):
        yield [pair]


def _several_at_once(
    system: MemorySystem, state: Any, queries: Sequence[Query], enough: Callable[[], bool]
) -> Iterator[list[tuple[int, Reply]]]:
    """`arriving` with threads. After an exception (of a read, or Ctrl-C) no question is put, but replies still come."""
    waiting, running, failure = iter(enumerate(queries)), {}, None
    with ThreadPoolExecutor(system.concurrency) as pool:
        while True:
            if failure is None and not enough():
                for number, query in itertools.islice(waiting, system.concurrency - len(running)):
                    running[pool.submit(system.read, state, query)] = number
            if not running:
                break
            try:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt as interrupt:
                if isinstance(failure, KeyboardInterrupt):
                    raise
                failure, done = interrupt, set()
            for future in done:
                number, error = running.pop(future), future.exception()
                failure = failure or error
                if error is None:
                    yield [(number, future.result())]
    if failure is not None:
        raise failure


@dataclass
class _Interviewer:
    """Puts questions about one stream after the other to a system."""

    system: MemorySystem
    split: Split
    answers: Answers
    seed: int
    patience: int | None
    failed: list[str] = field(default_factory=list)
    """Errors since the last answer."""

    def key(self, cell: Cell, stream: StreamRecord, query: QueryRecord, arm: Arm | None) -> tuple[Any, ...]:
        return key_of(self._question(cell, stream, query, arm))

    def ask(self, cell: Cell, stream: StreamRecord, asked: Sequence[tuple[QueryRecord, Arm | None]]) -> None:
        """Write a stream and ask about it; each answer is kept as it comes."""
        modality, system = modality_for(self.system, cell), self.system
        state = system.open(stream.stream_id, self.seed)
        try:
            pieces = observations(stream, modality)
            while piece := list(itertools.islice(pieces, PIECE)):
                state = system.write(state, piece)
            self._read(cell, stream, state, asked)
        finally:
            system.close(state)

    def _read(
        self, cell: Cell, stream: StreamRecord, state: Any, asked: Sequence[tuple[QueryRecord, Arm | None]]
    ) -> None:
        system = self.system
        queries = [query_for(query, modality_for(system, cell), arm) for query, arm in asked]
        answered = 0
        for group in arriving(system, state, queries, lambda: self._gone):
            answered += len(group)
            if answered > len(asked):
                raise MemoryFailure(f"{system.name} gave more than {len(asked)} replies to {len(asked)} questions")
            told = [(*asked[number], reply) for number, reply in group]
            self.answers.add(*(self._question(cell, stream, q, a) | self._answer(cell, r) for q, a, r in told))
            for _, reply in group:
                self.failed = [] if reply.error is None else [*self.failed, reply.error]
        if self._gone:
            kept = sum(r["error"] is None for r in self.answers.records.values())
            raise MemoryFailure(
                f"{len(self.failed)} questions in a row got no answer; the last error: {self.failed[-1]}. {kept} "
                f"answers are kept in {self.answers.path}; the same command asks only the rest"
            )
        if answered < len(asked):
            raise MemoryFailure(
                f"{system.name} gave {len(asked) - answered} replies too few for {len(asked)} questions"
            )

    @property
    def _gone(self) -> bool:
        """Whether so many questions in a row got no answer that nobody seems to be there."""
        return self.patience is not None and len(self.failed) >= self.patience

    def _question(self, cell: Cell, stream: StreamRecord, query: QueryRecord, arm: Arm | None) -> dict[str, Any]:
        """The columns that say what was asked."""
        name = self.split.name
        return {
            "system": self.system.name,
            "architecture": self.system.architecture or self.system.name,
            "width": self.system.width,
            "task": "easyhuman" if name == "easyhuman" else "membership",
            "split": cell.medium if name in (cell.medium, "easyhuman") else f"{name} {cell.medium}",
            "query_set": query.query_set,
            "band": cell.band,
            "L": cell.length,
            "stream": stream.stream_id,
            "query": query.query_id,
            "options": 2,
            "candidate_length": len(query.candidate),
            "age": int(query.age),
            "label": int(query.label),
            "arm": arm,
        }

    def _answer(self, cell: Cell, reply: Reply) -> dict[str, Any]:
        """The columns that say what came back, and beside them what the response table has no column for."""
        system, decision, kind, charged = self.system, reply.decision, "answer", None
        if reply.error is not None:
            decision, kind = None, "error"
        elif reply.text is not None:
            answer_set = ANSWERS["text" if cell.medium == "text" else "video"]
            parsed = parse(reply.text, answer_set, reply.finish, system.opens_thought)
            decision, kind, charged = parsed.decision, parsed.kind, charged_length(parsed, reply.n_out)
        elif decision == "abstain":
            kind = "explicit"
        cost = reply.cost
        table = {
            "answer": ANSWER[decision],
            "p_yes": None if reply.scores is None else reply.scores[1],
            "confidence": None if reply.scores is not None or ANSWER[decision] is None else reply.confidence,
            "flops_write": None if cost is None else cost.write,
            "flops_read": None if cost is None else cost.read,
            "seed": getattr(system, "seed", self.seed),
            "code_version": getattr(system, "code", None),
            "abstain_kind": "error" if kind == "error" else ABSTAIN_KINDS[kind],
            "error": reply.error,
        }
        beside = {
            "cell": cell.key,
            "variant": cell.variant,
            "kind": kind,
            "finish": reply.finish,
            "n_in": reply.n_in,
            "n_out": reply.n_out,
            "t_ans": charged,
            "frames_in": reply.frames_in,
            "frames_seen": reply.frames_seen,
            "grid": None if reply.grid is None else [list(g) for g in reply.grid],
            "seconds": round(reply.seconds, 4),
            "terms": dict(cost.terms) if cost is not None and cost.terms else None,
            "text": reply.text,
            "meta": dict(reply.meta) or None,
        }
        return table | {name: value for name, value in beside.items() if value is not None}
