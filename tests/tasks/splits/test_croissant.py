"""The metadata is Croissant 1.0: an independent library validates it offline and reads rows through it."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import sys

import pytest

import tasks
from tasks.splits.croissant import REQUIRED, croissant

mlcroissant = pytest.importorskip("mlcroissant")
absl_logging = pytest.importorskip("absl.logging")  # comes with it
# Its log handler would close pytest's capture of stderr, its stream now, at the next configuration of logging.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", ["text", "easyhuman", "video"])
def test_it_validates_and_rows_can_be_read(built, name, offline, caplog):
    with caplog.at_level(logging.WARNING):
        dataset = mlcroissant.Dataset(jsonld=str(built[name] / "croissant.json"))
    assert not caplog.records
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    assert str(dataset.metadata.ctx.conforms_to.value).endswith("croissant/1.0")
    cell = tasks.load(built[name]).cells[-1]
    for record, row in zip(cell.streams(), dataset.records(f"{cell.key}/streams"), strict=True):
        assert row[f"{cell.key}/streams/stream_id"] == record.stream_id.encode()
        assert list(row[f"{cell.key}/streams/symbols"]) == record.symbols.tolist()
    for record, row in itertools.islice(zip(cell.queries(), dataset.records(f"{cell.key}/queries"), strict=True), 5):
        assert row[f"{cell.key}/queries/label"] == record.label
        belts = row[f"{cell.key}/queries/candidate_belts"]
        assert belts is None if record.candidate_belts is None else list(belts) == record.candidate_belts.tolist()


def test_the_library_sees_an_edited_table(copied, offline):
    path = copied / "max-L0032" / "streams.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    dataset = mlcroissant.Dataset(jsonld=str(copied / "croissant.json"))
    with pytest.raises(mlcroissant.GenerationError, match=r"max-L0032/streams.parquet") as refusal:
        next(iter(dataset.records("max-L0032/streams")))
    assert "Hash of downloaded file" in str(refusal.value.__cause__)


def test_required_and_responsible_ai_properties_are_there(built):
    described = json.loads((built["text"] / "croissant.json").read_text())
    responsible = ("Collection", "Biases", "Limitations", "ReleaseMaintenancePlan")
    assert all(described[name] for name in (*REQUIRED, *(f"rai:data{name}" for name in responsible)))
    index = json.loads((built["text"] / "questions.json").read_text())
    with pytest.raises(ValueError, match="without distribution, recordSet"):
        croissant(index, {})
