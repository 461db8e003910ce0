"""Recipes, the schedule of learning rates, optimisers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ovsw.nn import create
from ovsw.train.optim import learning_rate
from ovsw.train.recipe import TrainConfig, load_recipe, recipes, set_values

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_every_recipe_loads_and_builds() -> None:
    found = recipes()
    names = [r.name for r in found]
    assert len(names) == len(set(names)) >= 60
    for recipe in found:
        assert recipe.title
        assert recipe.notes
        with torch.device("meta"):
            create(recipe.network.name, recipe.network.num_classes)


def test_recipes_say_what_the_released_code_does() -> None:
    cifar = load_recipe("table1-cresnet20")
    assert (cifar.train.epochs, cifar.train.batch, cifar.train.weight_decay) == (600, 256, 5e-4)
    assert (cifar.ovsw.lam, cifar.ovsw.gamma, cifar.ovsw.sigma, cifar.ovsw.momentum) == (0.04, 9e-4, 1e-4, 0.999)
    assert (cifar.network.learned_scale, cifar.network.sign_zero, cifar.train.decay_dims) == (False, 0, 1)
    imagenet = load_recipe("table2-resnet18")
    assert (imagenet.train.epochs, imagenet.train.batch, imagenet.train.weight_decay) == (200, 512, 1e-4)
    assert (imagenet.ovsw.lam, imagenet.ovsw.gamma, imagenet.train.decay_dims) == (0.01, 2e-5, 2)
    vanilla = load_recipe("table3-cifar100/vanilla")
    assert (vanilla.ovsw.ags, vanilla.ovsw.sad, vanilla.train.epochs) == (False, False, 120)
    assert "65.23" in vanilla.paper


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epoch=3", "did you mean 'epochs'"),
        ("trian.epochs=3", "did you mean 'train'"),
        ("train.epochs=many", "expected int"),
        ("train=3", "section.key=value"),
        ("train.epochs", "section.key=value"),
        ("ovsw.ags=1", "expected bool"),
    ],
)
def test_refused_settings(assignment: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        set_values(load_recipe("table1-cresnet20"), [assignment])


def test_settings(tmp_path: Path) -> None:
    recipe = load_recipe("table1-cresnet20")
    set_values(recipe, ["train.epochs=3", "train.lr=1", "ovsw.ags=false", "data.kind=synthetic", "train.seeds=[1, 2]"])
    assert (recipe.train.epochs, recipe.train.lr, recipe.ovsw.ags) == (3, 1.0, False)
    assert (recipe.data.kind, recipe.train.seeds) == ("synthetic", [1, 2])
    for name, words in (("table1-resnet20", "table1-cresnet20"), ("table3-cifar100/agz", "'ags'")):
        with pytest.raises(ValueError, match=words):
            load_recipe(name)
    (tmp_path / "mine.toml").write_text('title = "mine"\n[train]\nlr = 0.5\n')
    assert load_recipe(str(tmp_path / "mine.toml")).train.lr == 0.5
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ValueError, match=r"bad\.toml: not a recipe"):
        load_recipe(str(tmp_path / "bad.toml"))


# Schedule and optimisers


def test_smooth_learning_rate() -> None:
    """A line, then a cosine, at every fraction of an epoch; the usual one is the same within an epoch."""
    smooth = TrainConfig(epochs=4, warmup=2, lr=0.1, schedule="smooth")
    rates = [learning_rate(smooth, t) for t in (0, 0.5, 1, 2, 3, 3.5)]
    assert rates == pytest.approx([0, 0.025, 0.05, 0.10001, 0.05001, 0.05 * (1 - np.sqrt(0.5)) + 1e-5])
    usual = TrainConfig(epochs=4, warmup=2, lr=0.1)
    assert learning_rate(usual, 3.9) == learning_rate(usual, 3)
    assert learning_rate(usual, 0.9) == 0.05


def test_learning_rate() -> None:
    config = TrainConfig()
    rates = [learning_rate(config, epoch) for epoch in range(600)]
    assert rates[:6] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.10001])
    assert rates[-1] == pytest.approx(1.07e-5, rel=0.01)
    assert all(a > b for a, b in zip(rates[5:], rates[6:]))
