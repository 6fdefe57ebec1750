"""The package around the operators: what importing it loads, and what `explain` says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernels
from kernels import explain, native
from kernels.explain import _OPERATORS


def test_importing_kernels_loads_torch_and_nothing_heavy():
    """transformers looks for a package of this name; it must find no version, and importing it must cost nothing."""
    probe = (
        "import sys, torch; before = set(sys.modules); import kernels; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert not {"triton", "transformers", "fla", "numpy", "lightning"} & set(loaded)
    assert not hasattr(kernels, "__version__")


def test_explain_names_the_form_and_the_reason(monkeypatch):
    low_rank = {"gate": "channel", "erase": "low rank"}
    chunk = "linear_recurrence: chunk ({}; gate per channel, low rank erase, 16 tokens at a time{})"
    assert explain(**low_rank, kernel="chunk") == chunk.format("cpu", "")
    assert explain(**low_rank, device="cuda") == chunk.format("cuda", "")
    assert explain(kernel="reference", gate="none").endswith("(cpu; no gate, no erase, token by token)")
    assert explain("attention", device="cuda") == "attention: sdpa (cuda)"
    large = explain(key_dim=256, value_dim=64)
    assert "chunk (cpu; gate per head, no erase, 32 tokens at a time; not native: " in large
    monkeypatch.setattr(native, "missing", lambda: None)
    assert "state of 256 x 64 is too large" in explain(key_dim=256, value_dim=64)
    monkeypatch.setattr(native, "register_bytes", lambda: 32)
    shared = explain(key_dim=256, value_dim=64, shared_heads=True)
    assert shared == "linear_recurrence: native (cpu; gate per head, no erase, 64 tokens at a time)"
    uneven = explain(key_dim=256, value_dim=40, shared_heads=True)
    assert "state of 256 x 40 is too large to stay in the core, and its sizes are not multiples of 16" in uneven
    assert explain(key_dim=32, value_dim=32, shared_heads=True).endswith(
        "native (cpu; gate per head, no erase, token by token)"
    )
    monkeypatch.setattr(native, "register_bytes", lambda: 16)
    assert "neither AVX2 nor AVX-512" in explain(key_dim=256, value_dim=64, shared_heads=True)
    assert explain(**low_rank) == "linear_recurrence: native (cpu; gate per channel, low rank erase, token by token)"
    monkeypatch.setattr(native, "missing", lambda: "no C compiler: cc is not on the PATH")
    assert explain(**low_rank) == chunk.format("cpu", "; not native: no C compiler: cc is not on the PATH")


@pytest.mark.parametrize("operator", _OPERATORS)
def test_every_form_can_be_asked_for_and_no_other(operator):
    for form in _OPERATORS[operator]:
        if form == "native" and native.missing():
            continue
        assert f"{operator}: {form} " in explain(operator, kernel=form)
    with pytest.raises(ValueError, match=f"{operator} has no kernel 'triton'; choose from auto, "):
        explain(operator, kernel="triton")


def test_explain_knows_gates_and_erases():
    with pytest.raises(ValueError, match="gate='heads', erase='none': choose of none, constant, head, channel and of"):
        explain(gate="heads")


def test_explain_knows_its_operators():
    with pytest.raises(ValueError, match="choose from attention"):
        explain("atention")
