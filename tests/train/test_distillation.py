"""Training with a teacher of ours, images held out, and flips that alternate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ovsw.datasets import DataError, MemorySet
from ovsw.nn import create
from ovsw.train import augment, trainer
from ovsw.train.cli import main
from ovsw.train.distributed import World
from ovsw.train.recipe import Recipe, load_recipe, set_values

SMALL = ["data.kind=synthetic", "train.epochs=1", "train.batch=64", "train.warmup=0", "train.lr=0.02"]


def arguments(recipe: str, run: Path, *settings: str) -> list[str]:
    return [recipe, "-o", str(run), "--quiet", *(part for s in (*SMALL, *settings) for part in ("--set", s))]


@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 1.0), (0.9, 4.0), (0.0, 2.0)])
def test_the_loss(weight: float, temperature: float) -> None:
    """weight * T * H(softmax(teacher / T), softmax(logits / T)) + (1 - weight) * H(labels, softmax(logits))."""
    rng = np.random.default_rng(0)
    logits, outputs, labels = rng.normal(size=(6, 5)), 3 * rng.normal(size=(6, 5)), rng.integers(0, 5, 6)
    recipe = Recipe()
    set_values(recipe, [f"train.distil={weight}", f"train.temperature={temperature}"])
    run: Any = SimpleNamespace(recipe=recipe, teacher=lambda x: torch.from_numpy(outputs))
    found = trainer._loss(run, torch.zeros(6), torch.from_numpy(labels), torch.from_numpy(logits))

    def log_softmax(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    targets = np.exp(log_softmax(outputs / temperature))
    soft = -(targets * log_softmax(logits / temperature)).sum(axis=1).mean() * temperature
    hard = -log_softmax(logits)[np.arange(6), labels].mean()
    assert float(found) == pytest.approx(weight * soft + (1 - weight) * hard)


def test_a_float_network_teaches_a_binary_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A float run, which has no flips to report, and then a binary one with its weights."""
    assert main(arguments("teacher-cresnet20", tmp_path / "teacher")) == 0
    teacher = tmp_path / "teacher" / "last.pth"
    binary = arguments("table1-cresnet20", tmp_path / "student", "train.teacher=float_cResNet20", "train.distil=0.9")
    assert main([*binary, "--teacher", str(teacher)]) == 0
    weights = torch.load(teacher, weights_only=True)["state_dict"]
    assert weights.keys() == create("float_cResNet20").state_dict().keys()
    capsys.readouterr()
    wrong = arguments("table1-cresnet20", tmp_path / "wrong", "train.teacher=cResNet20")
    assert main([*wrong, "--teacher", str(teacher)]) == 1
    assert "does not fit the network" in capsys.readouterr().err


def test_settings_that_cannot_be() -> None:
    for setting, words in (
        ("train.distil=1.5", "train.distil is 1.5"),
        ("train.temperature=0", "train.temperature is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            set_values(load_recipe("table1-cresnet20"), [setting])


def numbered(count: int) -> MemorySet:
    """Images with a ramp from left to right; labels are their numbers."""
    ramp = torch.arange(32, dtype=torch.uint8).mul(4).expand(count, 3, 32, 32).clone() + 64
    return MemorySet(ramp, torch.arange(count), [str(i) for i in range(count)])


def test_images_that_are_held_out() -> None:
    data = numbered(50)
    parts = {split: trainer._without(data, 12, split).labels.tolist() for split in ("train", "test")}
    assert (len(parts["train"]), len(parts["test"])) == (38, 12)
    assert sorted(parts["train"] + parts["test"]) == list(range(50))
    assert parts["test"] != list(range(12))
    assert trainer._without(data, 12, "test").labels.tolist() == parts["test"]
    for wrong in (50, 60, -1):
        with pytest.raises(DataError, match=f"data.held_out is {wrong}, of 50 training images"):
            trainer._without(data, wrong, "train")
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, ["data.kind=synthetic", "data.held_out=100"])
    train, test = (trainer.open_data(recipe, None, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (412, 100)


def test_flips_that_alternate() -> None:
    """Each image is mirrored in every second epoch, half of them in each."""
    recipe, data = load_recipe("table1-cresnet20"), numbered(40)
    set_values(recipe, ["data.augment=cifar-alternate", "train.batch=16"])
    mirrored = []
    for epoch in range(3):
        batches = list(trainer._train_batches(recipe, data, 5, epoch, World()))
        middle = torch.cat([x[:, 0, 16, 12:20] for x, _ in batches])
        numbers = torch.cat([y for _, y in batches])
        mirrored.append((middle[:, 0] > middle[:, -1])[torch.argsort(numbers)])
    assert (mirrored[0] ^ mirrored[1]).all()
    assert (mirrored[0] == mirrored[2]).all()
    assert 8 < int(mirrored[0].sum()) < 32
    with pytest.raises(ValueError, match="has to be told which images are mirrored"):
        augment.apply(data.images, "cifar-alternate", (0,) * 3, (1,) * 3, torch.Generator(), 32)
