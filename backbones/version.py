"""Which code made a number."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def code_version() -> str:
    """The package's version and, in a checkout, its commit."""
    released = version("ecclab")
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return released
    return f"{released}+{done.stdout.strip()}"
