"""The runs of a plan, trained by `ovsw-train` in child processes, one folder each.

Whatever ends this process or a child, the same call continues from the last finished epoch. A folder has
config.json (recipe as used, seed, command), metrics.csv, the checkpoints, train.log, and diverged.txt if its loss did.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovsw.repro.plan import PlannedRun, same_run
from ovsw.repro.pool import Job, PoolLimits, run_jobs
from ovsw.train.flips import read_metrics
from ovsw.train.recipe import as_dict, from_dict
from ovsw.util.files import replace_file

DIVERGED = re.compile(r"the loss is \S+ in epoch \d+")


@dataclass(frozen=True)
class TrainingSetup:
    """Folder of all runs, data set, the device that ovsw-train is given, and a teacher for the runs that have one."""

    folder: Path
    data: Path | None = None
    device: str = "cpu"
    amp: bool = False
    teacher: Path | None = None

    def of(self, run: PlannedRun) -> Path:
        return self.folder / run.slug


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["recipe"] = from_dict(config["recipe"])
        int(config["seed"])
        return dict(config)
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{path}: not the config of a run ({e})") from None


def epochs_done(folder: Path, run: PlannedRun) -> int:
    """The number of finished epochs; all of them for a run that has diverged."""
    return run.epochs if (folder / "diverged.txt").is_file() else len(read_metrics(folder))


def finished(folder: Path, run: PlannedRun) -> bool:
    """Whether all epochs are trained. Raises ValueError if the folder holds another run."""
    if not (folder / "config.json").is_file():
        return False
    config = read_config(folder)
    if config["seed"] != run.seed or not same_run(config["recipe"], run.recipe):
        raise ValueError(f"{folder}: holds a run of another recipe or seed; remove it or choose another -o")
    return epochs_done(folder, run) >= run.epochs


def train(
    runs: Sequence[PlannedRun],
    setup: TrainingSetup,
    limits: PoolLimits,
    ended: Callable[[dict[str, str]], None] = lambda failures: None,
) -> dict[str, str]:
    """Trains the remaining epochs of these runs, in this order. Returns the reasons of failures by slug.

    `ended` is called after each run with the failures so far.
    """
    distinct = list({run.slug: run for run in runs}.values())
    open_runs = [run for run in distinct if not finished(setup.of(run), run)]
    if not open_runs:
        return {}
    progress = _Progress(distinct, open_runs, setup, limits.jobs)
    failures: dict[str, str] = {}
    by_name = {run.slug: run for run in open_runs}

    def done(job: Job, reason: str) -> None:
        run = by_name[job.name]
        if DIVERGED.search(reason):
            text = DIVERGED.findall(reason)[0]
            replace_file(setup.of(run) / "diverged.txt", f"{text}\n".encode())
            progress.say(f"{run.slug}: diverged, {text}")
        elif reason:
            failures[run.slug] = reason
            progress.say(f"{run.slug}: failed: {reason}")
        ended(failures)

    run_jobs([_job(run, setup, progress) for run in open_runs], limits, done)
    return failures


def _job(run: PlannedRun, setup: TrainingSetup, progress: _Progress) -> Job:
    folder = setup.of(run)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.pth.*"):  # of a save that was cut short
        left.unlink()
    command = " ".join(["ovsw-train", *run.arguments])
    config = {"recipe": as_dict(run.recipe), "seed": run.seed, "command": command}
    replace_file(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    data = () if setup.data is None else ("--data", str(setup.data))
    device = ("--device", setup.device, *(("--amp",) if setup.amp else ()))
    arguments = (*run.arguments, *data, "-o", str(folder), "--resume", "--quiet", *device)
    if run.recipe.train.teacher:
        arguments += ("--teacher", str(setup.teacher), "--teacher-cache", str(setup.folder / "teacher"))
    if run.first is not None:
        arguments += ("--init", str(setup.of(run.first) / "last.pth"))
    first = run.first.slug if run.first is not None else ""
    return Job(run.slug, "ovsw.train.cli", arguments, folder / "train.log", lambda: progress.look(run), first)


@dataclass
class _Progress:
    """Prints a line on stderr for every finished epoch, with the time left."""

    runs: list[PlannedRun]
    open_runs: list[PlannedRun]
    setup: TrainingSetup
    jobs: int
    began: float = field(default_factory=time.monotonic)
    seen: dict[str, int] = field(default_factory=dict)
    trained: int = 0  # epochs of this call

    def __post_init__(self) -> None:
        self.seen = {run.slug: len(read_metrics(self.setup.of(run))) for run in self.open_runs}
        epochs = sum(run.epochs - self.seen[run.slug] for run in self.open_runs)
        done = len(self.runs) - len(self.open_runs)
        self.say(f"{len(self.runs)} runs, {done} of them done; {epochs} epochs to train, {self.jobs} run(s) at a time")

    def look(self, run: PlannedRun) -> None:
        rows = read_metrics(self.setup.of(run))
        if len(rows) <= self.seen[run.slug]:
            return
        self.trained += len(rows) - self.seen[run.slug]
        self.seen[run.slug] = len(rows)
        left = sum(r.epochs - self.seen[r.slug] for r in self.open_runs)
        seconds = (time.monotonic() - self.began) / self.trained * left
        self.say(
            f"{run.slug}: epoch {len(rows)}/{run.epochs}, test {rows[-1]['test_acc1']:.2f} %, "
            f"{rows[-1]['seconds']:.0f} s; {left} epochs left, about {duration(seconds)}"
        )

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for one command; the system releases the lock when the process ends, however it ends."""
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(f"{folder}: another ovsw-repro is running there") from None
        try:
            yield
        finally:
            if [path.name for path in folder.iterdir()] == [".lock"]:  # nothing was run
                (folder / ".lock").unlink()
