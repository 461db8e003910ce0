"""`ovsw-repro`: runs or continues an experiment of the paper and writes its table and pictures."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ovsw import cpu
from ovsw.commands.base import INTERRUPTED, UsageError, command, message, offer, whole
from ovsw.repro.plan import SCALES, Experiment, Plan, PlannedRun, load_plan
from ovsw.repro.pool import Job, PoolLimits, run_jobs
from ovsw.repro.runs import TrainingSetup, duration, finished, locked, train
from ovsw.repro.status import status
from ovsw.util.files import made_folder, replace_file, write_csv

if TYPE_CHECKING:
    from ovsw.datasets import MemorySet
    from ovsw.train.recipe import Recipe

EPILOG = """
-o DIR gets DIR/EXPERIMENT with table.md, table.csv, pictures and the light parts of the runs (config.json,
metrics.csv, counts), and DIR/runs with the runs and their checkpoints; experiments share runs with equal settings.
DIR/EXPERIMENT can be kept without DIR/runs: --redraw makes the tables and pictures again from it.

"all" is a queue: it trains the runs of all experiments in the plan's order, one per core, and reports each experiment
as soon as its runs are done. It can be stopped at any time (Ctrl-C, SIGTERM, kill -9, power): only the current epochs
are lost, and the same command continues to the same results. --status shows the progress, also while it runs.
"""


def options(p: argparse.ArgumentParser) -> None:
    names = "table1 .. figure26, appendix-a, chaos, pilots, zoo, or all"
    experiment = p.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help=names)
    offer(experiment, lambda: [*load_plan("cpu").experiments, "all"])
    p.add_argument("--list", action="store_true", help="list the experiments with their cost and what is comparable")
    p.add_argument("--status", action="store_true", help="show what is done and how long the rest will take")
    p.add_argument(
        "--redraw", metavar="DIR", type=Path, help="draw the results in DIR/EXPERIMENT, or a copy of it, again"
    )
    what = p.add_argument_group("what is run")
    what.add_argument("--scale", choices=SCALES, default="cpu", help="cpu: small runs (default); paper: its own")
    what.add_argument("--data", metavar="DIR", type=Path, help="folder of the data set")
    what.add_argument("--teacher", metavar="FILE", type=Path, help="weights that pilots and zoo distil from")
    what.add_argument("--seeds", metavar="N", type=int, nargs="+", help="default: the plan's")
    what.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change every run; settings of a row take precedence",
    )
    what.add_argument("--full", action="store_true", help="include what the plan leaves out by default (appendix-c)")
    what.add_argument("--plan", metavar="FILE.toml", type=Path, help="use another plan than the package's plan.toml")
    how = p.add_argument_group("how")
    how.add_argument("-o", "--output", metavar="DIR", type=Path, help="default: repro-cpu or repro-paper")
    how.add_argument("--runs", metavar="DIR", type=Path, help="folder for the runs (default: DIR/runs)")
    how.add_argument("--jobs", metavar="N", type=whole(1), help="runs at a time (default: one per core; one on a GPU)")
    how.add_argument("--nice", metavar="N", type=whole(0, 19), default=0, help="niceness of the runs, 0 to 19")
    how.add_argument("--hours", metavar="H", type=float, default=math.inf, help="stop after H hours")
    how.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    how.add_argument("--amp", action="store_true", help="mixed precision, on a GPU only")
    more = p.add_argument_group("for single experiments")
    model = "chaos: a checkpoint or run, and .bnn files to compare"
    more.add_argument("--model", metavar="FILE", type=Path, nargs="+", default=[], help=model)
    more.add_argument("--images", metavar="N", type=whole(1), help="test images (default: chaos all, figure4 512)")
    more.add_argument(
        "--depth-images",
        metavar="N",
        type=whole(1),
        default=1000,
        help="chaos: images for single places",
    )
    more.add_argument("--grid", metavar="N", type=whole(2), default=21, help="figure4: points each way")
    more.add_argument("--bench", metavar="ARGS", default="--threads 1", help="table4: arguments of ovsw-bench, quoted")


@command(
    "ovsw-repro",
    "Reproduce the tables and figures of the OvSW paper.",
    options,
    EPILOG,
    ("--list", "table3 --data DIR -o repro", "--status -o repro", "--redraw repro/table3"),
)
def main(args: argparse.Namespace) -> int:
    _check(args)
    if args.redraw is not None:
        return _redraw(args.redraw, args.experiment)
    plan = load_plan(args.scale, args.plan, args.seeds, args.set, args.full)
    jobs = args.jobs or (1 if args.device.startswith("cuda") else cpu.usable_cores())
    if args.list:
        print(_listing(plan, jobs))
        return 0
    output = args.output or Path(f"repro-{args.scale}")
    setup = TrainingSetup(args.runs or output / "runs", args.data, args.device, args.amp, args.teacher)
    every = args.experiment == "all" or (args.status and not args.experiment)
    if not args.experiment and not every:
        raise UsageError("an EXPERIMENT is needed; --list shows them")
    chosen = list(plan.experiments.values()) if every else [plan.find(args.experiment)]
    if args.status:
        print(status(plan, chosen, setup, jobs))
        return 0
    if len(chosen) == 1 and chosen[0].nothing:
        raise ValueError(f"{chosen[0].name}: {chosen[0].nothing}")
    threads = None if args.device.startswith("cuda") else 1
    work = _Work(args, output, setup, PoolLimits(jobs, args.nice, threads, time.monotonic() + 3600 * args.hours))
    unready = _unready({e.name: work.needed(e) for e in chosen}, setup)
    cost = plan.minutes(chosen, jobs)
    estimate = "" if cost is None or args.set else f", about {duration(60 * cost)} if nothing is done yet"
    print(
        f"{', '.join(e.name for e in chosen)}: results in {output}, runs in {setup.folder}{estimate}", file=sys.stderr
    )
    problems = [f"{name} was left out: {message(why)}" for name, why in unready.items()]
    try:
        with _interrupted_by_sigterm(), made_folder(output), made_folder(setup.folder), locked(setup.folder):
            problems += work.do([e for e in chosen if e.name not in unready])
    except KeyboardInterrupt:
        print(f"{args.prog}: stopped; the same command continues", file=sys.stderr)
        return INTERRUPTED
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RuntimeError(f"{problems[0]}{more}; run the same command to try again")
    if work.limits.over:
        print(f"{args.prog}: stopped after {args.hours:g} hours; the same command continues", file=sys.stderr)
    return 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Work:
    """One call of the command."""

    def __init__(self, args: argparse.Namespace, output: Path, setup: TrainingSetup, limits: PoolLimits) -> None:
        self.args, self.output, self.setup, self.limits = args, output, setup, limits

    def needed(self, experiment: Experiment) -> list[PlannedRun]:
        """The runs that an experiment is made from."""
        trained = experiment.name == "chaos" and self.args.model
        return [] if experiment.nothing or trained else experiment.runs()

    def do(self, experiments: list[Experiment]) -> list[str]:
        """Trains the runs of these experiments in order and reports each when its runs are done. Returns the problems.

        Experiments that compute more than tables and pictures come after all training.
        """
        waiting, problems = list(experiments), list[str]()
        late = {e.name for e in experiments if e.name in ("table4", "chaos") or "landscape" in e.figures}

        def report(failures: dict[str, str], last: bool = False) -> None:
            for experiment in [e for e in waiting if last or e.name not in late]:
                if all(run.slug in failures or finished(self.setup.of(run), run) for run in self.needed(experiment)):
                    waiting.remove(experiment)
                    try:
                        problems.extend(self._finish(experiment, failures))
                    except UsageError:
                        raise
                    except (ValueError, OSError) as e:  # a table that cannot be written must not end the training
                        problems.append(f"{experiment.name}: {message(e)}")

        failures = train([run for e in experiments for run in self.needed(e)], self.setup, self.limits, report)
        report(failures)
        if not self.limits.over:
            report(failures, last=True)
        return problems

    def _finish(self, experiment: Experiment, failures: dict[str, str]) -> list[str]:
        """Reports an experiment whose runs are done. Returns the problems."""
        if experiment.nothing:
            print(f"\n{experiment.title}\n{experiment.name}: {experiment.nothing}")
            return []
        runs, folder = self.needed(experiment), self.output / experiment.name
        failures = {run.slug: failures[run.slug] for run in runs if run.slug in failures}
        if experiment.name == "table4":
            return _table4(folder, self.args.bench)
        if experiment.name == "chaos":
            return [f"{k}: {v}" for k, v in failures.items()] or self._chaos(experiment, folder)
        if "landscape" in experiment.figures:
            failures.update(self._landscapes([run for run in runs if run.slug not in failures]))
        from ovsw.repro.report import report
        from ovsw.repro.results import collect

        collect(experiment, self.setup, folder, failures)
        print(f"\n{experiment.title}\n{report(folder)}\nwrote {folder}", flush=True)
        return [f"{slug}: {reason}" for slug, reason in failures.items()]

    def _landscapes(self, runs: list[PlannedRun]) -> dict[str, str]:
        """Runs ovsw-landscape for each of these runs, unless its result exists already."""
        size = {"grid": self.args.grid, "images": self.args.images or 512}
        settings = json.dumps(size).encode()
        data = () if self.setup.data is None else ("--data", str(self.setup.data))
        options = (*data, *(word for key, value in size.items() for word in (f"--{key}", str(value))))
        jobs = []
        for folder in map(self.setup.of, runs):
            last = folder / "landscape.json"  # written last
            if not (folder / "diverged.txt").is_file() and not (last.is_file() and last.read_bytes() == settings):
                arguments = (str(folder / "last.pth"), *options, "-o", str(folder / "landscape.png"))
                jobs.append(Job(folder.name, "ovsw.train.landscape", arguments, folder / "landscape.log"))
        failures: dict[str, str] = {}

        def done(job: Job, reason: str) -> None:
            print(f"{job.name}: landscape {reason or 'done'}", file=sys.stderr, flush=True)
            if reason:
                failures[job.name] = reason
            else:
                replace_file(job.log.with_name("landscape.json"), settings)

        run_jobs(jobs, self.limits, done)
        return failures

    def _chaos(self, experiment: Experiment, folder: Path) -> list[str]:
        import torch

        from ovsw.repro.chaos import study
        from ovsw.repro.chaos_report import chaos_report

        models = self.args.model or [self.setup.of(experiment.runs()[0])]
        checkpoints = [path for path in models if path.suffix != ".bnn"]
        files = {path.name: path for path in models if path.suffix == ".bnn"}
        if len(checkpoints) != 1:
            raise UsageError("--model takes one checkpoint or run, which is the reference, and .bnn files to compare")
        checkpoint = checkpoints[0] / "last.pth" if checkpoints[0].is_dir() else checkpoints[0]
        torch.set_num_threads(self.limits.jobs)
        split = _test_images(checkpoint, self.setup.data, experiment)
        results = study(checkpoint, split, files, self.args.images, self.args.depth_images)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "chaos.json", (json.dumps(results, indent=1) + "\n").encode())
        print(f"\n{experiment.title}\n{chaos_report(folder)}wrote {folder}")
        return []


def _test_images(checkpoint: Path, data: Path | None, experiment: Experiment) -> MemorySet:
    """The test images that a checkpoint of ovsw-train was evaluated on, or else the plan's."""
    from ovsw.datasets import MemorySet
    from ovsw.nn.checkpoint import read
    from ovsw.train.recipe import kept_recipe
    from ovsw.train.trainer import open_data

    recipe = kept_recipe(read(checkpoint)) or experiment.points[0].recipe
    split = open_data(recipe, data, "test")
    if not isinstance(split, MemorySet):
        raise ValueError(f"data set '{recipe.data.kind}' is not held in memory; choose one that is, such as cifar10")
    return split


def _table4(folder: Path, arguments: str) -> list[str]:
    """The table of ovsw-bench with the paper's rows, also as CSV."""
    from ovsw.bench.cli import main as bench
    from ovsw.bench.table import PAPER, PAPER_ENGINE

    outputs = [f"--{kind}={folder / name}" for kind, name in _BENCH_FILES.items()]
    with made_folder(folder):
        code = bench([*shlex.split(arguments), *outputs])
    if code:
        return [f"table4: ovsw-bench ended with exit code {code}"]
    rows = [
        (r["network"], r["wa"], r["engine"], r["precision"], r.get("size_mb", ""))
        + tuple(r["latency_ms"][key] for key in ("median", "p10", "p90"))
        for r in json.loads((folder / "bench.json").read_text())["rows"]
    ]
    rows += [(p.network, p.wa, PAPER_ENGINE, "", p.size_mb, p.ms, "", "") for p in PAPER]
    head = ("network", "wa", "engine", "precision", "size_mb", "latency_ms", "latency_p10", "latency_p90")
    write_csv(folder / "table.csv", head, rows)
    return []


_BENCH_FILES = {"json": "bench.json", "markdown": "table.md", "plot": "latency.png"}


def _redraw(folder: Path, name: str | None) -> int:
    from ovsw.repro.chaos_report import chaos_report
    from ovsw.repro.report import report

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if (folder / "chaos.json").is_file():
        print(chaos_report(folder), end="")
        return 0
    if (folder / "bench.json").is_file():
        raise ValueError(f"{folder}: table4 is measured and drawn by ovsw-bench, run it again")
    file = folder / "experiment.json"
    if not file.is_file():
        raise ValueError(f"{folder}: has neither experiment.json nor chaos.json, it was not written by ovsw-repro")
    kept = json.loads(file.read_text(encoding="utf-8")).get("name")
    if name is not None and load_plan("cpu").find(name).name != kept:
        raise ValueError(f"{folder}: holds {kept}, not {name}")
    print(report(folder))
    return 0


def _listing(plan: Plan, jobs: int) -> str:
    parts, before = [], list[Experiment]()
    for e in plan.experiments.values():
        lines = [e.nothing or f"cost: {_cost(plan, e, before, jobs)}"]
        before.append(e)
        lines += [f"comparable: {e.comparable}", f"not comparable: {e.different}"]
        wrapped = (textwrap.fill(s, 116, initial_indent="  ", subsequent_indent="    ") for s in lines)
        parts.append("\n".join([f"{e.name}: {e.title}", *wrapped]))
    cost = plan.minutes(list(plan.experiments.values()), jobs)
    total = "" if cost is None else f", about {duration(60 * cost)} with {jobs} at a time"
    parts.append(f"all: everything above, runs that experiments share once{total}\n  scale {plan.scale}: {plan.about}")
    return "\n\n".join(parts)


def _cost(plan: Plan, experiment: Experiment, before: list[Experiment], jobs: int) -> str:
    """The cost of an experiment alone, and after others whose runs it shares."""
    runs = len({run.slug for run in experiment.runs()})
    alone, done, both = (plan.minutes(list(e), jobs) for e in ([experiment], before, [*before, experiment]))
    count = f"{runs} run{'s' if runs > 1 else ''}" if runs else ""
    if alone is None or done is None or both is None:
        return count or duration(60 * experiment.minutes)
    time = f"about {duration(60 * alone)} with {jobs} at a time, {duration(60 * (both - done))} after those above"
    return f"{count}, {time}" if runs else f"about {duration(60 * experiment.minutes)}"


def _check(args: argparse.Namespace) -> None:
    missing = [path for path in (*args.model, *filter(None, [args.teacher])) if not path.exists()]
    if missing:
        raise FileNotFoundError(f"{missing[0]}: no such file or folder")
    if args.amp and not args.device.startswith("cuda"):
        raise UsageError("--amp needs a GPU")
    if not args.hours > 0:
        raise UsageError(f"--hours is {args.hours:g}, expected more than 0")


def _unready(needed: dict[str, list[PlannedRun]], setup: TrainingSetup) -> dict[str, ValueError]:
    """Experiments whose data set or teacher is missing, with the reason, before any child process is started.

    Raises the reason if none of them can train.
    """
    faults: dict[tuple[str, ...], ValueError | None] = {}
    unready: dict[str, ValueError] = {}
    for name, recipe in ((name, run.recipe) for name, runs in needed.items() for run in runs):
        key = (recipe.data.kind, recipe.network.name, recipe.train.teacher)
        if key not in faults:
            faults[key] = _fault(recipe, setup)
        if fault := faults[key]:
            unready[name] = fault
    if unready and all(name in unready for name, runs in needed.items() if runs):
        raise next(iter(unready.values()))
    return unready


def _fault(recipe: Recipe, setup: TrainingSetup) -> ValueError | None:
    from ovsw.datasets import DATASETS
    from ovsw.train.trainer import open_data

    if setup.data is None and getattr(DATASETS.get(recipe.data.kind), "in_folder", False):
        return UsageError(f"--data DIR is needed: the runs train on {recipe.data.kind}")
    if setup.teacher is None and recipe.train.teacher:
        return UsageError(f"--teacher FILE is needed: the weights of {recipe.train.teacher}, which runs distil from")
    try:
        open_data(recipe, setup.data, "test")
    except ValueError as e:
        return e
    return None
