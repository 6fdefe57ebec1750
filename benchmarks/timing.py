"""Timing that survives a busy machine: process CPU time, competitors in turn, medians and quartiles, ratios only."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from backbones.version import code_version


@dataclass(frozen=True)
class Timing:
    """Seconds of CPU time per call, over rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, over the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def in_turn(calls: dict[str, Callable[[], object]], rounds: int = 7, repeats: int = 3) -> dict[str, Timing]:
    """Time each call `repeats` times in every round, A B C A B C ..., after one uncounted round."""
    seconds = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(repeats):
                call()
            if number:
                seconds[name].append((time.process_time() - start) / repeats)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def matmul_peak(size: int = 1024, seconds: float = 0.5) -> float:
    """FLOP/s of a large float32 product with the current number of threads, as a yardstick."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        a @ b
        calls += 1
    return 2 * size**3 * calls / (time.perf_counter() - start)


def machine() -> str:
    """What the numbers were measured on, in one line."""
    return (
        f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"Python {platform.python_version()}, code {code_version()}"
    )


def table(header: list[str], rows: list[list[object]]) -> str:
    """Tab-separated text."""
    return "\n".join("\t".join(str(cell) for cell in row) for row in [header, *rows])
