"""Recipes: everything about an experiment as data. One TOML file per experiment of the paper, variants inside.

recipe = load_recipe("table3-cifar100/ags")
set_values(recipe, ["train.epochs=10"])
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovsw.commands.base import UsageError
from ovsw.networks import NORMALISATIONS, InputSpec, network

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "recipes"


@dataclass
class NetworkConfig:
    name: str = "cResNet20_1w1a"
    num_classes: int = 10
    learned_scale: bool = False
    binary_weights: bool = True  # false in the first of two steps: binary activations, real weights
    sign_zero: int = 0  # the sign of an exact zero: 0 in the released code, 1 in the paper
    init: str = "normal"  # of the binary weights: normal or uniform, both Kaiming
    init_scale: float = 1.0
    recu_tau: float = 0.0  # ReCU's clamp, off at 0


@dataclass
class DataConfig:
    kind: str = "cifar10"
    normalise: str = ""  # mean and std: imagenet, cifar10, cifar100; those of the network's paper if empty
    augment: str = "cifar"  # cifar, cifar-alternate (each image mirrored every second epoch), imagenet, none
    crop: list[float] = field(default_factory=lambda: [0.08, 1.25])  # share of the area that "imagenet" crops ask for
    broken: str = "refuse"  # images that cannot be decoded: refuse or skip
    limit: int = 0  # use at most this many training and test images; 0: all
    held_out: int = 0  # training images that replace the test set, to choose settings with
    workers: int = 2  # processes that decode an image folder


@dataclass
class TrainConfig:
    epochs: int = 600
    batch: int = 256
    optimizer: str = "sgd"  # sgd, adam, lars
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_dims: int = (
        1  # weight decay for parameters with this many dimensions or more: 1 all, 2 no vectors, 4 no classifier
    )
    schedule: str = "cosine"  # cosine or linear, set once per epoch; smooth: cosine, set at every step
    warmup: int = 5
    label_smoothing: float = 0.0
    lars_eta: float = 0.001
    teacher: str = ""  # network to distil from: resnet18 or resnet34 with torchvision's weights, or one of ours
    distil: float = 1.0  # weight of the teacher's outputs in the loss; the labels have the rest
    temperature: float = (
        1.0  # both outputs are divided by this before they are compared, and the loss is multiplied by it
    )
    teacher_views: int = 0  # views of each image, on which the teacher runs once; 0: it runs in every step
    second_step: bool = False  # starts from the weights of a first step
    sync_bn: bool = False  # with several processes: batch norm over the whole batch
    channels_last: bool = False  # maps with channels innermost: for GPUs
    compile: bool = False  # torch.compile
    deployed_epochs: int = 0  # the last epochs that compute as the exported file does, with frozen batch norms
    deployed_weights: str = "int16"  # real weights of that file: int16 or int8
    deployed_stem: str = ""  # those of its first layer; as the others if empty
    deployed_signs: bool = False  # whether these epochs change binary weights, too
    seeds: list[int] = field(default_factory=lambda: [46])


@dataclass
class OvSWConfig:
    ags: bool = True
    lam: float = 0.04
    sad: bool = True
    gamma: float = 9e-4
    sigma: float = 1e-4
    momentum: float = 0.999
    track_ones: bool = False


@dataclass
class Recipe:
    """`paper` is the result in the paper, `notes` lists where its text and its released code differ."""

    name: str = ""
    title: str = ""
    paper: str = ""
    notes: str = ""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    ovsw: OvSWConfig = field(default_factory=OvSWConfig)


def recipes() -> list[Recipe]:
    """All recipes of the package, variants included."""
    known = []
    for path in sorted(FOLDER.glob("*.toml")):
        known.append(load_recipe(path.stem))
        known += [load_recipe(f"{path.stem}/{variant}") for variant in _read(path).get("variants", {})]
    return known


def load_recipe(name: str) -> Recipe:
    """A recipe by name ("table1-cresnet20", "table3-cifar100/ags") or from a file. Raises ValueError."""
    stem, _, variant = name.partition("/") if not name.endswith(".toml") else (name, "", "")
    path = Path(stem) if name.endswith(".toml") else FOLDER / f"{stem}.toml"
    if not path.is_file():
        names = [p.stem for p in FOLDER.glob("*.toml")]
        raise ValueError(f"no recipe '{stem}'{_suggest(stem, names)}; --list shows them all")
    content = _read(path)
    variants = content.pop("variants", {})
    recipe = Recipe(name=name)
    _merge(recipe, content, path.name)
    if variant:
        if variant not in variants:
            raise ValueError(f"recipe '{stem}' has no variant '{variant}'{_suggest(variant, list(variants))}")
        changes = dict(variants[variant])
        recipe.paper = changes.pop("paper", "")
        recipe.title = f"{recipe.title}: {changes.pop('title', variant)}"
        _merge(recipe, changes, path.name)
    return recipe


def set_values(recipe: Recipe, assignments: list[str]) -> None:
    """Applies `section.key=value` changes. Raises UsageError for unknown keys and for bad values."""
    try:
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            section, dot, name = key.strip().partition(".")
            if not equals or not dot:
                raise ValueError(f"'{assignment}' is not of the form section.key=value")
            _merge(recipe, {section: {name: _parse(text.strip())}}, "--set")
        _check(recipe)
    except ValueError as e:
        raise UsageError(str(e)) from None


def _check(recipe: Recipe) -> None:
    """Raises ValueError for numbers out of range."""
    least = {"train.epochs": 1, "train.batch": 1, "train.warmup": 0, "network.num_classes": 1, "data.workers": 0}
    for key, bound in least.items():
        section, name = key.split(".")
        value = getattr(getattr(recipe, section), name)
        if value < bound:
            raise ValueError(f"{key} is {value}, expected at least {bound}")
    if not recipe.train.seeds:
        raise ValueError("train.seeds is empty, expected at least one")
    if not 0 <= recipe.train.lr < math.inf:
        raise ValueError(f"train.lr is {recipe.train.lr:g}, expected 0 or more")
    if not 0 <= recipe.train.distil <= 1:
        raise ValueError(f"train.distil is {recipe.train.distil:g}, expected 0 to 1")
    if not 0 < recipe.train.temperature < math.inf:
        raise ValueError(f"train.temperature is {recipe.train.temperature:g}, expected more than 0")
    _check_views(recipe.train, recipe.data.augment)


def _check_views(train: TrainConfig, augment: str) -> None:
    views = train.teacher_views
    if not 0 <= views <= 162:
        raise ValueError(f"train.teacher_views is {views}, expected 0 to 162: 81 crops, each of them mirrored or not")
    if views and not train.teacher:
        raise ValueError(f"train.teacher_views is {views}, but train.teacher is empty")
    if views and augment not in ("cifar", "cifar-alternate"):
        raise ValueError(f"train.teacher_views needs data.augment cifar or cifar-alternate, not '{augment}'")
    if views % 2 and augment == "cifar-alternate":
        raise ValueError(
            f"train.teacher_views is {views}, expected an even number: cifar-alternate mirrors half of them"
        )


def as_dict(recipe: Recipe) -> dict[str, Any]:
    return dataclasses.asdict(recipe)


def from_dict(content: dict[str, Any]) -> Recipe:
    recipe = Recipe()
    _merge(recipe, content, "checkpoint")
    return recipe


def kept_recipe(checkpoint: Any) -> Recipe | None:
    """The recipe in a checkpoint of `ovsw-train`; None in other checkpoints."""
    kept = checkpoint.get("ovsw") if isinstance(checkpoint, dict) else None
    content = kept.get("recipe") if isinstance(kept, dict) else None
    return from_dict(content) if isinstance(content, dict) else None


def input_of(recipe: Recipe) -> InputSpec:
    """The input of the recipe's network, with the mean and std that the recipe sets. Raises ValueError."""
    spec, name = network(recipe.network.name).input, recipe.data.normalise
    if not name:
        return spec
    if name not in NORMALISATIONS:
        raise ValueError(f"data.normalise is '{name}'; known are {', '.join(NORMALISATIONS)}")
    mean, std = NORMALISATIONS[name]
    return dataclasses.replace(spec, mean=mean, std=std)


def changes(content: dict[str, Any]) -> list[str]:
    """The `section.key=value` changes to the recipe of this name, or to the default values if it was a file."""
    name = content["name"]
    usual = as_dict(Recipe() if name.endswith(".toml") else load_recipe(name))
    return [
        f"{section}.{key}={json.dumps(value)}"
        for section in ("network", "data", "train", "ovsw")
        for key, value in content[section].items()
        if value != usual[section].get(key)
    ]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"{path}: not a recipe ({e})") from None


def _parse(text: str) -> Any:
    """A TOML value, or else the text itself."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(target: Any, changes: dict[str, Any], where: str, prefix: str = "") -> None:
    known = {f.name: f for f in dataclasses.fields(target)}
    for key, value in changes.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key '{prefix}{key}'{_suggest(key, list(known))}")
        now = getattr(target, key)
        if dataclasses.is_dataclass(now):
            if not isinstance(value, dict):
                raise ValueError(f"{where}: '{prefix}{key}' is a section, not a value")
            _merge(now, value, where, f"{prefix}{key}.")
        else:
            if isinstance(now, float) and type(value) is int:
                value = float(value)
            if type(value) is not type(now):
                raise ValueError(
                    f"{where}: '{prefix}{key}' is {value!r}, expected {type(now).__name__} such as {now!r}"
                )
            setattr(target, key, value)


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.4)
    return f", did you mean '{close[0]}'?" if close else f"; known are {', '.join(sorted(known))}"
