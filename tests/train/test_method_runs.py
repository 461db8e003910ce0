"""Runs of the other methods by their recipes: schedules as the trainer drives them, resuming, class names."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ovsw import Engine
from ovsw.export.cli import main as export_main
from ovsw.export.frontend.checkpoint import load
from ovsw.labels import load_labels
from ovsw.networks import NORMALISATIONS
from ovsw.nn import AdaptiveConv2d, RectifiedConv2d, RotatedConv2d, binary_layers
from ovsw.train import cli, flips, trainer
from ovsw.train.recipe import Recipe, load_recipe, recipes, set_values

from support.training import assert_same, few_images, interrupted, metrics, tiny_cifar

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TINY = ["data.kind=synthetic", "train.epochs=2", "train.batch=32", "train.lr=0.02", "train.warmup=0"]
METHODS = ("rbnn", "adabin", "recu", "bireal", "xnor++")


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_images(64, 32):
        yield


def arguments(recipe: str, folder: Path, *more: str, settings: list[str] | None = None) -> list[str]:
    changes = [part for s in (settings or TINY) for part in ("--set", s)]
    return [recipe, "-o", str(folder), "--quiet", *changes, *more]


def recipe_of(name: str, *settings: str) -> Recipe:
    recipe = load_recipe(name)
    set_values(recipe, [*TINY, *settings])
    return recipe


def test_every_method_comes_with_and_without_ovsw() -> None:
    found = {r.name: r for r in recipes()}
    for method in METHODS:
        plain, plugged = found[method], found[f"{method}/ovsw"]
        assert (plain.ovsw.ags, plain.ovsw.sad) == (False, False)
        assert (plugged.ovsw.ags, plugged.ovsw.sad) == (True, True)
        assert plain.network == plugged.network
        for name in (n for n in found if n.startswith(f"{method}/") and not n.endswith("ovsw")):
            assert found[f"{name}-ovsw"].network == found[name].network
    for recipe in (r for name, r in found.items() if name.split("/")[0] in METHODS):
        with torch.device("meta"):
            assert binary_layers(trainer.build_model(recipe))
    assert [found[m].train.epochs for m in ("rbnn", "adabin", "recu")] == [1000, 400, 600]
    assert [found[m].train.weight_decay for m in ("rbnn", "adabin", "recu")] == [1e-4, 1e-4, 5e-4]
    assert "69.98" in found["rbnn/cifar100-ovsw"].paper


@pytest.mark.parametrize("recipe", ["rbnn/ovsw", "adabin", "recu"])
def test_stopped_and_resumed(recipe: str, tmp_path: Path) -> None:
    """After the first of two epochs; rotations, tau and the schedules are those of the unbroken run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli.main(arguments(recipe, whole)) == 0
    interrupted(arguments(recipe, broken))
    assert torch.load(broken / "last.pth", weights_only=True)["epoch"] == 1
    assert cli.main(arguments(recipe, broken, "--resume")) == 0
    assert_same(whole / "last.pth", broken / "last.pth")
    assert len(metrics(whole)) == 2
    assert all(np.isfinite(row["loss"]) for row in metrics(whole))


@pytest.mark.parametrize("schedule", ["cosine", "smooth"])
def test_the_trainer_drives_schedules(schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per epoch, or with a smooth schedule at every step; rotations at the start of each epoch."""
    seen: list[float] = []
    turns: list[int] = []
    monkeypatch.setattr(RotatedConv2d, "begin_epoch", lambda _: turns.append(len(seen)))
    real = RotatedConv2d.set_progress

    def watched(self: RotatedConv2d, progress: float) -> None:
        seen.append(progress)
        real(self, progress)

    run = trainer.start(recipe_of("rbnn", f"train.schedule={schedule}", "train.batch=16"), tmp_path, 1)
    monkeypatch.setattr(RotatedConv2d, "set_progress", watched)
    trainer.train(run, None, quiet=True)
    steps = [0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5] if schedule == "cosine" else [i / 8 for i in range(8)]
    assert seen[::18] == steps  # eighteen layers, four batches, two epochs
    assert turns == [0] * 18 + [72] * 18


@pytest.mark.parametrize(("name", "kind"), [("adabin", AdaptiveConv2d), ("recu", RectifiedConv2d)])
def test_layers_are_where_the_last_epoch_left_them(name: str, kind: type, tmp_path: Path) -> None:
    run = trainer.start(recipe_of(name), tmp_path, 1)
    trainer.train(run, None, quiet=True)
    for layer in binary_layers(run.model).values():
        assert isinstance(layer, kind)
        if isinstance(layer, AdaptiveConv2d):
            assert layer.t == pytest.approx(0.1)
        if isinstance(layer, RectifiedConv2d):
            assert layer.tau.item() == pytest.approx(0.90285, abs=1e-5)


def test_flips_of_a_run_are_those_of_binary_weights(tmp_path: Path) -> None:
    assert cli.main(arguments("rbnn", tmp_path)) == 0
    layers = flips.load_run(tmp_path)
    assert len(layers) == 18
    changed = sum(layer.changed_share * layer.start.size for layer in layers)
    never = sum(layer.never_share * layer.start.size for layer in layers)
    total = sum(layer.start.size for layer in layers)
    assert 0.001 < changed / total <= 1 - never / total  # rotations alone see to that
    assert metrics(tmp_path)[-1]["never_flipped"] == pytest.approx(never / total)


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("rbnn", "network.binary_weights=false", "cannot be used with RBNN_cResNet20_1w1a"),
        ("adabin", "network.recu_tau=0.9", "cannot be used with AdaBin_cResNet20_1w1a"),
        ("adabin", "network.learned_scale=true", "learned_scale is not an option"),
        ("recu", "data.normalise=mnist", "data.normalise is 'mnist'; known are imagenet, cifar10, cifar100"),
    ],
)
def test_refused_settings(name: str, setting: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        trainer.start(recipe_of(name, setting), tmp_path, 1)


# What a run says of its input


def input_of(folder: Path) -> Any:
    return load(folder / "model_best.pth").input


@pytest.mark.parametrize("kind", ["CIFAR-10's", "its own"])
def test_a_cifar_run_answers_with_names(kind: str, tmp_path: Path) -> None:
    """Through the exporter to the engine: "cat", not "class 3"."""
    data = tiny_cifar(tmp_path / "data")
    if kind == "CIFAR-10's":
        names = [name.encode() for name in load_labels("cifar10", 10)]
        (data / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, 2))
    settings = ["train.epochs=1", "train.batch=32", "train.warmup=0"]
    run = arguments("table1-cresnet20", tmp_path / "run", "--data", str(data), settings=settings)
    assert cli.main(run) == 0
    found = input_of(tmp_path / "run")
    assert (found.mean, found.std) == NORMALISATIONS["cifar10"]
    target = tmp_path / "m.bnn"
    assert export_main([str(tmp_path / "run" / "model_best.pth"), "-o", str(target), "--verify", "1"]) == 0
    assert Engine(target).labels[3] == ("cat" if kind == "CIFAR-10's" else "c3")


def test_normalisation_of_the_recipe(tmp_path: Path) -> None:
    settings = [*TINY, "train.epochs=1", "data.normalise=cifar100"]
    assert cli.main(arguments("recu", tmp_path, settings=settings)) == 0
    found = input_of(tmp_path)
    assert (found.mean, found.std) == NORMALISATIONS["cifar100"]
    assert found.labels[3] == "pattern 3"
    split = trainer.open_data(recipe_of("recu"), None, "train")
    ways = [recipe_of("recu"), recipe_of("recu", "data.normalise=cifar100")]
    usual, other = (next(trainer._train_batches(recipe, split, 1, 0, trainer.World()))[0] for recipe in ways)
    assert not torch.equal(usual, other)


def test_names_of_imagenet() -> None:
    folders = ["n01440764", *(f"n{i:08d}" for i in range(2_000_000, 2_000_998)), "n15075141"]
    assert trainer._known_labels(folders) == "imagenet"
    assert trainer._known_labels(folders[:-1]) == folders[:-1]
    assert trainer._known_labels(["cat", "dog"]) == ["cat", "dog"]
