"""Inverse of a unit lower triangular matrix, many small ones at a time, by forward substitution.

The delta rule's inside of a chunk is such a system. Powers of the matrix (a Neumann series, or its doubling product)
would be faster still and wrong: keys repeat in a stream of few symbols, and the terms then grow like binomials before
they cancel (an error of 1e+32 in float32 at 64 near-identical keys, where substitution keeps 5e-7).
"""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 16
"""Size up to which substitution is done entry by entry; beyond it, block by block with matrix products."""


def unit_lower_inverse(a: Tensor) -> Tensor:
    """`(I + a)^-1` for strictly lower triangular `a`, `[G, C, C]`; contiguous. For callers with their own backward."""
    if a.device.type != "cpu":
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        return torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
    size = a.shape[-1]
    if size <= BASE:
        return _substitute(a)
    top = size // 2
    inverse = torch.zeros_like(a)
    if 2 * top == size:  # Both diagonal blocks at once.
        corners = unit_lower_inverse(torch.cat([a[:, :top, :top], a[:, top:, top:]]))
        first, last = corners.chunk(2)
    else:
        first, last = (
            unit_lower_inverse(a[:, :top, :top].contiguous()),
            unit_lower_inverse(a[:, top:, top:].contiguous()),
        )
    inverse[:, :top, :top], inverse[:, top:, top:] = first, last
    inverse[:, top:, :top] = torch.bmm(last, torch.bmm(a[:, top:, :top], first)).neg_()
    return inverse


def _substitute(a: Tensor) -> Tensor:
    """Row j, once final, is subtracted from all rows below it: for all matrices in one vector operation."""
    count, size = a.shape[:2]
    a = a.reshape(count, size * size).t().contiguous().view(size, size, count)
    inverse = torch.zeros_like(a)
    inverse.diagonal(dim1=0, dim2=1).fill_(1)
    for j in range(size - 1):
        inverse[j + 1 :, : j + 1].addcmul_(a[j + 1 :, j, None], inverse[None, j, : j + 1], value=-1)
    return inverse.view(size * size, count).t().contiguous().view(count, size, size)
