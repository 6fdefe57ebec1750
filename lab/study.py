"""A study: many systems trained, the best training of each chosen, all evaluated on the same questions, one report.

    python -m lab.study experiment=laptop                       # all backbones, as configs/experiment/laptop.yaml says
    python -m lab.study experiment=laptop workers=2             # trainings at a time, one thread each
    python -m lab.study experiment=laptop 'backbones=[gru,gla]' 'trainings=[[seed=0],[seed=1]]'
    python -m lab.study experiment=laptop train=false           # report on what is trained already

Everything runs in processes of its own; trainings are plain `train.py` commands. The same command continues a study
that was killed: a run folder that holds the wanted configuration is used, finished ones as they are, others resumed. A
run that fails stops no other; it is named at the end with the last lines of its log and the command that repeats it.
docs/study.md says how each number is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from backbones import available
from backbones.run import Run, RunError, replacing
from tasks import MembershipConfig
from tasks.memories import MEMORIES

from .config import CONFIGS, UsageError, differences, identity, register_backbones, resolve, run_name
from .evaluation import Plan, Streams, backbone_system, evaluate, references, solver_system
from .jobs import Job, Outcome, run_jobs

ROOT = Path(__file__).resolve().parent.parent
BUSY = 180.0
"""A run that wrote within so many seconds may still be training elsewhere; trainings save at least once a minute."""


@dataclass
class StudyConfig:
    """What `configs/experiment/<name>.yaml` and the command line can set."""

    preset: str = "cpu"
    """Of every training."""
    backbones: list[str] | None = None
    """Which; None for every registered one."""
    widths: list[int] = field(default_factory=lambda: [64])
    """Every backbone at each of these."""
    extras: list[list[str]] = field(default_factory=list)
    """Single systems beside the grid: a backbone's name, then settings of train.py."""
    trainings: list[list[str]] = field(default_factory=lambda: [["seed=0"]])
    """Settings of each training of a system; the best by validation accuracy is kept."""
    more_trainings: dict[str, list[list[str]]] = field(default_factory=dict)
    """Further trainings of one backbone."""
    settings: list[str] = field(default_factory=list)
    """Of train.py, for every training."""
    factors: list[int] = field(default_factory=lambda: [1, 2, 4])
    """Stream lengths of the evaluation, in units of the longest training length."""
    bands: list[str] = field(default_factory=lambda: ["max", "low"])
    query_sets: list[str] = field(default_factory=lambda: ["uniform", "near", "order"])
    streams: int = 200
    """Per band and length."""
    queries: int = 32
    """Per stream and query set."""
    seed: int = 0
    """Of the evaluation's streams and queries."""
    redraws: int = 1000
    """Of the bootstrap over streams."""

    workers: int = 0
    """Processes at a time, of one thread each; 0 for one per core."""
    train: bool = True
    """Whether to train what is missing; otherwise report on what is there."""
    outputs: str = "outputs"
    """Where run folders are."""
    out: str | None = None
    """The study's folder; None is <outputs>/<experiment>."""
    answer: str | None = None
    """A run folder: only let it answer the study's questions."""


@dataclass(frozen=True)
class Training:
    """One training run that the study wants.

    Args:
        system: backbone and what sets it apart from its other systems, e.g. "gru d=128".
        overrides: of train.py.
        cfg: what they compose to.
    """

    system: str
    overrides: tuple[str, ...]
    cfg: DictConfig

    @property
    def steps(self) -> int:
        from .training import schedule_for

        return schedule_for(self.cfg).steps

    def find(self, outputs: Path) -> Run:
        """The folder that holds this configuration, or the one that train.py would make."""
        own = Run(outputs / run_name(self.cfg))
        if own.config.exists():
            return own
        finished = [run for run in self._alike(outputs) if run.record()["status"] == "finished"]
        return finished[0] if finished else next(iter(self._alike(outputs)), own)

    def _alike(self, outputs: Path) -> Iterator[Run]:
        wanted = identity(self.cfg)
        for path in sorted(outputs.glob("*/config.yaml")):
            run = Run(path.parent)
            try:
                if not differences(identity(OmegaConf.load(path)), wanted) and run.record():
                    yield run
            except (OSError, RunError, OmegaConfBaseException, KeyError):
                continue  # not a run folder of this version

    def command(self, run: Run) -> list[str]:
        """The train.py command, which makes the folder or continues it."""
        name = [] if run.name == run_name(self.cfg) else [f"name={run.name}"]
        outputs = [] if str(run.path.parent) == "outputs" else [f"outputs={run.path.parent}"]
        return [sys.executable, str(ROOT / "train.py"), *self.overrides, "threads=1", "logger=csv", *name, *outputs]


def read_config(arguments: Sequence[str]) -> tuple[str, StudyConfig]:
    """The experiment's name and settings.

    Raises:
        UsageError: an unknown experiment or setting, or a value that does not fit.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    name = given.pop("experiment", None)
    known = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
    if name not in known:
        raise UsageError(f"experiment={name}: write experiment=<name>, one of {', '.join(known)}")
    own = [argument for argument in arguments if not argument.startswith("experiment=")]
    if bad := [argument for argument in own if "=" not in argument]:
        raise UsageError(f"{bad[0]!r} is not a setting: write key=value")
    try:
        file = OmegaConf.load(CONFIGS / "experiment" / f"{name}.yaml")
        merged = OmegaConf.merge(OmegaConf.structured(StudyConfig), file, OmegaConf.from_dotlist(own))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        settings = ", ".join(StudyConfig.__dataclass_fields__)
        raise UsageError(f"{str(error).splitlines()[0]} Settings of a study: {settings}") from None
    if unknown := [b for b in config.backbones or [] if b not in available()]:
        raise UsageError(f"no backbone is called {unknown[0]!r}. Known: {', '.join(available())}")
    if config.workers < 0:
        raise UsageError(f"workers={config.workers}: a positive number, or 0 for one per core")
    return name, config


def composed(script: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration that `<script>.py` would make of these overrides.

    Raises:
        UsageError: they do not fit.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose(script, list(overrides))
    except Exception as error:  # Hydra has a dozen
        raise UsageError(f"{script}.py does not understand {' '.join(overrides)}: {error}") from None


def trainings(config: StudyConfig) -> list[Training]:
    """All training runs of a study, system by system."""
    register_backbones()
    systems = [(name, [f"d={width}"]) for width in config.widths for name in config.backbones or available()]
    systems += [(name, more) for name, *more in config.extras if name in (config.backbones or available())]
    found = []
    for name, more in systems:
        for own in [*config.trainings, *config.more_trainings.get(name, [])]:
            overrides = (f"backbone={name}", f"preset={config.preset}", *more, *config.settings, *own)
            found.append(Training(" ".join((name, *more)), overrides, resolve(composed("train", overrides))))
    return found


class Study:
    """A study's folder and what is known of its runs.

    Args:
        arguments: of the command line.
        say: takes the lines about progress.

    Raises:
        UsageError: see `read_config`.
    """

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None] = print):
        self.arguments, self.say = list(arguments), say
        self.name, self.config = name, config = read_config(arguments)
        self.outputs = Path(config.outputs)
        self.path = Path(config.out) if config.out else self.outputs / name
        self.workers = config.workers or os.cpu_count() or 1
        self.failures: list[Outcome] = []

    @cached_property
    def trainings(self) -> list[Training]:
        return trainings(self.config)

    # ---- training ----------------------------------------------------------------------------------------------------
    def train(self) -> None:
        """Train what is not trained yet."""
        jobs, done = [], 0
        for training in self.trainings:
            run = training.find(self.outputs)
            if _finished(run):
                done += 1
            else:
                jobs.append(self._training_job(training, run))
        self.say(
            f"{len(self.trainings)} trainings: {done} finished before, {len(jobs)} to do, {self.workers} at a time"
        )
        jobs.sort(key=lambda job: -(job.seconds_left(1.0) or 0))  # the longest first: none is left alone at the end
        self.failures += [o for o in run_jobs(jobs, self.workers, self.say, ended=self._ended) if o.code]

    def _training_job(self, training: Training, run: Run) -> Job:
        return Job(
            name=f"{training.system} ({run.name})",
            command=training.command(run),
            log=self.path / "logs" / f"train-{run.name}.log",
            work=training.steps,
            progress=lambda: _steps_done(run),
            seconds_per_unit=self._speeds.get(training.system),
            ready=lambda: not self._busy(run),
        )

    @cached_property
    def _speeds(self) -> dict[str, float]:
        """Seconds per step of systems that have been trained here."""
        found = {}
        for training in self.trainings:
            run = training.find(self.outputs)
            if _finished(run):
                record = run.record()
                found[training.system] = 60 * record["minutes"] / max(record["steps"], 1)
        return found

    def _busy(self, run: Run) -> bool:
        """Whether another process seems to be training this run; such a run is left to it."""
        files = [run.record_file, run.path / "metrics.csv", run.last]
        wrote = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
        ended = self._state.get("ended", {}).get(run.name, 0.0)
        return not _finished(run) and wrote > ended and time.time() - wrote < BUSY

    def _ended(self, outcome: Outcome) -> None:
        """Remember that a run's process has ended, so that it is not taken for one that trains elsewhere."""
        name = outcome.job.log.stem.removeprefix("train-")
        self._remember("ended", name, time.time())

    # ---- choosing and evaluating -------------------------------------------------------------------------------------
    def chosen(self) -> dict[str, tuple[Training, Run]]:
        """The best finished training of each system by validation accuracy; the earlier of equals."""
        best: dict[str, tuple[Training, Run]] = {}
        for training in self.trainings:
            run = training.find(self.outputs)
            if not _finished(run):
                continue
            held = best.get(training.system)
            if held is None or run.record()["best_accuracy"] > held[1].record()["best_accuracy"]:
                best[training.system] = (training, run)
        return best

    def plan(self, run: Run) -> Plan:
        """The questions for a run."""
        c, length = self.config, run.record()["trained_length"]
        lengths = tuple(factor * length for factor in c.factors)
        return Plan(
            lengths, tuple(c.bands), tuple(c.query_sets), c.streams, c.queries, c.seed, MembershipConfig()
        )  # fmt: skip

    @property
    def shared(self) -> Path:
        """Where evaluation streams and the answers of memories with nothing to learn are kept, as by evaluate.py."""
        return self.outputs / ".evaluation"

    def answers(self, run: Run) -> Path:
        """Where a run's answers are, under the name that evaluate.py gives them."""
        weights = hashlib.sha256(run.best.read_bytes()).hexdigest()[:8]
        return run.evaluation / f"responses-{self.plan(run).digest}-{weights}.parquet"

    def answer(self, run: Run) -> Path:
        """Let a run answer its questions, in this process; continues what was interrupted."""
        path, plan = self.answers(run), self.plan(run)
        if not path.exists():
            evaluate([backbone_system(run, torch.device("cpu"))], plan, path, Streams(plan, self.shared))
        return path

    def memories(self, run: Run) -> list[Path]:
        """Answers of the memories with nothing to learn to the questions of a run: reference solvers, bounded ones."""
        plan = self.plan(run)
        source, path = Streams(plan, self.shared), self.shared / f"memories-{plan.digest}.parquet"
        if not path.exists():
            evaluate([solver_system(name) for name in MEMORIES], plan, path, source)
        return [references(plan, self.shared, source), path]

    def evaluate(self) -> dict[str, Path]:
        """Response tables of the chosen runs by system; failures are kept for the end."""
        chosen = {system: run for system, (_, run) in self.chosen().items()}
        for run in {self.plan(run).digest: run for run in chosen.values()}.values():
            self.memories(run)  # first: the runs then find the streams made
        jobs = [
            Job(
                f"evaluation of {system}",
                [sys.executable, "-m", "lab.study", *self.arguments, f"answer={run.path}"],
                self.path / "logs" / f"evaluate-{run.name}.log",
            )
            for system, run in chosen.items()
            if not self.answers(run).exists()
        ]
        self.say(f"{len(chosen)} evaluations: {len(jobs)} to do")
        self.failures += [o for o in run_jobs(jobs, self.workers, self.say) if o.code]
        tables = {system: self.answers(run) for system, run in chosen.items()}
        return {system: path for system, path in tables.items() if path.exists()}

    # ---- memory of earlier calls -------------------------------------------------------------------------------------
    @property
    def _file(self) -> Path:
        return self.path / "study.json"

    @cached_property
    def _state(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def _remember(self, what: str, key: str, value: Any) -> None:
        self._state.setdefault(what, {})[key] = value
        with replacing(self._file) as temporary:
            temporary.write_text(json.dumps(self._state, indent=1, sort_keys=True) + "\n")


def _finished(run: Run) -> bool:
    return run.record_file.exists() and run.record()["status"] == "finished" and run.best.exists()


def _steps_done(run: Run) -> int:
    """Optimiser steps so far, from the last complete line of metrics.csv."""
    file = run.path / "metrics.csv"
    if not file.exists():
        return 0
    with open(file, "rb") as opened:
        opened.seek(0, os.SEEK_END)
        opened.seek(max(opened.tell() - 400, 0))
        lines = opened.read().split(b"\n")[:-1]
    steps = [int(line.split(b",")[0]) for line in lines[1:] if line.split(b",")[0].isdigit()]
    return steps[-1] + 1 if steps else 0


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return 0 if arguments else 2
    torch.set_num_threads(1)
    try:
        study = Study(arguments, say=_say)
        if study.config.answer:
            study.answer(Run(Path(study.config.answer)))
            return 0
        if study.config.train:
            study.train()
        from .study_report import write_report

        tables = study.evaluate()
        if tables:
            write_report(study, tables)
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command continues", file=sys.stderr)
        return 130
    return conclusion(study, tables)


def conclusion(study: Study, tables: dict[str, Path]) -> int:
    """Say what is missing and what failed; exit code 1 when something did."""
    systems = dict.fromkeys(training.system for training in study.trainings)
    if missing := [system for system in systems if system not in tables]:
        study.say(f"not in the report: {', '.join(missing)}")
    if not tables:
        study.say("nothing is trained yet, so there is no report")
    for outcome in study.failures:
        job = outcome.job
        study.say(f"\n{job.name} FAILED with exit code {outcome.code}; the end of {job.log}:\n{_indented(job.tail())}")
        study.say(f"to repeat it:\n    {shlex.join(job.command)}")
    return 1 if study.failures or not tables else 0


def _say(line: str) -> None:
    stamp = time.strftime("%H:%M:%S ")
    print(stamp + line if not line.startswith("\n") else line, flush=True)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
