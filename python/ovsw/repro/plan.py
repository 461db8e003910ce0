"""The plan: experiments, their points and runs, as plan.toml has them.

A run is a complete recipe and a seed. The name of its folder lists all differences from the default recipe, so
experiments with the same settings share it.
"""

from __future__ import annotations

import difflib
import heapq
import re
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovsw.networks import network
from ovsw.train.recipe import Recipe, as_dict, load_recipe, set_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLAN = Path(__file__).parent / "plan.toml"
SCALES = ("cpu", "paper")
SECTIONS = ("network", "data", "train", "ovsw")
_BY_SCALE = ("comparable", "different", "layers", "nothing")
_READ_HERE = ("about", "also", "one_seed", "seeds", "set", "unscaled")
IGNORED = {("data", "workers"), ("train", "seeds")}  # change nothing in a run


@dataclass(frozen=True)
class PlannedRun:
    """One training: `recipe` is what `ovsw-train NAME --set ...` will use. It starts from the weights of `first`."""

    name: str
    settings: tuple[str, ...]
    seed: int
    recipe: Recipe = field(compare=False)
    first: PlannedRun | None = None

    @property
    def slug(self) -> str:
        usual = as_dict(Recipe())
        changed = [
            f"{key if key != 'momentum' else f'{section}-{key}'}{_word(value)}"
            for section, key, value in flat(self.recipe)
            if value != usual[section][key] and (section, key) not in IGNORED | {("network", "name")}
        ]
        start = [] if self.first is None else [f"from_{zlib.crc32(self.first.slug.encode()):08x}"]
        return "-".join([network(self.recipe.network.name).short, *changed, *start, f"s{self.seed}"])

    @property
    def epochs(self) -> int:
        return self.recipe.train.epochs

    @property
    def arguments(self) -> list[str]:
        """The arguments of `ovsw-train`, without folders."""
        return [self.name, *(part for s in self.settings for part in ("--set", s)), "--seed", str(self.seed)]


@dataclass(frozen=True)
class Point:
    """A row of a table or a point of a curve: its settings, and the paper's result."""

    label: str
    series: str
    name: str
    settings: tuple[str, ...]
    recipe: Recipe = field(compare=False)
    paper: str = ""
    never: tuple[float, ...] = ()
    first: Point | None = None

    def runs(self, seeds: Sequence[int]) -> list[PlannedRun]:
        """One per seed, without those that they start from."""
        firsts = [None] * len(seeds) if self.first is None else self.first.runs(seeds)
        return [PlannedRun(self.name, self.settings, seed, self.recipe, first) for seed, first in zip(seeds, firsts)]

    @property
    def command(self) -> str:
        """The command of its runs, without folders and seed."""
        teacher = ["--teacher FILE"] if self.recipe.train.teacher else []
        start = [] if self.first is None else [f"--init FILE (of: {self.first.command})"]
        return " ".join(["ovsw-train", self.name, *(f"--set {s}" for s in self.settings), *teacher, *start])


@dataclass
class Experiment:
    """A table or figure at one scale. `nothing` is the reason if there is nothing to run."""

    name: str
    title: str
    comparable: str
    different: str
    scale: str
    about: str
    points: list[Point]
    seeds: list[int]
    figures: list[str] = field(default_factory=list)
    x: str = ""
    x_label: str = ""
    log: bool = False
    reference: str = ""
    layers: list[str] = field(default_factory=list)
    nothing: str = ""
    minutes: float = 0.0

    def runs(self) -> list[PlannedRun]:
        """All runs, seed by seed, so that partial results can be compared."""
        last = (run for seed in self.seeds for point in self.points for run in point.runs([seed]))
        return [each for run in last for each in (run.first, run) if each is not None]


@dataclass
class Plan:
    """All experiments of a plan file at one scale; `names` maps every name that a user may give."""

    scale: str
    about: str
    experiments: dict[str, Experiment]
    names: dict[str, str]
    images: int = 0  # per epoch
    rates: Mapping[str, float] = field(default_factory=dict)  # images per second on one core, by network

    def find(self, name: str) -> Experiment:
        if name not in self.names:
            known = [*self.names, "all"]
            close = difflib.get_close_matches(name, known, 1, 0.4)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(self.experiments)}, all;"
            raise ValueError(f"no experiment '{name}', {hint} --list shows them all")
        return self.experiments[self.names[name]]

    def epoch_seconds(self, run: PlannedRun) -> float | None:
        """The seconds of an epoch on one core, according to the plan; None if unknown."""
        rate = self.rates.get(run.recipe.network.name)
        return None if rate is None else (self.images - run.recipe.data.held_out) / rate

    def minutes(self, experiments: Sequence[Experiment], jobs: int) -> float | None:
        """The time of these experiments together; shared runs count once. None if unknown."""
        runs = {run.slug: run for e in experiments for run in e.runs()}
        seconds = [(run.epochs, self.epoch_seconds(run)) for run in runs.values()]
        training = [epochs * each for epochs, each in seconds if each is not None]
        if len(training) < len(runs):
            return None
        return makespan(training, jobs) / 60 + sum(e.minutes for e in experiments)


def makespan(durations: Iterable[float], jobs: int) -> float:
    """The time of runs that start in this order, each as soon as one of `jobs` places is free."""
    free_at = [0.0] * jobs
    for duration in durations:
        heapq.heapreplace(free_at, free_at[0] + duration)
    return max(free_at)


def load_plan(
    scale: str,
    path: Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    full: bool = False,
) -> Plan:
    """Reads a plan file. Raises ValueError.

    `seeds` and `settings` are the user's, for every run; what a point sets itself stays.
    """
    path = path or PLAN
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        scale_table = content["scales"][scale]
        experiments = {
            name: _experiment(name, table, scale, scale_table, seeds, settings, full)
            for name, table in content["experiments"].items()
        }
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as e:
        raise ValueError(f"{path}: not a plan ({e})") from None
    except KeyError as e:
        raise ValueError(f"{path}: lacks {e} for scale {scale}") from None
    names = {name: name for name in experiments}
    names |= {other: name for name, table in content["experiments"].items() for other in table.get("also", [])}
    return Plan(
        scale,
        scale_table["about"],
        experiments,
        names,
        scale_table.get("images", 0),
        scale_table.get("images_per_second", {}),
    )


def _experiment(
    name: str,
    table: dict[str, Any],
    scale: str,
    scale_table: dict[str, Any],
    seeds: Sequence[int] | None,
    settings: Sequence[str],
    full: bool,
) -> Experiment:
    common = [*(() if table.get("unscaled") else scale_table.get("set", ())), *table.get("set", ()), *settings]
    entries = [entry for entry in table.get(scale, ()) if full or not entry.get("full", False)]
    points = [_point(entry, scale_table, common) for entry in entries]
    one = table.get("one_seed", False)
    usual = table.get("seeds") or scale_table.get("seeds") or (points[0].recipe.train.seeds if points else [])
    alone = one.get(scale, False) if isinstance(one, dict) else one
    return Experiment(
        name,
        comparable=_text(table["comparable"], scale_table, "comparable", scale),
        different=_text(table["different"], scale_table, "different", scale),
        scale=scale,
        about="; changed: ".join(
            [table.get("about", scale_table["about"]), *([", ".join(settings)] if settings else [])]
        ),
        points=points,
        seeds=list(dict.fromkeys(seeds or (usual[:1] if alone else usual))),
        layers=table.get("layers", {}).get(scale, []),
        nothing=table.get("nothing", {}).get(scale, "") or _clash(table, scale, settings),
        **{key: value for key, value in table.items() if key not in (*_BY_SCALE, *_READ_HERE, *SCALES)},
    )


def _text(value: Any, scale_table: dict[str, Any], key: str, scale: str) -> str:
    """The text for both scales, or for this scale, or the default of the scale."""
    return str(value.get(scale) or scale_table[key]) if isinstance(value, dict) else str(value)


def _clash(table: dict[str, Any], scale: str, settings: Sequence[str]) -> str:
    """Why the user's settings exclude a sweep: its recipes have the values that are swept."""
    swept = table.get("x", "")
    fixed = any("recipe" in entry for entry in table.get(scale, ()))
    changed = [s for s in settings if s.partition("=")[0].strip() == swept]
    return f"--set {changed[0]} would change what it sweeps" if fixed and changed else ""


def _point(entry: dict[str, Any], scale_table: dict[str, Any], common: Sequence[str]) -> Point:
    name, label = entry.get("recipe") or scale_table["recipe"], entry["label"]
    chosen = _last_of_each([*common, *entry.get("set", ())])
    recipe = load_recipe(name)
    set_values(recipe, chosen)
    before = {"label": f"{label}, first step", "recipe": name, "set": entry.get("first")}
    return Point(
        label,
        entry.get("series", label),
        name,
        tuple(chosen),
        recipe,
        entry.get("paper", ""),
        tuple(entry.get("never", ())),
        _point(before, scale_table, common) if "first" in entry else None,
    )


def _last_of_each(settings: Sequence[str]) -> list[str]:
    """Settings without those that a later one overrides."""
    return list({s.partition("=")[0].strip(): s for s in settings}.values())


def flat(recipe: Recipe) -> list[tuple[str, str, Any]]:
    """(section, key, value) of all that a run depends on."""
    content = as_dict(recipe)
    return [(section, key, value) for section in SECTIONS for key, value in content[section].items()]


def same_run(a: Recipe, b: Recipe) -> bool:
    """Whether two recipes train the same network, whatever they are called."""
    left, right = ([row for row in flat(r) if row[:2] not in IGNORED] for r in (a, b))
    return left == right


def value_of(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return as_dict(recipe)[section][name]


def _word(value: Any) -> str:
    """A value as a part of a file name."""
    if isinstance(value, bool):
        return "-on" if value else "-off"
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", f"{value:g}" if isinstance(value, float) else str(value))
