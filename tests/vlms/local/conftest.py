"""Toy checkpoints for the local adapter, made once per session."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torchvision")
pytest.importorskip("transformers")

from tests.vlms.tiny import tiny_checkpoint
from vlms.local import LocalModel


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(family, taught=False) -> folder."""

    @cache
    def make(family: str, taught: bool = False):
        return tiny_checkpoint(family, tmp_path_factory.mktemp(family), taught=taught)

    return make


@pytest.fixture(scope="session")
def local(checkpoint):
    """local(family, **settings) -> LocalModel of an untaught toy, 4 tokens of answer unless told otherwise."""

    def load(family: str, **settings):
        return LocalModel(str(checkpoint(family)), **{"max_new_tokens": 4, **settings})

    return load
