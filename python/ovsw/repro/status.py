"""The progress of the runs of a plan, without changing any of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ovsw.repro.plan import Experiment, Plan, PlannedRun, makespan
from ovsw.repro.runs import TrainingSetup, duration, epochs_done
from ovsw.train.flips import read_metrics
from ovsw.util.text import table

HEAD = ("experiment", "runs", "epochs", "left")


def status(plan: Plan, experiments: Sequence[Experiment], setup: TrainingSetup, jobs: int) -> str:
    """A row for each experiment, in order; a run that several need is left to the first of them."""
    experiments = [e for e in experiments if e.runs() and not e.nothing]
    runs = {run.slug: run for e in experiments for run in e.runs()}
    seconds = _epoch_seconds(plan, list(runs.values()), setup)
    rows, counted = [], set[str]()
    for experiment in experiments:
        mine = {run.slug: run for run in experiment.runs()}
        new = [run for slug, run in mine.items() if slug not in counted]
        counted |= mine.keys()
        rows.append((experiment.name, *_counts(list(mine.values()), setup), _left(new, seconds, setup, jobs)))
    everything = list(runs.values())
    rows.append(("all", *_counts(everything, setup), _left(everything, seconds, setup, jobs)))
    note = f"left: training, {jobs} at a time; a run that several experiments need is counted in the first"
    return f"{table(HEAD, rows, right=(1, 2, 3))}\n{note}"


def _counts(runs: Sequence[PlannedRun], setup: TrainingSetup) -> tuple[str, str]:
    done = [epochs_done(setup.of(run), run) for run in runs]
    whole = sum(epochs >= run.epochs for epochs, run in zip(done, runs))
    return f"{whole}/{len(runs)}", f"{sum(done)}/{sum(run.epochs for run in runs)}"


def _left(runs: Sequence[PlannedRun], seconds: dict[str, float | None], setup: TrainingSetup, jobs: int) -> str:
    left = [(run.epochs - epochs_done(setup.of(run), run), seconds[run.slug]) for run in runs]
    if any(epochs and each is None for epochs, each in left):
        return "?"
    return duration(makespan((epochs * (each or 0.0) for epochs, each in left), jobs))


def _epoch_seconds(plan: Plan, runs: Sequence[PlannedRun], setup: TrainingSetup) -> dict[str, float | None]:
    """Seconds per epoch of each run: the median of finished epochs of the same network, or else what the plan says."""
    measured: dict[str, list[float]] = {}
    for run in runs:
        rows = read_metrics(setup.of(run))
        measured.setdefault(run.recipe.network.name, []).extend(row["seconds"] for row in rows)
    return {
        run.slug: median(known) if (known := measured[run.recipe.network.name]) else plan.epoch_seconds(run)
        for run in runs
    }
