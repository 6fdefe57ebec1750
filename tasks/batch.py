"""A batch of streams and the queries asked about them: what a data loader yields and a memory model consumes.

Letters: B streams, L symbols per stream, Q queries per stream.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

VOCABULARY = 16
PAD = 16  # fills a candidate's unused places; no stream holds it
MAX_CANDIDATE = 6
QUERY_SETS = ("uniform", "near", "order")
BANDS = ("max", "low")
SPLITS = ("train", "validation", "test")
KINDS = ("positive", *QUERY_SETS)


@dataclass(frozen=True)
class Batch:
    """B streams of equal length and Q queries for each. All tensors are int64.

    The Q queries split evenly over `times`, in order: with times (64, 128) the first half is asked at t = 64, when only
    stream[:, :64] has been seen, and the second half at t = 128.
    """

    stream: torch.Tensor
    """[B, L] symbols 0..15."""
    candidates: torch.Tensor
    """[B, Q, 6] symbols, left-justified, unused places hold PAD."""
    lengths: torch.Tensor
    """[B, Q] symbols per candidate."""
    labels: torch.Tensor
    """[B, Q] 1 where the candidate occurred as a contiguous window of stream[:, :t]."""
    age: torch.Tensor
    """[B, Q] t minus the end of the latest match (0: the match ends the prefix); -1 for negatives."""
    kinds: torch.Tensor
    """[B, Q] how the candidate was made, an index into KINDS."""
    pair: torch.Tensor
    """[B, Q] the pair that a query belongs to, 0 .. Q/2 - 1: a positive and a negative of the same length and time."""
    index: torch.Tensor
    """[B] the streams' indices within their split."""
    times: tuple[int, ...]
    """Query times, strictly increasing."""
    query_set: str
    """Where negatives come from, one of QUERY_SETS."""
    band: str
    """Entropy band of the streams, one of BANDS."""
    split: str
    """One of SPLITS."""

    @property
    def size(self) -> int:
        """B."""
        return self.stream.shape[0]

    @property
    def queries(self) -> int:
        """Q."""
        return self.labels.shape[1]

    @property
    def fallback(self) -> torch.Tensor:
        """[B, Q] bool: a `uniform` negative stands in because the stream has none of the kind asked for."""
        if self.query_set == "uniform":
            return torch.zeros_like(self.labels, dtype=torch.bool)
        return self.kinds == KINDS.index("uniform")

    @property
    def scored(self) -> torch.Tensor:
        """[B, Q] bool: the pairs whose negative is of the kind asked for. They are as many positives as negatives, of
        the same lengths; in the `order` set each negative permutes its own positive. All pairs of a `uniform` set."""
        pairs = torch.zeros((self.size, self.queries // 2), dtype=torch.int64, device=self.pair.device)
        return pairs.scatter_add(1, self.pair, self.fallback.long()).gather(1, self.pair) == 0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device; `non_blocking` is safe towards a GPU from pinned memory."""
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return self._map(torch.Tensor.pin_memory)

    def rows(self, select: slice | torch.Tensor) -> Batch:
        """Some of the streams, with their queries."""
        return self._map(lambda x: x[select])

    def _map(self, f) -> Batch:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: f(v) for k, v in tensors.items() if isinstance(v, torch.Tensor)})


def check_name(what: str, name: str, known: Sequence[str]) -> None:
    """Refuse an unknown name with a ValueError that lists the known ones and suggests the nearest."""
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {what} {name!r}: it is one of {', '.join(known)}{hint}")
