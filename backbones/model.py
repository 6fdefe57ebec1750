"""The membership model: a memory backbone that reads symbols and answers "did this candidate occur in the stream?".

    symbol    -> embedding                                   one token of the stream
    candidate -> sum over its symbols of E[offset, symbol]   ONE query token, whatever its length
                 + E_len[length]
    query's output -> RMSNorm -> two logits (no, yes);  confidence = the larger softmax probability

A stream is written once and all its queries are read off the state in one batched step: the query is the next token of
the stream. Letters: B batch, L stream length, Q queries, M symbols of the longest candidate, D width.
Source: ECCBench, section 4.4 and Appendix C.1; the embedding of a candidate is the lab's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flops import Price

from .parts import norm
from .registry import build
from .state import StackState


class CandidateEmbedding(nn.Module):
    """A short string of symbols as one vector.

    Args:
        width: D.
        vocabulary: number of symbols; the value `vocabulary` itself is padding.
        longest: M, symbols of the longest candidate.
        align: offsets counted from the candidate's end ("right") or start ("left"). Right aligns what a causal
            convolution has just seen, and learns a little faster.
        std: initial standard deviation of the tables.
    """

    def __init__(self, width: int, vocabulary: int, longest: int, align: Literal["right", "left"], std: float):
        super().__init__()
        if align not in ("right", "left"):
            raise ValueError(f"candidate_align={align!r}: choose 'right' or 'left'")
        self.vocabulary, self.longest, self.align = vocabulary, longest, align
        self.symbols = nn.Embedding(longest * (vocabulary + 1), width)
        self.length = nn.Embedding(longest + 1, width)
        nn.init.normal_(self.symbols.weight, std=std)
        nn.init.normal_(self.length.weight, std=std)
        self.register_buffer("offsets", torch.arange(longest) * (vocabulary + 1), persistent=False)

    def forward(self, candidates: Tensor, lengths: Tensor) -> Tensor:
        """[B, Q, M] symbols, left-justified and padded, and [B, Q] lengths -> [B, Q, D]."""
        if self.align == "right":
            shift = self.longest - lengths[..., None]
            source = torch.arange(self.longest, device=candidates.device) - shift
            candidates = candidates.gather(-1, source.clamp_min(0)).where(source >= 0, self.vocabulary)
        return self.symbols(candidates + self.offsets).sum(-2) + self.length(lengths)


class MembershipModel(nn.Module):
    """Embeddings, backbone and head.

    Args:
        name: a registered backbone.
        width: D.
        depth: layers.
        vocabulary: number of symbols.
        longest: symbols of the longest candidate.
        candidate_align, embedding_std: see `CandidateEmbedding`.
        full_write: compute the top layer's outputs at stream positions although nobody reads them: the pass that the
            FLOPs convention charges. The answers are the same.
        layer: fields of the backbone layer's Config.
    """

    def __init__(
        self,
        name: str,
        width: int = 64,
        depth: int = 3,
        *,
        vocabulary: int = 16,
        longest: int = 6,
        candidate_align: Literal["right", "left"] = "right",
        embedding_std: float = 0.5,
        full_write: bool = False,
        **layer: Any,
    ):
        super().__init__()
        self.backbone = build(name, width, depth, **layer)
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        self.candidate = CandidateEmbedding(width, vocabulary, longest, candidate_align, embedding_std)
        self.norm = norm(width)
        self.head = nn.Linear(width, 2)
        self.full_write = full_write

    def write(self, stream: Tensor, state: StackState | None = None) -> StackState:
        """Fold symbols int64 [B, L] into the state; continues from `state`."""
        return self.backbone.write(self.embedding(stream), state, outputs=self.full_write)[1]

    def read(self, candidates: Tensor, lengths: Tensor, state: StackState) -> Tensor:
        """Logits [B, Q, 2] (no, yes) for candidates int64 [B, Q, M] of lengths [B, Q], off one state."""
        return self._answer(self.backbone.read(self.candidate(candidates, lengths), state))

    def forward(self, stream: Tensor, candidates: Tensor, lengths: Tensor, times: Sequence[int]) -> Tensor:
        """Write the stream once and read its queries at several times.

        Args:
            stream: int64 [B, L].
            candidates: int64 [B, Q, M]; Q splits evenly over the times, in order.
            lengths: int64 [B, Q].
            times: increasing; the queries of time t see the first t symbols.

        Returns:
            Logits [B, Q, 2].
        """
        _, states = self.backbone.write_at(self.embedding(stream), times, outputs=self.full_write)
        return self._answer(self.backbone.read_at(self.candidate(candidates, lengths), states))

    def _answer(self, y_BQD: Tensor) -> Tensor:
        return self.head(self.norm(y_BQD))

    def price(self) -> Price:
        """The backbone's price: embeddings and head are outside the paper's count."""
        return self.backbone.price()
