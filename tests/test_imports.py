"""The direction of imports, as the design draws it: nothing imports upwards and there are no circles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "kernels": set(),
    "flops": set(),
    "tasks": set(),
    "scoring": set(),
    "backbones": {"kernels", "flops"},
    "vlms": {"tasks", "flops"},
    "lab": {"backbones", "flops", "kernels", "scoring", "tasks", "vlms"},
}
OURS = {*ALLOWED, "train", "evaluate", "benchmarks", "tests"}


def imported(path: Path) -> set[str]:
    """Top-level names of absolute imports in a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_nothing_imports_upwards(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name == "__main__.py":
            continue  # an entry script, free to join packages
        wrong = (imported(path) & OURS) - ALLOWED[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_kernels_need_torch_only():
    allowed = {"torch", "kernels", "triton", "__future__"}
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        outside = imported(path) - allowed
        assert not outside - set(__import__("sys").stdlib_module_names), f"{path.name} imports {outside}"


def test_scoring_needs_no_torch():
    for path in sorted((ROOT / "scoring").rglob("*.py")):
        assert not imported(path) & {"torch", "lightning", "torchmetrics"}, path.name
