"""Decay inside a chunk: how much of token j is left when token i reads it.

With `c` the running sum of the log decays inside a chunk, token i sees token j through `exp(c_i - c_j)`, `i >= j`.
Each class here computes the products of rows and columns under that weight in its own way. None ever exponentiates a
positive number that could overflow, and masked entries are removed before `exp`: removed afterwards, an infinity
would turn into NaN in the backward pass.

Letters: `B` batch, `H` heads (1 if shared), `N` chunks, `C` tokens of a chunk, `K` key dim.
"""

from __future__ import annotations

import torch
from torch import Tensor


class NoDecay:
    """`exp(c_i - c_j) = 1`."""

    def __init__(self, key_dim: int, like: Tensor):
        self.total = like.new_ones(1, 1, 1, 1, 1)

    def scores(self, rows: Tensor, columns: Tensor, *, strict: bool = False, before: bool = False) -> Tensor:
        """`[.., C, C]`: row i times column j under their decay, zero for `j > i` (or `j >= i` if strict).

        `before`: the rows read the state of the token before them, so their own token's decay is left out.
        """
        return (rows @ columns.transpose(-1, -2)).tril(-1 if strict else 0)

    def from_start(self, rows: Tensor, *, before: bool = False) -> Tensor:
        """Rows under the decay since the chunk's start, ready to read the state that entered."""
        return rows

    def to_end(self, columns: Tensor) -> Tensor:
        """Columns under the decay up to the chunk's end, ready to be written into the state that leaves."""
        return columns


class HeadDecay(NoDecay):
    """One decay per head and token: a weight for each pair."""

    def __init__(self, log_decay: Tensor):
        """`log_decay`: `[B, H, N, C]`; batch 1 if it is the same for every stream."""
        self.c = log_decay.cumsum(-1)
        self.own = log_decay
        self.total = self.c[..., -1:, None].exp()

    def scores(self, rows, columns, *, strict=False, before=False):
        reader = self.c - self.own if before else self.c
        length = self.c.shape[-1]
        visible = torch.ones(length, length, dtype=torch.bool, device=self.c.device).tril(-1 if strict else 0)
        difference = (reader.unsqueeze(-1) - self.c.unsqueeze(-2)).clamp_max(0)
        return (rows @ columns.transpose(-1, -2)) * difference.masked_fill(~visible, -torch.inf).exp()

    def from_start(self, rows, *, before=False):
        return rows * (self.c - self.own if before else self.c).exp().unsqueeze(-1)

    def to_end(self, columns):
        return columns * (self.c[..., -1:] - self.c).exp().unsqueeze(-1)


class ChannelDecay(NoDecay):
    """One decay per channel, factorised: `exp(c_i - r) * exp(r - c_j)` with the reference `r` at the chunk's middle.

    Only for decays whose sum over half a chunk is far from float32's largest exponent, 88: see `PairwiseDecay`.
    """

    def __init__(self, log_decay: Tensor):
        """`log_decay`: `[B, H, N, C, K]`."""
        self.c = log_decay.cumsum(-2)
        self.own = log_decay
        self.middle = self.c[..., self.c.shape[-2] // 2, None, :]
        self.total = self.c[..., -1, :, None].exp()
        self.columns = (self.middle - self.c).exp()

    def _rows(self, rows: Tensor, before: bool) -> Tensor:
        return rows * ((self.c - self.own if before else self.c) - self.middle).exp()

    def scores(self, rows, columns, *, strict=False, before=False):
        product = self._rows(rows, before) @ (columns * self.columns).transpose(-1, -2)
        return product.tril(-1 if strict else 0)

    def from_start(self, rows, *, before=False):
        return rows * (self.c - self.own if before else self.c).exp()

    def to_end(self, columns):
        return columns * (self.c[..., -1:, :] - self.c).exp()


class PairwiseDecay(ChannelDecay):
    """One decay per channel, every pair on its own: right for any decay, at `C` times the work. Wants short chunks."""

    def __init__(self, log_decay: Tensor):
        self.c = log_decay.cumsum(-2)
        self.own = log_decay
        self.total = self.c[..., -1, :, None].exp()

    def scores(self, rows, columns, *, strict=False, before=False):
        reader = self.c - self.own if before else self.c
        length = self.c.shape[-2]
        visible = torch.ones(length, length, 1, dtype=torch.bool, device=self.c.device).tril(0)
        visible = torch.ones(length, length, dtype=torch.bool, device=self.c.device).tril(-1 if strict else 0)
        difference = (reader.unsqueeze(-2) - self.c.unsqueeze(-3)).clamp_max(0)
        weight = difference.masked_fill(~visible.unsqueeze(-1), -torch.inf).exp()  # [.., C, C, K]
        return (rows.unsqueeze(-2) * columns.unsqueeze(-3) * weight).sum(-1)
