"""The small files of an experiment in one folder, from which its tables and pictures are made; no weights.

experiment.json describes the rows. runs/<run>/ has config.json and metrics.csv of each run, and flips.csv,
histogram.csv or landscape.csv where a picture needs them. Such a folder can be committed and redrawn.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ovsw.repro.plan import Experiment, value_of
from ovsw.repro.runs import TrainingSetup, read_config
from ovsw.train.flips import read_metrics
from ovsw.util.files import replace_file, write_csv

LIGHT = ("config.json", "metrics.csv", "diverged.txt")
BINS = 80
SIGMAS = 4.0  # range of histograms in standard deviations of the initial weights; larger ones are in the last bin


@dataclass
class Histogram:
    """Initial weights of a layer, and those of them that never flipped, over the same bins."""

    edges: np.ndarray
    all: np.ndarray
    never: np.ndarray


@dataclass
class RunResult:
    """One run. `flips` has by layer the number of weights and the shares that never flipped and that changed sign."""

    slug: str
    seed: int
    metrics: list[dict[str, float]]
    diverged: str
    flips: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    landscape: np.ndarray | None = None  # rows of direction 1, direction 2, loss


@dataclass
class PointResult:
    """A point with its runs, one per seed."""

    label: str
    series: str
    x: float | None
    epochs: int
    paper: str
    never: list[float]
    command: str
    runs: list[RunResult]

    def values(self, name: str, how: str = "last") -> list[float]:
        """A metric of every run that has not diverged: of its last epoch, or of its best."""
        rows = [[r[name] for r in run.metrics] for run in self.runs if run.metrics and not run.diverged]
        return [max(column) if how == "best" else column[-1] for column in rows]

    @property
    def diverged(self) -> int:
        return sum(bool(run.diverged) for run in self.runs)


@dataclass
class Results:
    """The results of an experiment; `missing` has the failed runs with the reasons."""

    experiment: dict[str, Any]
    rows: list[PointResult]
    missing: dict[str, str]


@dataclass(frozen=True)
class Mean:
    """Mean and, of more than one value, standard deviation (n - 1)."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        if not values:
            return cls(math.nan, None, 0)
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, factor: float = 1.0, digits: int = 2) -> str:
        if self.n == 0:
            return "-"
        spread = "" if self.deviation is None else f" ± {factor * self.deviation:.{digits}f}"
        return f"{factor * self.mean:.{digits}f}{spread}"


def collect(experiment: Experiment, setup: TrainingSetup, folder: Path, failures: dict[str, str]) -> None:
    """Copies the small files of an experiment to its folder. Raises ValueError if that holds another scale."""
    file = folder / "experiment.json"
    if file.is_file() and (scale := _read_json(file).get("scale")) != experiment.scale:
        raise ValueError(f"{folder}: holds results of scale {scale}; choose another -o")
    folder.mkdir(parents=True, exist_ok=True)
    points, bins = [], dict[str, np.ndarray]()
    for point in experiment.points:
        runs = [run for run in point.runs(experiment.seeds) if run.slug not in failures]
        for run in runs:
            source, target = setup.of(run), folder / "runs" / run.slug
            target.mkdir(parents=True, exist_ok=True)
            for name in [*LIGHT, *["landscape.csv"] * ("landscape" in experiment.figures)]:
                if (source / name).is_file():
                    replace_file(target / name, (source / name).read_bytes())
            if "histogram" in experiment.figures and not (source / "diverged.txt").is_file():
                _keep_flips(source, target, experiment.layers, bins)
        x = float(value_of(point.recipe, experiment.x)) if experiment.x else None
        kept = {"label": point.label, "series": point.series, "x": x, "epochs": point.recipe.train.epochs}
        more = {"paper": point.paper, "never": list(point.never), "command": point.command}
        points.append({**kept, **more, "runs": [run.slug for run in runs]})
    known = {run.slug for run in experiment.runs()}
    facts = {k: v for k, v in dataclasses.asdict(experiment).items() if k not in ("points", "nothing", "minutes")}
    content = {**facts, "points": points, "missing": {k: v for k, v in failures.items() if k in known}}
    replace_file(file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def load_results(folder: Path) -> Results:
    """Reads the folder that `collect` has filled. Raises ValueError or OSError."""
    experiment = _read_json(folder / "experiment.json")
    try:
        points, missing = experiment.pop("points"), experiment.pop("missing")
        rows = []
        for point in points:
            runs = [_load_run(folder / "runs" / slug) for slug in point["runs"]]
            rows.append(PointResult(**{**point, "runs": runs}))
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{folder / 'experiment.json'}: not written by ovsw-repro ({e})") from None
    return Results(experiment, rows, missing)


def _load_run(folder: Path) -> RunResult:
    file = folder / "diverged.txt"
    diverged = file.read_text().strip() if file.is_file() else ""
    run = RunResult(folder.name, read_config(folder)["seed"], read_metrics(folder), diverged)
    try:
        if (folder / "flips.csv").is_file():
            run.flips = {
                r["layer"]: (int(r["weights"]), float(r["never_flipped"]), float(r["changed"]))
                for r in _rows(folder / "flips.csv")
            }
        if (folder / "histogram.csv").is_file():
            rows = _rows(folder / "histogram.csv")
            for layer in dict.fromkeys(r["layer"] for r in rows):
                mine = [r for r in rows if r["layer"] == layer]
                edges = [float(r["from"]) for r in mine] + [float(mine[-1]["to"])]
                counts = (np.array([int(r[name]) for r in mine]) for name in ("all", "never"))
                run.histograms[layer] = Histogram(np.array(edges), *counts)
        if (folder / "landscape.csv").is_file():
            run.landscape = np.loadtxt(folder / "landscape.csv", delimiter=",", skiprows=1, ndmin=2)
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{folder}: it has a damaged file ({e})") from None
    return run


def _keep_flips(source: Path, target: Path, layers: Sequence[str], bins: dict[str, np.ndarray]) -> None:
    """Counts of silent weights from a run's checkpoints; the first run sets the `bins` of all, so that they add up."""
    from ovsw.train.flips import load_run

    flips = {layer.name: layer for layer in load_run(source)}
    unknown = [name for name in layers if name not in flips]
    if unknown:
        raise ValueError(f"{source}: has no binary layer '{unknown[0]}'; there are {', '.join(flips)}")
    shares = ((f.name, f.start.size, repr(f.never_share), repr(f.changed_share)) for f in flips.values())
    write_csv(target / "flips.csv", ("layer", "weights", "never_flipped", "changed"), shares)
    rows = []
    for name in layers:
        start, never = flips[name].start.astype(np.float64), flips[name].never
        edges = bins.setdefault(name, np.linspace(-SIGMAS, SIGMAS, BINS + 1) * start.std())
        inside = np.clip(start, edges[0], edges[-1])
        counts = (np.histogram(values, edges)[0].tolist() for values in (inside, inside[never]))
        rows += [(name, repr(float(a)), repr(float(b)), n, m) for a, b, n, m in zip(edges[:-1], edges[1:], *counts)]
    write_csv(target / "histogram.csv", ("layer", "from", "to", "all", "never"), rows)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"{path}: damaged ({e})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not written by ovsw-repro")
    return content
