"""The package around the operators: what importing it loads, and what `explain` says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernels
from kernels import explain
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


def test_explain_names_the_form_and_the_reason():
    line = explain("linear_recurrence", gate="channel", erase="low rank")
    assert line == "linear_recurrence: chunk (cpu; gate per channel, low rank erase, 16 tokens at a time)"
    assert explain(kernel="reference", gate="none").endswith("(cpu; no gate, no erase, token by token)")
    assert explain("attention", device="cuda") == "attention: sdpa (cuda)"


@pytest.mark.parametrize("operator", _OPERATORS)
def test_every_form_can_be_asked_for_and_no_other(operator):
    for form in _OPERATORS[operator]:
        assert f"{operator}: {form} " in explain(operator, kernel=form)
    with pytest.raises(ValueError, match=f"{operator} has no kernel 'triton'; choose from auto, "):
        explain(operator, kernel="triton")


def test_explain_knows_its_operators():
    with pytest.raises(ValueError, match="choose from attention"):
        explain("atention")
