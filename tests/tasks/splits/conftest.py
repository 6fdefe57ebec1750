"""Small splits, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.splits.build import build
from tasks.splits.recipes import EasyHumanRecipe, Recipe, TextRecipe, VideoRecipe

RECIPES: dict[str, Recipe] = {
    "text": TextRecipe(seed=3, streams=4, queries=8, lengths=(8, 32)),
    "easyhuman": EasyHumanRecipe(seed=3, streams=8, lengths=(40,), video_lengths=(32,)),
    "video": VideoRecipe(seed=3, streams=4, queries=4, lengths=(8, 32)),
}


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, Path]:
    """{name: folder} of the three splits. Read only: `copied` is for damage."""
    root = tmp_path_factory.mktemp("splits")
    for name, recipe in RECIPES.items():
        build(recipe, root / name)
    return {name: root / name for name in RECIPES}


@pytest.fixture
def copied(built, tmp_path) -> Path:
    """A copy of the text split."""
    return Path(shutil.copytree(built["text"], tmp_path / "copy"))
