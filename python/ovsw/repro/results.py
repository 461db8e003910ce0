"""The light parts of an experiment's runs in one folder: all that its tables and pictures are made of, without weights.

experiment.json says what the rows are; runs/<run>/ has config.json and metrics.csv of each, and where a picture needs
them flips.csv, histogram.csv or landscape.csv. Such a folder can be committed and redrawn.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ovsw.repro.plan import Experiment, value_of
from ovsw.repro.runs import Where, read_config, read_metrics
from ovsw.util.files import replace_file

LIGHT = ("config.json", "metrics.csv", "diverged.txt")
BINS = 80
SIGMAS = 4.0  # histograms reach so many standard deviations of the initial weights; what lies beyond is in the last bin


@dataclass
class Histogram:
    """Initial weights of a layer, and those of them that never flipped, over the same bins."""

    edges: np.ndarray
    all: np.ndarray
    never: np.ndarray


@dataclass
class RunResult:
    """One run as it was kept. `flips` has (never flipped, other sign than at the start) by layer, as shares."""

    slug: str
    seed: int
    metrics: list[dict[str, float]]
    diverged: str
    flips: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    landscape: np.ndarray | None = None  # rows of direction 1, direction 2, loss


@dataclass
class Row:
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
    """An experiment with what came of it; `missing` are runs that failed, with the reason."""

    about: dict[str, Any]
    rows: list[Row]
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


def collect(experiment: Experiment, where: Where, folder: Path, failures: dict[str, str]) -> None:
    """Puts an experiment's light parts into its folder. Raises ValueError if that holds another scale's."""
    about = folder / "experiment.json"
    if about.is_file() and (scale := _read_json(about).get("scale")) != experiment.scale:
        raise ValueError(f"{folder}: holds results of scale {scale}; choose another -o")
    folder.mkdir(parents=True, exist_ok=True)
    points, bins = [], dict[str, np.ndarray]()
    for point in experiment.points:
        runs = [run for run in point.runs(experiment.seeds) if run.slug not in failures]
        for run in runs:
            source, target = where.of(run), folder / "runs" / run.slug
            target.mkdir(parents=True, exist_ok=True)
            for name in LIGHT:
                if (source / name).is_file():
                    replace_file(target / name, (source / name).read_bytes())
            if "histogram" in experiment.figures and not (source / "diverged.txt").is_file():
                _keep_flips(source, target, experiment.layers, bins)
            if "landscape" in experiment.figures and (source / "landscape.csv").is_file():
                replace_file(target / "landscape.csv", (source / "landscape.csv").read_bytes())
        x = float(value_of(point.recipe, experiment.x)) if experiment.x else None
        kept = {"label": point.label, "series": point.series, "x": x, "epochs": point.recipe.train.epochs}
        more = {"paper": point.paper, "never": list(point.never), "command": point.command}
        points.append({**kept, **more, "runs": [run.slug for run in runs]})
    known = {run.slug for run in experiment.runs()}
    facts = {k: v for k, v in dataclasses.asdict(experiment).items() if k not in ("points", "nothing", "minutes")}
    content = {**facts, "points": points, "missing": {k: v for k, v in failures.items() if k in known}}
    replace_file(about, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def load_results(folder: Path) -> Results:
    """What `collect` has put there. Raises ValueError or OSError."""
    about = _read_json(folder / "experiment.json")
    try:
        points, missing = about.pop("points"), about.pop("missing")
        rows = [
            Row(**{**point, "runs": [_load_run(folder / "runs" / slug) for slug in point["runs"]]}) for point in points
        ]
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{folder / 'experiment.json'}: not one of ovsw-repro ({e})") from None
    return Results(about, rows, missing)


def _load_run(folder: Path) -> RunResult:
    config = read_config(folder)
    diverged = folder / "diverged.txt"
    run = RunResult(
        folder.name, config["seed"], read_metrics(folder), diverged.read_text().strip() if diverged.is_file() else ""
    )
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
            with (folder / "landscape.csv").open(newline="") as f:
                run.landscape = np.array([[float(v) for v in row] for row in list(csv.reader(f))[1:]])
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{folder}: a file of it is damaged ({e})") from None
    return run


def _keep_flips(source: Path, target: Path, layers: Sequence[str], bins: dict[str, np.ndarray]) -> None:
    """Counts of silent weights from a run's checkpoints; the first run sets the `bins` of all, so that they add up."""
    from ovsw.train.flips import load_run

    found = {layer.name: layer for layer in load_run(source)}
    unknown = [name for name in layers if name not in found]
    if unknown:
        raise ValueError(f"{source}: has no binary layer '{unknown[0]}'; there are {', '.join(found)}")
    shares = ((f.name, f.start.size, repr(f.never_share), repr(f.changed_share)) for f in found.values())
    write_csv(target / "flips.csv", ("layer", "weights", "never_flipped", "changed"), shares)
    rows = []
    for name in layers:
        start, never = found[name].start.astype(np.float64), found[name].never
        edges = bins.setdefault(name, np.linspace(-SIGMAS, SIGMAS, BINS + 1) * start.std())
        inside = np.clip(start, edges[0], edges[-1])
        counts = (np.histogram(values, edges)[0].tolist() for values in (inside, inside[never]))
        rows += [(name, repr(float(a)), repr(float(b)), n, m) for a, b, n, m in zip(edges[:-1], edges[1:], *counts)]
    write_csv(target / "histogram.csv", ("layer", "from", "to", "all", "never"), rows)


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    replace_file(path, text.getvalue().encode())


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"{path}: damaged ({e})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not one of ovsw-repro")
    return content
