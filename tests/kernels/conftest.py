"""Uninitialised memory is NaN during the kernels' tests: a buffer that is not fully written shows."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_in_empty():
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns
    yield
    torch.use_deterministic_algorithms(False)
