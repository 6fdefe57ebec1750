"""Prices as data: a backbone declares the matrix products it executes, and everything else is computed from that list.

Convention (ECCBench, Appendix C.2; design page "FLOPs"): a product (m x k)(k x n) costs 2 m k n. Softmax, norms,
activations, gates, decays, rotary encoding, residual sums and embedding look-ups cost nothing. An outer product written
into a state is a matmul with inner dimension 1. The recurrence or the cached form is priced, never the chunk form, and
`T = L + 1` tokens are charged: the stream and one query, one query per stream.

Four kinds of term:

    weight   a parameter matrix used once per token: its FLOPs are 2 x its number of entries (a test holds it to that)
    rerun    a parameter matrix used again in the same token: its entries are counted elsewhere
    state    a product with running state, no parameters
    pair     once per query-key pair instead of once per token

Letters: T tokens, L stream length, D width. A matrix product is written (m x k)(k x n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

Kind = Literal["weight", "rerun", "state", "pair"]
Status = Literal["given", "derived", "assumed"]


# ---- how often a term is executed over the first T tokens -----------------------------------------------------------
def written(formula: str) -> Callable[[Callable[[int], int]], Callable[[int], int]]:
    """Decorator of a rule `T -> executions over the first T tokens`: how the rule is printed."""

    def mark(rule: Callable[[int], int]) -> Callable[[int], int]:
        rule.formula = formula
        return rule

    return mark


@written("T")
def per_token(T: int) -> int:
    """Once for every token."""
    return T


@written("T (T + 1) / 2")
def causal_pairs(T: int) -> int:
    """Pairs when each token sees itself and everything before it."""
    return T * (T + 1) // 2


@written("T (T - 1) / 2")
def strict_pairs(T: int) -> int:
    """Pairs when each token sees only what came before it."""
    return T * (T - 1) // 2


@cache
def windowed_pairs(window: int) -> Callable[[int], int]:
    """Pairs when each token sees itself and the `window` tokens before it (ECCBench, Appendix C.2, P_W)."""

    @written(f"P_{window}(T)")
    def count(T: int) -> int:
        full = min(T, window + 1)
        return full * (full + 1) // 2 + (T - full) * (window + 1)

    return count


@dataclass(frozen=True)
class Term:
    """One matrix product of the step form.

    Args:
        label: what it is, in words of the paper.
        kind: see the module docstring.
        shape: (m, k, n) of the product (m x k)(k x n).
        times: how many such products one execution makes (heads, say).
        count: executions over the first T tokens.
        status: given by the paper, derived from its settings, or assumed where the paper is silent.
        layer: the layer that it belongs to, 0 at the bottom; `stack` fills it in.
    """

    label: str
    kind: Kind
    shape: tuple[int, int, int]
    times: int = 1
    count: Callable[[int], int] = per_token
    status: Status = "derived"
    layer: int | None = None

    @property
    def flops(self) -> int:
        """FLOPs of one execution."""
        m, k, n = self.shape
        return 2 * m * k * n * self.times

    @property
    def weights(self) -> int:
        """Parameters behind the term: a weight is used once per execution, so half its FLOPs."""
        return self.flops // 2 if self.kind == "weight" else 0

    def total(self, T: int) -> int:
        """FLOPs over the first T tokens."""
        return self.flops * self.count(T)

    def at(self, token: int) -> int:
        """FLOPs of the token-th token alone, counted from 1."""
        return self.flops * (self.count(token) - self.count(token - 1))

    @property
    def formula(self) -> str:
        """How its executions over T tokens are written."""
        return getattr(self.count, "formula", "n(T)")

    def __str__(self) -> str:
        return f"{self.label}: {write_product(self.shape, self.times)}"


def write_product(shape: tuple[int, int, int], times: int = 1) -> str:
    """`3 x (1 x 64)(64 x 64)`."""
    m, k, n = shape
    return f"{times} x ({m} x {k})({k} x {n})" if times != 1 else f"({m} x {k})({k} x {n})"


@dataclass(frozen=True)
class Price:
    """The cost of a memory, from its terms. Lengths are in stream tokens, results in FLOPs.

    Args:
        terms: the matrix products of all layers.
        source: declared as a closed form, or counted because there is none (`flops.count.counted_price`).
        note: what a counted price knows and what it extrapolates.
    """

    terms: tuple[Term, ...]
    source: Literal["declared", "counted"] = "declared"
    note: str = ""

    def total(self, T: int) -> int:
        """One causal pass over T tokens; the paper's number for a stream of L is `total(L + 1)`."""
        return sum(term.total(T) for term in self.terms)

    def write(self, L: int) -> int:
        """F_w: the stream's L tokens."""
        return self.total(L)

    def read(self, L: int) -> int:
        """F_r: one query token after L stream tokens."""
        return self.total(L + 1) - self.total(L)

    def amortised(self, L: int, queries: int) -> float:
        """FLOPs per answer when each stream serves `queries` queries: F_w / q + F_r."""
        if queries < 1:
            raise ValueError(f"queries={queries}: a stream serves at least one query")
        return self.write(L) / queries + self.read(L)

    @property
    def weights(self) -> int:
        """Parameters that act as matrices."""
        return sum(term.weights for term in self.terms)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Labels of the terms on which the paper is silent."""
        return tuple(dict.fromkeys(term.label for term in self.terms if term.status == "assumed"))

    def table(self, L: int) -> list[dict[str, Any]]:
        """The terms as rows, equal terms of several layers in one, over the L + 1 tokens of a stream and one query.

        Returns:
            Rows of label, layers, kind, status, shape, times, executions (a formula in T), flops (all layers together)
            and share of the total.
        """
        T, rows = L + 1, {}
        total = self.total(T)
        for term in self.terms:
            key = replace(term, layer=None, count=term.formula), term.count(T)
            row = rows.setdefault(
                key,
                {
                    "label": term.label,
                    "layers": [],
                    "kind": term.kind,
                    "status": term.status,
                    "shape": term.shape,
                    "times": term.times,
                    "executions": term.formula,
                    "flops": 0,
                },
            )
            row["layers"].append(term.layer)
            row["flops"] += term.total(T)
        return [{**row, "share": row["flops"] / total if total else 0.0} for row in rows.values()]


# ---- terms that many backbones share ---------------------------------------------------------------------------------
def linear(label: str, d_in: int, d_out: int, *, times: int = 1, kind: Kind = "weight", status: Status = "derived",
           count: Callable[[int], int] = per_token) -> Term:  # fmt: skip
    """A projection d_in -> d_out of one token: 2 d_in d_out."""
    return Term(label, kind, (1, d_in, d_out), times, count, status)


def depthwise_conv(label: str, channels: int, width: int = 4, *, times: int = 1, kind: Kind = "weight",
                   status: Status = "derived") -> Term:  # fmt: skip
    """A causal depthwise convolution: one `width`-tap dot product per channel (8 per channel at width 4)."""
    return Term(label, kind, (channels, width, 1), times, per_token, status)


def state_write(label: str, heads: int, d_k: int, d_v: int, status: Status = "derived") -> Term:
    """The outer product k v^T of every head: a matmul with inner dimension 1."""
    return Term(label, "state", (d_k, 1, d_v), heads, per_token, status)


def state_read(label: str, heads: int, d_k: int, d_v: int, status: Status = "derived") -> Term:
    """A vector of d_k times a d_k x d_v state, in every head."""
    return Term(label, "state", (1, d_k, d_v), heads, per_token, status)


def attention_pairs(label: str, width: int, count: Callable[[int], int], status: Status = "derived") -> list[Term]:
    """Scores and values of one query-key pair over all heads: 2 D each."""
    return [
        Term(f"{label}: scores", "pair", (1, width, 1), 1, count, status),
        Term(f"{label}: values", "pair", (1, 1, width), 1, count, status),
    ]


def stack(layers: Iterable[Iterable[Term]]) -> Price:
    """The price of layers on top of each other."""
    return Price(tuple(replace(term, layer=i) for i, layer in enumerate(layers) for term in layer))
