"""Hydra glue: known names, a preset that fits the machine, exit code 2 for usage errors, and the name of a run.

Unknown settings stop here, before data or weights: every backbone's settings are in the configuration with their
defaults, so `backbone.layer.<setting>=...` needs no `+` and a typo is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from backbones import available, lookup
from backbones.run import RunError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
NOT_IDENTITY = (
    "name", "outputs", "resume", "logger", "threads", "workers", "device", "devices", "minutes", "plugins", "sweep"
)  # fmt: skip
"""Settings that change how a run is executed or shown, not what it computes."""

DEFAULT_TRAINING = {"lr": {"cpu": 3e-3, "paper": 6e-4}, "batch_size": {"cpu": 16, "paper": 64}}
"""For a backbone without a YAML file of its own."""


PRINTING = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version"}
"""Options of Hydra that print something and run nothing."""


class UsageError(ValueError):
    """A command that cannot be carried out as given; the message says what to write instead."""


def value_of(argv: list[str], key: str) -> str | None:
    """The last `key=value` on the command line."""
    found = [arg.split("=", 1)[1] for arg in argv if arg.split("=", 1)[0] in (key, "+" + key) and "=" in arg]
    return found[-1] if found else None


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules, from the working directory too, so that what they register is known.

    Raises:
        UsageError: one of them does not import; the message has its error.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise UsageError(f"plugins: {module} failed to import: {error!r}") from error


def register_backbones() -> None:
    """Make every registered backbone a choice of the group `backbone`, with all its settings and their defaults."""
    store = ConfigStore.instance()
    for name in available():
        entry = lookup(name)
        settings = dataclasses.asdict(entry.layer.Config(**entry.defaults))
        node = {"name": name, "layer": settings, **DEFAULT_TRAINING}
        store.store(group="backbone/schema", name=name, node=node)
        if not (CONFIGS / "backbone" / f"{name}.yaml").exists():
            store.store(group="backbone", name=name, node=node)


def files_of(group: str) -> list[str]:
    """Names of the YAML files of a group."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def choices() -> str:
    """The groups of train.py with their choices, one a line: what `--help` shows."""
    defaults = OmegaConf.load(CONFIGS / "train.yaml").defaults
    groups = [group for default in defaults if isinstance(default, DictConfig) for group in default]
    known = {group: files_of(group) for group in groups if "/" not in group} | {"backbone": available()}
    return "\n".join(f"  {group}: {', '.join(names)}" for group, names in known.items())


OmegaConf.register_new_resolver("choices", choices, replace=True)


def check_names(argv: list[str]) -> None:
    """Stop at an unknown backbone, preset, launcher, sweep or memory with the known names, and at a launcher that is
    not installed with the line that installs it."""
    groups = {group: files_of(group) for group in ("preset", "launcher", "sweep", "memory")} | {"backbone": available()}
    for key, known in groups.items():
        for name in (value_of(argv, key) or "").split(","):
            if name and name not in known:
                near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
                hint = f" Did you mean {' or '.join(near)}?" if near else ""
                raise UsageError(f"no {key} is called {name!r}.{hint} Known: {', '.join(known)}.")
    launcher = value_of(argv, "launcher") or ""
    package = {"submitit": "hydra_plugins.hydra_submitit_launcher", "ray": "ray"}.get(launcher.split("_")[0])
    if package and not _installed(package):
        raise UsageError(f"launcher={launcher} needs {package}: pip install 'ecclab[cluster]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False


def check_settings(argv: list[str], config: str) -> None:
    """Stop at a setting that does not exist, with near ones: Hydra's own advice would be to add the typo."""
    given = [arg.split("=", 1)[0] for arg in argv if "=" in arg and arg[0] not in "-+~"]
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    chosen = [arg for arg in argv if arg.split("=", 1)[0] in groups and "=" in arg and "," not in arg]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        known = list(settings_of(OmegaConf.to_container(compose(config, chosen), resolve=False)))
    GlobalHydra.instance().clear()
    for key in given:
        if key not in known and key not in groups and not key.startswith(("hydra.", "hydra/")):
            near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"there is no setting {key!r}.{hint} --help lists them all.")


def settings_of(tree: dict[str, Any], above: str = "") -> Iterator[str]:
    """Dotted names of all settings, those of whole groups included."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from settings_of(value, f"{above}{key}.")


def preset_for_machine() -> str:
    return "paper" if torch.cuda.is_available() else "cpu"


def find_code_in_child_processes() -> None:
    """Processes that a launcher starts import this code, whether or not it is installed, from any working directory."""
    paths = [str(CONFIGS.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def explain_preset(preset: str) -> str:
    where, other = ("a CUDA device", "cpu") if preset == "paper" else ("no CUDA device", "paper")
    return f"preset={preset} is the default here ({where}; preset={other} forces the other)"


def run_hydra(script: Callable[[DictConfig], None], config: str) -> None:
    """Run an entry script under Hydra; a usage error is one message and exit code 2."""
    argv, started = sys.argv[1:], []
    if hasattr(signal, "SIGPIPE") and PRINTING & {arg.split("=", 1)[0] for arg in argv}:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` ends quietly, like any other tool
    preset = None
    if config == "train" and value_of(argv, "preset") is None and value_of(argv, "sweep") in (None, "none"):
        preset = preset_for_machine()

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config)
    def main(cfg: DictConfig) -> None:
        if preset and not started and os.environ.get("LOCAL_RANK", "0") == "0":
            print(explain_preset(preset))
        started.append(True)
        try:
            import_plugins(cfg.plugins)  # a launcher may have brought this function to a new process
            script(cfg)
        except (UsageError, RunError) as error:
            sys.exit(_fail(error))
        except KeyboardInterrupt:
            print("\nstopped; the same command continues", file=sys.stderr)
            sys.exit(130)

    find_code_in_child_processes()
    try:
        import_plugins(
            name.strip() for name in (value_of(argv, "plugins") or "").strip("[]").split(",") if name.strip()
        )
        register_backbones()
        check_names(argv)
        check_settings(argv, config)
        if preset:
            sys.argv.insert(1, f"preset={preset}")  # before any --option
        main()
    except UsageError as error:
        sys.exit(_fail(error))
    except SystemExit as stop:
        sys.exit(2 if stop.code == 1 and not started else stop.code)


def _fail(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


def pick(table: Any, preset: str, width: int) -> Any:
    """A value for a preset and width: a scalar, or a table by preset, by width (the nearest is taken), or by both."""
    if isinstance(table, DictConfig | dict) and {"paper", "cpu"} <= {*table}:
        table = table["paper" if preset == "paper" else "cpu"]
    if isinstance(table, DictConfig | dict):
        table = table[min(table, key=lambda listed: abs(int(listed) - width))]
    return table


def resolve(cfg: DictConfig) -> DictConfig:
    """Fill what depends on preset and width: learning rate and batch size, given or the backbone's, and its layer."""
    cfg = cfg.copy()
    for key in ("d", "depth", "seed"):
        if not isinstance(cfg[key], int):
            raise UsageError(f"{key}={cfg[key]}: a whole number is needed")
    for key in ("lr", "batch_size"):
        table = cfg.backbone[key] if cfg[key] is None else cfg[key]
        cfg[key] = pick(table, cfg.preset, cfg.d)
    for key, table in cfg.backbone.layer.items():
        cfg.backbone.layer[key] = pick(table, cfg.preset, cfg.d)
    return cfg


def identity(cfg: DictConfig) -> dict[str, Any]:
    """What a run computes, without how it is executed."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    kept = {key: value for key, value in plain.items() if key not in NOT_IDENTITY}
    kept["backbone"] = {key: value for key, value in kept["backbone"].items() if key in ("name", "layer")}
    return kept


def run_name(cfg: DictConfig) -> str:
    """`<backbone>-d<width>-<preset>-s<seed>-<digest>`: the same command finds its run again."""
    if cfg.name:
        return str(cfg.name)
    digest = hashlib.sha256(json.dumps(identity(cfg), sort_keys=True).encode()).hexdigest()[:6]
    return f"{cfg.backbone.name}-d{cfg.d}-{cfg.preset}-s{cfg.seed}-{digest}"


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Settings in which two configurations differ, as `key: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new}, key=str)
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path}: {old} -> {new}"]
