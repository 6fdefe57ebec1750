"""Names of memory systems, and what a mistake prints."""

from __future__ import annotations

import sys

import pytest

from vlms import MemoryFailure, MemorySystem, available, build, lookup, registry


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def test_a_class_is_built_by_its_name(scribe):
    registry.register("scribe")(scribe)
    assert isinstance(build("scribe"), MemorySystem)
    assert "scribe" in available()
    assert lookup("scribe") is scribe


def test_a_taken_name_is_refused(scribe):
    with pytest.raises(ValueError, match=r"the memory name 'server' is taken by 'vlms\.server:Server'"):
        registry.register("server")(scribe)


def test_near_names_are_given():
    with pytest.raises(MemoryFailure, match=r"no memory is called 'sever'\. Did you mean server"):
        build("sever")


def test_an_unknown_setting_is_named(scribe):
    registry.register("scribe")(scribe)
    with pytest.raises(MemoryFailure, match="unexpected keyword argument 'befor'; its settings are before"):
        build("scribe", befor=3)


def test_missing_members_are_named():
    registry.register("half")(type("Half", (), {"name": "half", "read": None}))
    with pytest.raises(
        TypeError, match="lacks architecture, close, concurrency, counts_flops, identity, modalities, open"
    ):
        build("half")


def test_a_missing_extra_is_told_with_its_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "vlms.server", raising=False)
    with pytest.raises(
        MemoryFailure, match=r"memory 'server' needs the extra `vlm`: pip install 'ecclab\[vlm\]'.*openai"
    ):
        build("server", model="m", url="http://127.0.0.1:1/v1")
