"""Counting what runs: the half of `flops` that needs torch, and that the closed forms are checked against.

    count(fn, *args)           the matrix products that any callable executes, and those that it hides from counters
    tie(memory, positions)     is what a memory declares what its step executes, token by token and weight by weight?
    counted_price(memory)      a price for a memory that declares none

The step form is counted: one token, batch 1. Fast forms (chunks, scans, fused attention, Triton) do other work for the
same result and are never counted.
"""

from .fit import counted_price
from .products import Count, Product, count
from .tie import EDGES, Tie, tie

__all__ = ["EDGES", "Count", "Product", "Tie", "count", "counted_price", "tie"]
