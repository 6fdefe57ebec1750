"""Short strings of symbols as numbers, on tensors: what the memories with no learning count, hash and look up.

Letters: B streams, L symbols, Q queries, k symbols per gram.
"""

from __future__ import annotations

import torch

from tasks.batch import MAX_CANDIDATE, PAD, VOCABULARY


def grams(symbols: torch.Tensor, k: int) -> torch.Tensor:
    """All k-grams [..., L - k + 1] of symbols [..., L] as base-16 numbers."""
    if symbols.shape[-1] < k:
        return symbols[..., :0]
    weights = VOCABULARY ** torch.arange(k - 1, -1, -1, device=symbols.device)
    return (symbols.unfold(-1, k, 1) * weights).sum(-1)


def candidate_grams(candidates: torch.Tensor, lengths: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k-grams of candidates [B, Q, 6 - k + 1], and which of them are there (not padding)."""
    found = grams(candidates.masked_fill(candidates == PAD, 0), k)
    return found, torch.arange(found.shape[-1], device=found.device) <= lengths[..., None] - k


def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """table[b, at[b, ...]] for a table [B, N] and places [B, ...]."""
    return table.gather(1, at.flatten(1)).view(at.shape)


def tail_of(symbols: torch.Tensor, count: int) -> torch.Tensor:
    """The last `count` symbols [B, at most count] of [B, L]: the beginnings of grams still to come."""
    return symbols[:, max(symbols.shape[1] - count, 0) :]


def occurs(candidates: torch.Tensor, lengths: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
    """Whether each candidate [B, Q, 6] of length [B, Q] is a window of symbols [B, L]: bool [B, Q]."""
    padded = torch.nn.functional.pad(symbols, (0, MAX_CANDIDATE - 1), value=-1)  # no symbol is -1: windows end in x
    match = torch.ones((*lengths.shape, symbols.shape[1]), dtype=torch.bool, device=symbols.device)  # [B, Q, start]
    for place in range(MAX_CANDIDATE):
        shifted = padded[:, None, place : place + symbols.shape[1]]
        match &= (shifted == candidates[..., place, None]) | (place >= lengths)[..., None]
    return match.any(-1)
