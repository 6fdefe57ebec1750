"""Run folders: weights of every backbone survive them, and files are replaced whole or not at all."""

from __future__ import annotations

import json

import pytest
import torch

from backbones import MembershipModel, available, load_memory
from backbones.run import Run, RunError, find_runs, replacing


@pytest.mark.parametrize("name", available())
def test_weights_survive(tmp_path, name):
    run, model = Run(tmp_path / name), MembershipModel(name, 64)
    run.write_record(model={"name": name, "width": 64}, code="test")
    run.save_best(model, step=3, accuracy=0.5)
    for key, tensor in run.load_model().state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key]), key
    assert load_memory(run.path).write([1, 2, 3]).length == 3


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fill_the_disk():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left behind"


def test_the_record_is_merged(tmp_path):
    run = Run(tmp_path)
    run.write_record(status="training", seed=1)
    run.write_record(status="finished")
    assert json.loads(run.record_file.read_text()) == {"format": 1, "seed": 1, "status": "finished"}


def test_patterns_find_run_folders_only(tmp_path):
    (tmp_path / "empty").mkdir()
    Run(tmp_path / "b").write_record()
    Run(tmp_path / "a").write_record()
    assert [run.name for run in find_runs(f"{tmp_path}/*")] == ["a", "b"]
    with pytest.raises(RunError, match="no run folder matches"):
        find_runs(f"{tmp_path}/c*")
