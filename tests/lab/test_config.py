"""Commands: what they resolve to, and what a mistake prints. Usage errors end with exit code 2."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from backbones import available, callbacks
from backbones.run import Run
from lab.config import differences, pick, preset_for_machine, register_backbones, resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def resolved(run_script):
    """The configuration that a command resolves to."""

    def resolve(*arguments: str) -> dict:
        code, out, err = run_script("train.py", *arguments, "--cfg", "job")
        assert code == 0, err
        return yaml.safe_load(out)

    return resolve


@pytest.mark.parametrize("arguments", [(), ("backbone=gru", "d=128")])
def test_without_a_cuda_device_the_preset_is_cpu(resolved, arguments):
    assert resolved(*arguments)["preset"] == ("paper" if torch.cuda.is_available() else "cpu")


def test_the_paper_preset_is_the_papers(resolved):
    """ECCBench, Appendix C.1 and Table 11 (the values that hold for every backbone)."""
    cfg = resolved("preset=paper", "backbone=transformer_conv")
    assert cfg["depth"] == 3
    assert cfg["precision"] == "bf16-mixed"
    assert cfg["task"]["vocabulary"] == 16
    assert cfg["task"]["candidate_lengths"] == [3, 4, 5, 6]
    schedule = cfg["schedule"]
    assert schedule["streams"] == 500_000
    assert schedule["held_out"] == 0.05
    assert schedule["queries"] == 32
    assert schedule["epochs"] == 125
    assert (schedule["lengths"]["first"], schedule["lengths"]["last"]) == (32, 1024)
    assert cfg["optimiser"]["warmup"] == 0.01
    assert cfg["stop"] == {"metric": "val/accuracy", "at": 0.97}
    assert cfg["minutes"] == 36 * 60


TABLE_11 = {
    "transformer_rope": {"head_dim": 16, "ffn_ratio": 1.0, "position": "rope", "conv": 0},
    "transformer_conv": {"head_dim": 16, "ffn_ratio": 1.0, "position": "none", "conv": 4},
    "transformer_nope": {"head_dim": 16, "ffn_ratio": 1.0, "position": "none", "conv": 0},
    "gru": {"residual": False},
}


@pytest.mark.parametrize("name", TABLE_11)
def test_table_11(resolved, name):
    layer = resolved("preset=paper", f"backbone={name}", "d=128")["backbone"]["layer"]
    assert {key: layer[key] for key in TABLE_11[name]} == TABLE_11[name]


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_rates_and_batches_lie_in_the_papers_ranges(name, preset):
    table = yaml.safe_load((ROOT / "configs" / "backbone" / f"{name}.yaml").read_text())
    assert table["name"] == name
    for width in (64, 128):
        rate, batch = pick(table["lr"], preset, width), pick(table["batch_size"], preset, width)
        if preset == "paper":
            assert 2e-4 <= rate <= 7e-4
            assert 12 <= batch <= 128
        else:
            assert 0 < rate <= 3e-2
            assert batch >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("backbone=nope",), "no backbone is called 'nope'. Did you mean"),
        (("preset=fast",), "no preset is called 'fast'"),
        (("stepz=64",), "there is no setting 'stepz'"),
        (("schedule.stepz=64",), "there is no setting 'schedule.stepz'. Did you mean schedule.steps"),
        (("backbone.layer.hed_dim=8",), "Did you mean backbone.layer.head_dim"),
        (("d=abc",), "d=abc: a whole number is needed"),
        (("d=72", "backbone=transformer_rope"), "width 72 is not divisible by head_dim 16"),
        (("schedule.max_length=0", "preset=smoke"), "max_length=0"),
        (("schedule.max_length=40", "preset=smoke"), "max_length=40 must be a multiple of min_length=16"),
        (("task.candidate_lengths=[3,40]", "preset=smoke"), "40"),
        (("validation.lengths=[4]", "preset=smoke"), "4"),
        (("device=tpu",), "device=tpu: choose auto, cpu or cuda"),
        (("lr=-1",), "lr=-1: a learning rate is positive"),
        (("logger.wandb=maybe", "preset=smoke"), "logger.wandb=maybe: choose auto, online, offline or off"),
        (("plugins=[no_such_module]",), "plugins: no_such_module failed to import"),
        (("depth=0",), "both must be at least 1"),
        (("launcher=slurm",), "no launcher is called 'slurm'. Did you mean"),
        (("sweep=papre",), "no sweep is called 'papre'. Did you mean paper"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_usage_errors(run_script, tmp_path, arguments, message):
    code, _, err = run_script("train.py", f"outputs={tmp_path}", *arguments)
    assert code == 2, f"exit code {code}: {err}"
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*/checkpoints")), "a usage error must not start a run"


def test_a_usage_error_ends_the_process_with_2(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "backbone=nope"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no backbone is called 'nope'. Did you mean")
    assert all(name in done.stderr for name in available())


def test_help_names_the_choices(run_script):
    _, text, _ = run_script("train.py", "--help")
    assert all(name in text for name in available())
    assert "python train.py backbone=mamba2 d=128" in text
    assert "schema" not in text, "an internal group is listed"
    assert "launcher: local, ray, submitit_local, submitit_slurm" in text
    assert "python evaluate.py run=outputs/<run>" in run_script("evaluate.py", "--help")[1]


def test_help_into_head_ends_quietly(tmp_path):
    """A reader that closes the pipe early: no traceback, and the signal that any other tool would end with."""
    command = [sys.executable, str(ROOT / "train.py"), "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(120) == -signal.SIGPIPE


TINY = ("preset=smoke", "backbone=gru", "d=16", "schedule.steps=2", "validation.every=1", "validation.lengths=[16]",
        "logger=csv", "threads=1", "device=cpu")  # fmt: skip


def test_the_preset_is_explained_only_where_it_was_chosen_for_you(run_script, tmp_path):
    code, out, err = run_script("train.py", f"outputs={tmp_path}", *TINY)
    assert code == 0, err
    assert "preset=smoke: 2 steps" in out
    assert "is the default here" not in out
    _, out, _ = run_script("train.py", f"outputs={tmp_path}", *TINY[1:], "schedule.max_length=16", "name=chosen")
    assert f"preset={preset_for_machine()} is the default here" in out


def test_a_resumed_run_reads_its_checkpoint_once(run_script, tmp_path, monkeypatch):
    assert run_script("train.py", f"outputs={tmp_path}", "name=run", *TINY)[0] == 0
    Run(tmp_path / "run").write_record(status="training")
    read, load = [], callbacks.load_checkpoint
    monkeypatch.setattr(callbacks, "load_checkpoint", lambda path, *rest: read.append(path) or load(path, *rest))
    code, out, err = run_script("train.py", f"outputs={tmp_path}", "name=run", *TINY)
    assert code == 0, err
    assert "resuming at step 2" in out
    assert len(read) == 1


def test_a_damaged_checkpoint_says_what_to_do(run_script, tmp_path):
    assert run_script("train.py", f"outputs={tmp_path}", "name=run", *TINY)[0] == 0
    run = Run(tmp_path / "run")
    run.write_record(status="training")
    run.last.write_bytes(b"no checkpoint")
    code, _, err = run_script("train.py", f"outputs={tmp_path}", "name=run", *TINY)
    assert code == 2
    assert "Delete the file to start this run again" in err


def test_a_launcher_that_is_not_installed_says_how_to_install_it(run_script, monkeypatch):
    monkeypatch.setattr("lab.config._installed", lambda module: False)
    code, _, err = run_script("train.py", "-m", "launcher=ray", "d=16,32")
    assert code == 2
    assert "launcher=ray needs ray: pip install 'ecclab[cluster]'" in err


def test_picking_by_width_takes_the_nearest():
    assert pick({"cpu": 3e-3, "paper": {64: 1.0, 128: 2.0}}, "paper", 96) in (1.0, 2.0)
    assert pick({"cpu": 3e-3, "paper": {64: 1.0, 128: 2.0}}, "paper", 120) == 2.0
    assert pick({"cpu": 3e-3, "paper": 1.0}, "smoke", 64) == 3e-3
    assert pick({64: 1.0, 128: 2.0}, "smoke", 128) == 2.0
    assert pick(0.5, "paper", 64) == 0.5


@pytest.mark.parametrize(
    ("given", "mini_batch"),
    [(["preset=cpu"], 32), (["preset=smoke"], 32), (["preset=paper"], None), (["backbone.layer.mini_batch=64"], 64)],
)
def test_a_setting_of_the_layer_may_depend_on_the_preset(given, mini_batch):
    register_backbones()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = resolve(compose("train", ["backbone=ttt_mlp", *given]))
    assert cfg.backbone.layer.mini_batch == mini_batch


def test_differences_name_the_setting():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["a.c: 2 -> 3"]
