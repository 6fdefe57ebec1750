"""What the three splits hold: options, cells, and how a cell is made.

    text       uniform and low-entropy streams (tasks/membership.py), every query set on the same streams
    easyhuman  a short pattern with one or two breaks (tasks/easyhuman.py), as text and as video
    video      the text split's streams and uniform candidates as letters on three belts (tasks/video), asked in two
               variants about the same streams

A recipe is a frozen dataclass whose fields are the options of `python -m tasks build`. Cells are pure functions of the
recipe: the same whatever was built before, in whatever order, by however many processes. All streams come from
`split="test"`, so no training run has seen them under any seed of its own (`leaks.py` checks it).

Source: ECCBench, section 4.1 and appendices A.1 to A.3 (lengths, bands, 20 streams, 16 queries). Video lengths beyond
64 and EasyHuman's numbers of streams and queries are ours.

Letters: L symbols per stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tasks import easyhuman, membership
from tasks.batch import BANDS, KINDS, QUERY_SETS, Batch, check_name
from tasks.easyhuman import CORRUPTIONS, EasyHumanConfig, easy_questions, easy_stream
from tasks.entropy import EntropyConfig, LowStream, RuleSet, low_streams
from tasks.lempel_ziv import rate
from tasks.membership import MembershipConfig, ask, streams
from tasks.question import Question
from tasks.splits.records import MEDIA, VARIANTS, QueryRecord, StreamRecord
from tasks.splits.storage import FORMAT, NAME
from tasks.video import (
    BELT_MODES,
    VideoConfig,
    assign_belts,
    belts,
    sequential_questions,
    spatial_questions,
    with_belts,
)

MAX_RATE = 4.0  # log2(16): the max band's rate is that of its source, by definition (A.1)
_CHUNK = 1 << 19  # symbols asked about at once; bounds memory, changes nothing

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """A cell to be made."""

    key: str
    band: str
    length: int
    medium: str
    variant: str | None
    query_sets: tuple[str, ...]
    work: float
    """Rough seconds of one core, for the progress bar."""

    @property
    def entry(self) -> dict[str, Any]:
        """The cell's line in the index."""
        fields = ("key", "band", "length", "medium", "variant", "query_sets")
        return {name: getattr(self, name) for name in fields} | {"query_sets": list(self.query_sets)}


@dataclass(frozen=True)
class Made:
    """A cell's contents."""

    streams: list[StreamRecord]
    queries: list[QueryRecord]
    left_out: dict[str, int]
    """Queries per query set whose pair has no negative of the set's kind: asked for, not kept."""

    def add(self, stream: StreamRecord, query_set: str, asked: Sequence[Question]) -> None:
        """Keep the scored questions. A query's number counts the others too, so that it is the same in every set."""
        self.left_out[query_set] += sum(not question.scored for question in asked)
        self.queries.extend(
            QueryRecord(
                stream.stream_id,
                f"{stream.stream_id}-{query_set}-{number:02d}",
                query_set,
                question.candidate,
                question.label,
                question.age,
                question.belts,
                {name: value for name, value in question.meta.items() if name != "scored"},
            )
            for number, question in enumerate(asked)
            if question.scored
        )


@dataclass(frozen=True)
class Recipe:
    """Options that all splits share."""

    split: ClassVar[str]
    data: ClassVar[int]
    """Version of the data: raised when the same options give other data."""
    shortest: ClassVar[int]

    seed: int = 0
    """Everything follows from it."""
    streams: int = 20
    """Streams per cell."""
    queries: int = 16
    """Queries per stream and query set; even: half of them have the answer yes."""
    lengths: tuple[int, ...] = ()
    """Symbols, or frames, per stream."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        if self.streams < 1:
            raise ValueError(f"streams={self.streams}: a cell needs at least 1")
        if self.queries < 2 or self.queries % 2:
            raise ValueError(f"queries={self.queries}: use an even number, half are yes and half are no")
        if not self.lengths or len(set(self.lengths)) < len(self.lengths) or min(self.lengths) < self.shortest:
            raise ValueError(f"lengths={_listed(self.lengths)}: name different lengths of at least {self.shortest}")

    @property
    def version(self) -> str:
        """Of the files and the data."""
        return f"{FORMAT}.{self.data}.0"

    @property
    def options(self) -> dict[str, Any]:
        """Every option, in JSON types."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def index(self) -> dict[str, Any]:
        """The index file: known before anything is made."""
        return {
            "format": NAME,
            "version": self.version,
            "split": self.split,
            "seed": self.seed,
            "recipe": self.options,
            "cells": [plan.entry for plan in self.plans()],
        }

    def plans(self) -> list[Plan]:
        """The cells, cheapest lengths first within each band."""
        raise NotImplementedError(f"{type(self).__name__} must define plans")

    def make(self, plan: Plan, *, processes: int = 1, progress: Progress | None = None) -> Made:
        """The contents of a cell, the same for any number of processes."""
        raise NotImplementedError(f"{type(self).__name__} must define make")


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """Streams of symbols; every query set on the same streams, with the same positives."""

    split: ClassVar[str] = "text"
    data: ClassVar[int] = membership.VERSION
    shortest: ClassVar[int] = 6

    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    bands: tuple[str, ...] = ("low", "max")
    """Entropy bands: low, max."""
    query_sets: tuple[str, ...] = QUERY_SETS
    """Where negatives come from: uniform (the paper's), near, order."""
    sampler: str = EntropyConfig.sampler
    """How low-entropy rule sets are drawn: closed or independent."""
    acceptance: str = EntropyConfig.acceptance
    """When a low-entropy stream is kept: aim or band."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names("bands", self.bands, BANDS)
        _check_names("query_sets", self.query_sets, QUERY_SETS)
        EntropyConfig(sampler=self.sampler, acceptance=self.acceptance)

    def plans(self) -> list[Plan]:
        return [
            Plan(f"{band}-L{n:04d}", band, n, "text", None, self.query_sets, _text_work(self.streams, band, n))
            for band in self.bands
            for n in self.lengths
        ]

    def make(self, plan: Plan, *, processes: int = 1, progress: Progress | None = None) -> Made:
        config = MembershipConfig(entropy=EntropyConfig(sampler=self.sampler, acceptance=self.acceptance))
        records = text_streams(config, self.seed, self.streams, plan.band, plan.length, processes, progress)
        made = Made(records, [], dict.fromkeys(plan.query_sets, 0))
        rows = max(1, _CHUNK // plan.length)
        for start in range(0, len(records), rows):
            some = records[start : start + rows]
            x = np.stack([record.symbols for record in some])
            indices = range(start, start + len(some))
            batches = [
                ask(config, self.seed, x, indices, self.queries, split="test", query_set=query_set, band=plan.band)
                for query_set in plan.query_sets
            ]
            for row, record in enumerate(some):
                for batch in batches:
                    made.add(record, batch.query_set, list(_questions(batch, row)))
        return made


@dataclass(frozen=True)
class EasyHumanRecipe(Recipe):
    """A short pattern with one or two breaks, and questions about the breaks."""

    split: ClassVar[str] = "easyhuman"
    data: ClassVar[int] = easyhuman.VERSION + belts.VERSION - 1
    shortest: ClassVar[int] = easyhuman.SHORTEST

    streams: int = 160
    """Streams per cell: a stream has one or two breaks to ask about, so there are more of them."""
    queries: int = 2
    """Queries per stream and query set; even: half of them have the answer yes."""
    lengths: tuple[int, ...] = (256, 1024)
    """Symbols per stream of text (A.2)."""
    video_lengths: tuple[int, ...] = (256,)
    """Frames per stream of video (A.2)."""
    media: tuple[str, ...] = MEDIA
    """What memories are shown: text, video."""
    query_sets: tuple[str, ...] = CORRUPTIONS
    """How the breaks are corrupted: symbol, order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names("media", self.media, MEDIA)
        _check_names("query_sets", self.query_sets, CORRUPTIONS)
        if "video" in self.media and (not self.video_lengths or min(self.video_lengths) < self.shortest):
            raise ValueError(f"video_lengths={_listed(self.video_lengths)}: name lengths of at least {self.shortest}")

    def plans(self) -> list[Plan]:
        lengths = {"text": self.lengths, "video": self.video_lengths}
        return [
            Plan(f"{medium}-L{n:04d}", "easyhuman", n, medium, None, self.query_sets, self.streams * (0.001 + 2e-6 * n))
            for medium in self.media
            for n in lengths[medium]
        ]

    def make(self, plan: Plan, *, processes: int = 1, progress: Progress | None = None) -> Made:
        config, video = EasyHumanConfig(), VideoConfig()
        made = Made([], [], dict.fromkeys(plan.query_sets, 0))
        for index in range(self.streams):
            stream = easy_stream(config, self.seed, index, plan.length, split="test")
            placed = None
            if plan.medium == "video":
                placed = assign_belts(video, self.seed, index, stream.symbols, split="test")
            record = StreamRecord(
                f"{plan.key}-{index:05d}", stream.symbols, stream.rate, stream.rules, placed, stream.rate
            )
            made.streams.append(record)
            for query_set in plan.query_sets:
                asked = easy_questions(
                    config, self.seed, index, stream, self.queries, split="test", query_set=query_set
                )
                if placed is not None:
                    asked = with_belts(video, self.seed, index, stream.symbols, placed, asked, split="test")
                made.add(record, query_set, asked)
            _note(progress, index + 1, self.streams)
        return made


@dataclass(frozen=True)
class VideoRecipe(Recipe):
    """The text split's streams as letters on three belts; both variants ask about the same streams."""

    split: ClassVar[str] = "video"
    data: ClassVar[int] = membership.VERSION + belts.VERSION - 1
    shortest: ClassVar[int] = 6

    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    """Frames per stream."""
    bands: tuple[str, ...] = ("low", "max")
    """Entropy bands: low, max."""
    variants: tuple[str, ...] = VARIANTS
    """What a wrong candidate is: sequential (other letters), spatial (one letter on a wrong belt)."""
    belt_mode: str = VideoConfig.belt_mode
    """How belts are chosen: per_symbol or iid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names("bands", self.bands, BANDS)
        _check_names("variants", self.variants, VARIANTS)
        check_name("belt_mode", self.belt_mode, BELT_MODES)

    def plans(self) -> list[Plan]:
        query_sets = {"sequential": ("uniform",), "spatial": ("spatial",)}
        return [
            Plan(
                f"{band}-L{n:04d}-{variant}", band, n, "video", variant, query_sets[variant],
                _text_work(self.streams, band, n),
            )
            for band in self.bands
            for n in self.lengths
            for variant in self.variants
        ]  # fmt: skip

    def make(self, plan: Plan, *, processes: int = 1, progress: Progress | None = None) -> Made:
        config = VideoConfig(belt_mode=self.belt_mode)
        records = text_streams(config.membership, self.seed, self.streams, plan.band, plan.length, processes, progress)
        made = Made([], [], dict.fromkeys(plan.query_sets, 0))
        (query_set,) = plan.query_sets
        for index, record in enumerate(records):
            symbols = record.symbols
            placed = assign_belts(config, self.seed, index, symbols, split="test")
            made.streams.append(dataclasses.replace(record, belts=placed))
            stream = (config, self.seed, index, symbols, placed, self.queries)
            if plan.variant == "sequential":
                asked = sequential_questions(*stream, split="test", band=plan.band)
            elif self.belt_mode == "per_symbol" and len(set(symbols.tolist())) == 1:
                made.left_out[query_set] += self.queries  # one letter throughout: none that could be on a wrong belt
                continue
            else:
                asked = spatial_questions(*stream, split="test")
            made.add(record, query_set, asked)
        return made


RECIPES: dict[str, type[Recipe]] = {recipe.split: recipe for recipe in (TextRecipe, EasyHumanRecipe, VideoRecipe)}


def text_streams(
    config: MembershipConfig,
    seed: int,
    count: int,
    band: str,
    length: int,
    processes: int = 1,
    progress: Progress | None = None,
) -> list[StreamRecord]:
    """Streams 0 .. count - 1 of a band and length of the membership task."""
    ids = [f"{band}-L{length:04d}-{index:05d}" for index in range(count)]
    if band == "low":
        made = low_streams(
            config.entropy, seed, range(count), length, split="test", processes=processes, progress=progress
        )
        return [
            StreamRecord(stream_id, s.symbols, s.rate, describe(s, config.entropy), None, s.rate)
            for stream_id, s in zip(ids, made, strict=True)
        ]
    symbols = streams(config, seed, range(count), length, split="test")
    records: list[StreamRecord] = []
    for stream_id, row in zip(ids, symbols, strict=True):
        records.append(StreamRecord(stream_id, row, MAX_RATE, None, None, rate(row)))
        _note(progress, len(records), count)
    return records


def describe(stream: LowStream, config: EntropyConfig) -> dict[str, Any]:
    """A low-entropy stream's source, in JSON types."""
    return {
        "source": "variable-order n-gram",
        "sampler": config.sampler,
        "acceptance": config.acceptance,
        "tries": stream.tries,
        "target": stream.target,
        "vocabulary": stream.rules.vocabulary,
        "rules": [
            {"context": list(context), "next": {str(symbol): p for symbol, p in following.items()}}
            for context, following in stream.rules.rules.items()
        ],
    }


def rule_set(rules: dict[str, Any]) -> RuleSet:
    """The source that `describe` described."""
    table = {
        tuple(rule["context"]): {int(symbol): float(p) for symbol, p in rule["next"].items()} for rule in rules["rules"]
    }
    return RuleSet(table, rules["vocabulary"])


def _questions(batch: Batch, row: int) -> Iterator[Question]:
    """One stream's queries of a batch."""
    fields = (batch.candidates, batch.lengths, batch.labels, batch.age, batch.kinds, batch.pair, batch.scored)
    for candidate, n, label, age, kind, pair, scored in zip(*(f[row].tolist() for f in fields), strict=True):
        yield Question(np.array(candidate[:n], np.uint8), label, age, KINDS[kind], pair, scored)


def _note(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _check_names(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        check_name(option, value, known)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{option}={_listed(values)}: name one or more of {', '.join(known)}, each once")


def _listed(values: Sequence[Any]) -> str:
    return ",".join(map(str, values))


def _text_work(count: int, band: str, length: int) -> float:
    low = 0.008 + 1.7e-5 * length if band == "low" else 0
    return count * (0.0015 + 2.5e-6 * length + low)
