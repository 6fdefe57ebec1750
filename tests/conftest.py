"""One thread everywhere: two OpenMP threads on a busy machine are slower than one, and rounding stays reproducible."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from kernels.linear_recurrence import native

ROOT = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a CUDA device; without one they are skipped, with that reason."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def choose_recurrence(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `kernel="auto"` choose this form of the linear recurrence, `"native"` or `"chunk"`."""
    if form == "chunk":
        monkeypatch.setattr(native, "unable", lambda device: "switched off by a test")
    elif reason := native.unable("cpu"):
        pytest.skip(f"the native form cannot run: {reason}")


@pytest.fixture(params=["native", "chunk"])
def recurrence_form(request, monkeypatch) -> str:
    """Runs a test once for each form."""
    choose_recurrence(request.param, monkeypatch)
    return request.param


@pytest.fixture
def run_script(monkeypatch, capsys):
    """Call an entry script in this process: (exit code, standard output, standard error)."""

    def call(script: str, *arguments: str) -> tuple[int, str, str]:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        code = 0
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            GlobalHydra.instance().clear()
        return (code, *capsys.readouterr())

    return call
