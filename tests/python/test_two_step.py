"""ReActNet's two steps with a teacher: its networks, its gradients, the distilled runs and what they refuse."""

from __future__ import annotations

import csv
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ovsw import Engine
from ovsw.export.cli import main as export_main
from ovsw.nn import ReActConv2d, binary_layers, create, float_network
from ovsw.nn.react import ReActBlock
from ovsw.train import OvSW, augment, cli, trainer
from ovsw.train.data import DataError, FolderSet, MemorySet, open_split
from ovsw.train.optim import learning_rate, make_optimizer
from ovsw.train.recipe import TrainConfig, load_recipe, set_values

import oracle
from conftest import shared

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REACT18, R20 = "ReActResNet18_1w1a", "cResNet20_1w1a"
TOLERANCE = 1e-4


# The networks


@functools.cache
def state_of(arch: str, size: int, **options: Any) -> oracle.State:
    return oracle.random_state(arch, 10, np.random.default_rng(size), size=size, **options)


def reference_keys(arch: str, classes: int) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of ReActNet's code, without `module.`."""
    keys: dict[str, tuple[int, ...]] = {}
    for key, kind, shape in oracle.layout(arch, classes):
        parts = {
            "bn": ("weight", "bias", "running_mean", "running_var"),
            "fc": ("weight", "bias"),
            "shift": ("bias",),
        }.get(kind, ("weight",))
        keys.update({f"{key}.{part}": shape[:1] if (kind, part) == ("fc", "bias") else shape for part in parts})
        keys.update({f"{key}.num_batches_tracked": ()} if kind == "bn" else {})
    return keys


@pytest.mark.parametrize(
    ("arch", "parameters", "binary", "layers"),
    [(REACT18, 11_704_424, 10_985_472, 16), ("ReActResNet34_1w1a", 21_827_432, 21_086_208, 32)],
)
def test_counts_and_keys(arch: str, parameters: int, binary: int, layers: int) -> None:
    with torch.device("meta"):
        model, learned = create(arch), create(arch, learned_scale=True)
    convolutions = binary_layers(model)
    assert all(type(layer) is ReActConv2d for layer in convolutions.values())
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert (sum(m.weight.numel() for m in convolutions.values()), len(convolutions)) == (binary, layers)
    found = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    assert list(found.items()) == list(reference_keys(arch, 1000).items())
    extra = [k for k in learned.state_dict() if k not in found]
    assert extra == [f"{name}.scaling_factor" for name in convolutions]


def test_keys_of_the_golden() -> None:
    with np.load(shared("golden", "ReActNet_birealnet18_step2.npz")) as f:
        keys = json.loads(str(f["meta"]))["keys"]
    assert reference_keys(REACT18, 1000) == {key: tuple(shape) for key, _, shape in keys}
    assert list(create(REACT18).state_dict()) == [key for key, _, _ in keys]


@pytest.mark.parametrize(
    ("arch", "size", "options"), [(REACT18, 64, {}), ("ReActResNet34_1w1a", 32, {"learned": True})]
)
def test_logits_in_float64(arch: str, size: int, options: dict[str, bool]) -> None:
    state = state_of(arch, size, **options)
    model = create(arch, 10, learned_scale=bool(options)).double().eval()
    model.load_state_dict(state)
    images = np.random.default_rng(1).integers(0, 256, (3, size, size, 3), np.uint8)
    x = oracle.prepare(arch, images)
    with torch.no_grad():
        found = model(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(found, oracle.logits(arch, state, x), atol=1e-9, rtol=0)


def test_every_part_of_a_random_checkpoint_matters() -> None:
    """What is compared with the oracle would show each of these misreadings."""
    state = state_of(REACT18, 64)
    images = np.random.default_rng(2).integers(0, 256, (1, 64, 64, 3), np.uint8)
    x = oracle.prepare(REACT18, images)
    expected = oracle.logits(REACT18, state, x)
    edits: dict[str, Callable[[Tensor], Tensor]] = {
        "layer2.0.move0.bias": torch.zeros_like,
        "layer2.0.move1.bias": torch.zeros_like,
        "layer2.0.move2.bias": torch.zeros_like,
        "layer4.3.prelu.weight": torch.abs,
        "layer4.3.move2.bias": torch.zeros_like,
        "layer3.1.bn1.weight": torch.abs,
        "layer3.0.downsample.2.weight": torch.abs,
        "layer3.0.downsample.1.weight": lambda w: w.roll(1, 1),
        "layer1.1.binary_conv.weight": lambda w: w - w.mean((1, 2, 3), keepdim=True),
        "layer1.2.binary_conv.weight": torch.sign,
    }
    for key, edit in edits.items():
        assert np.abs(oracle.logits(REACT18, {**state, key: edit(state[key])}, x) - expected).max() > 0.01, key


def float_logits(state: dict[str, Tensor], x: Tensor, counts: tuple[int, ...]) -> Tensor:
    """torchvision's ResNet18/34 in eval mode, by its keys."""

    def norm(x: Tensor, key: str) -> Tensor:
        parts = ("weight", "bias", "running_mean", "running_var")
        gamma, beta, mean, var = (state[f"{key}.{part}"][:, None, None] for part in parts)
        return (x - mean) / (var + 1e-5).sqrt() * gamma + beta

    x = norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").clamp(min=0)
    x = F.max_pool2d(x, 3, 2, 1)
    for key in (f"layer{n}.{i}" for n, count in enumerate(counts, 1) for i in range(count)):
        stride = 2 if key in ("layer2.0", "layer3.0", "layer4.0") else 1
        y = norm(F.conv2d(x, state[f"{key}.conv1.weight"], stride=stride, padding=1), f"{key}.bn1").clamp(min=0)
        y = norm(F.conv2d(y, state[f"{key}.conv2.weight"], padding=1), f"{key}.bn2")
        if stride == 2:
            x = norm(F.conv2d(x, state[f"{key}.downsample.0.weight"], stride=2), f"{key}.downsample.1")
        x = (x + y).clamp(min=0)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def randomised(model: torch.nn.Module) -> None:
    """Batch norms with weights of both signs, and statistics of one batch of noise."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.momentum = 1.0
                m.weight.copy_(torch.rand_like(m.weight) * 1.5 - 0.2)
                m.bias.normal_(0, 0.3)
        model.train()(torch.randn(8, 3, 32, 32))
    model.eval()


@pytest.mark.parametrize(
    ("name", "counts", "parameters", "keys"),
    [("resnet18", (2, 2, 2, 2), 11_689_512, 122), ("resnet34", (3, 4, 6, 3), 21_797_672, 218)],
)
def test_float_networks_are_torchvisions(name: str, counts: tuple[int, ...], parameters: int, keys: int) -> None:
    with torch.device("meta"):
        full = float_network(name)
    assert sum(p.numel() for p in full.parameters()) == parameters
    assert len(full.state_dict()) == keys
    torch.manual_seed(0)
    model = float_network(name, 5)
    randomised(model)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        found, state = model.double()(x), model.state_dict()
        torch.testing.assert_close(found, float_logits(state, x, counts), atol=1e-9, rtol=1e-9)
    assert found.std(0).max() > 0.05
    with pytest.raises(ValueError, match="unknown float network 'resnet50'; known are resnet18, resnet34"):
        float_network("resnet50")


# Gradients, by ReActNet's own formulation: value - smooth.detach() + smooth


def signs(x: Tensor, zero: int) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, float(zero))).double()


def shaped(value: Tensor, smooth: Tensor) -> Tensor:
    """`value` with the gradient of `smooth`."""
    return smooth - smooth.detach() + value.detach()


def naive_conv(x: Tensor, weight: Tensor, stride: int, kind: str, zero: int, alpha: Tensor | None = None) -> Tensor:
    bireal = torch.where(x < -1, -1.0, torch.where(x < 0, 2 * x + x**2, torch.where(x < 1, 2 * x - x**2, 1.0)))
    a = shaped(signs(x, zero), bireal)
    if kind == "real":
        return F.conv2d(a, weight, stride=stride, padding=1)
    clipped = torch.where(weight > 1, 1.0, torch.where(weight < -1, -1.0, weight))
    if alpha is not None:  # not ReActNet's: a factor behind the convolution, as in the other networks
        return F.conv2d(a, shaped(signs(weight, zero), clipped), stride=stride, padding=1) * alpha[:, None, None]
    scale = torch.stack([w.abs().sum() / w.numel() for w in weight])[:, None, None, None]
    return F.conv2d(a, shaped(scale * signs(weight, zero), clipped), stride=stride, padding=1)


def naive_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * gamma[:, None, None] + beta[:, None, None]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["binary", "real", "learned"])
def test_convolution_in_training(kind: str, stride: int, zero: int) -> None:
    torch.manual_seed(3)
    layer = ReActConv2d(5, 7, 3, stride, 1, kind == "learned").double().train()
    layer.binary_weights, layer.zero = kind != "real", zero
    with torch.no_grad():
        layer.weight.copy_(0.8 * torch.randn_like(layer.weight) + 0.2)  # a fifth of them beyond -1..1
        layer.weight[2, 3] = 0.0
        if layer.scaling_factor is not None:
            layer.scaling_factor.copy_(torch.randn(7))
    x = torch.randn(3, 5, 6, 6, dtype=torch.float64) * 0.7
    x[:, 1] *= 3  # samples keep their spread: nothing is divided by it
    x[0, 4] = 0.0
    mine, naive = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = layer.weight.detach().clone().requires_grad_()
    alpha = None if layer.scaling_factor is None else layer.scaling_factor.detach().clone().requires_grad_()
    found, expected = layer(mine), naive_conv(naive, weight, stride, kind, zero, alpha)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    close = functools.partial(torch.testing.assert_close, atol=1e-10, rtol=0)
    close(found, expected)
    close(mine.grad, naive.grad)
    close(layer.weight.grad, weight.grad)
    if alpha is not None:
        close(layer.scaling_factor.grad, alpha.grad)  # type: ignore[union-attr]
    outside = weight.detach().abs() > 1
    assert 0.1 < outside.double().mean() < 0.4
    assert bool((layer.weight.grad[outside] == 0).all()) == (kind != "real")  # type: ignore[index]
    close(layer.eval()(x), expected)


@pytest.mark.parametrize("kind", ["binary", "real"])
@pytest.mark.parametrize(("cin", "stride"), [(6, 1), (4, 2)])
def test_block_in_training(cin: int, stride: int, kind: str) -> None:
    """Every parameter's gradient and the input's, with batch statistics in the norms."""
    torch.manual_seed(4)
    block = ReActBlock(cin, cin * stride, stride, False).double().train()
    block.binary_conv.binary_weights = kind == "binary"
    with torch.no_grad():
        for name, p in block.named_parameters():
            p.copy_(torch.randn_like(p) * (0.9 if name == "binary_conv.weight" else 0.5))
    p = {k: v.detach().clone().requires_grad_() for k, v in block.named_parameters()}
    x = torch.randn(3, cin, 8, 8, dtype=torch.float64)
    mine, naive = x.clone().requires_grad_(), x.clone().requires_grad_()
    short = naive
    if stride == 2:
        pooled = naive.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
        short = torch.einsum("nchw,oc->nohw", pooled, p["downsample.1.weight"][:, :, 0, 0])
        short = naive_norm(short, p["downsample.2.weight"], p["downsample.2.bias"])
    y = naive_conv(naive + p["move0.bias"], p["binary_conv.weight"], stride, kind, 1)
    y = naive_norm(y, p["bn1.weight"], p["bn1.bias"]) + short + p["move1.bias"]
    expected = torch.where(y > 0, y, p["prelu.weight"][:, None, None] * y) + p["move2.bias"]
    found = block(mine)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(mine.grad, naive.grad, atol=1e-10, rtol=0)
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(parameter.grad, p[name].grad, atol=1e-10, rtol=0)
        assert p[name].grad.abs().max() > 0.01, name  # type: ignore[union-attr]


# Recipes, schedule, weight decay


def test_recipes_follow_reactnet() -> None:
    first, second, adam = (load_recipe(f"table2-resnet18-two-step{v}") for v in ("/step1", "", "/adam"))
    for recipe in (first, second, adam):
        assert (recipe.network.name, recipe.train.teacher, recipe.data.crop) == (REACT18, "resnet34", [0.08, 1.0])
        assert (recipe.train.epochs, recipe.train.batch, recipe.train.decay_dims) == (128, 512, 4)
    for recipe in (first, adam):
        assert (recipe.train.optimizer, recipe.train.lr, recipe.train.schedule) == ("adam", 2.5e-3, "linear")
        assert recipe.train.warmup == 0
    assert (first.train.weight_decay, second.train.weight_decay, adam.train.weight_decay) == (1e-5, 0.0, 0.0)
    assert (first.network.binary_weights, second.network.binary_weights) == (False, True)
    assert (first.train.second_step, second.train.second_step, adam.train.second_step) == (False, True, True)
    assert (first.ovsw.ags, first.ovsw.sad, second.ovsw.ags, second.ovsw.sad) == (False, False, True, True)


@pytest.mark.parametrize("epochs", [1, 10, 128])
def test_linear_schedule(epochs: int) -> None:
    """LambdaLR stepped at the start of each epoch: 1 - 1/E in the first, 0 in the last."""
    config = TrainConfig(epochs=epochs, lr=2.5e-3, schedule="linear", warmup=0)
    rates = [learning_rate(config, epoch) for epoch in range(epochs)]
    assert rates == pytest.approx([2.5e-3 * (1 - (epoch + 1) / epochs) for epoch in range(epochs)], abs=1e-15)
    assert rates[-1] == pytest.approx(0, abs=1e-15)


def test_weight_decay_of_four_dimensions() -> None:
    """As ReActNet groups them: convolutions and shifts decay; the classifier, PReLU and batch norms do not."""
    with torch.device("meta"):
        model = create(REACT18)
    names = {id(p): name for name, p in model.named_parameters()}
    config = TrainConfig(optimizer="adam", weight_decay=1e-5, decay_dims=4)
    spared, decayed = make_optimizer(model, config).param_groups
    assert (spared["weight_decay"], decayed["weight_decay"]) == (0.0, 1e-5)
    kinds = dict.fromkeys((names[id(p)] for p in decayed["params"]), "decays")
    kinds.update(dict.fromkeys((names[id(p)] for p in spared["params"]), "spared"))
    assert len(kinds) == len(names) == len(spared["params"]) + len(decayed["params"])
    for name, kind in kinds.items():
        last = name.split(".")[-2]
        expected = last.startswith(("move", "conv", "binary_conv")) or name.endswith("downsample.1.weight")
        assert kind == ("decays" if expected else "spared"), name
    assert [kinds[name] for name in ("fc.weight", "fc.bias", "layer1.0.prelu.weight")] == ["spared"] * 3


# Runs: cResNet20 distilled from a random ResNet18, over few images

CLASSES = 4
TINY = [
    *("data.kind=synthetic", "data.augment=cifar", "network.name=cResNet20_1w1a", f"network.num_classes={CLASSES}"),
    *("train.teacher=resnet18", "train.epochs=2", "train.batch=32", "train.warmup=0"),
]


@pytest.fixture(scope="module", autouse=True)
def few_images() -> Iterator[None]:
    real = trainer.open_split

    def cut(kind: str, root: Path | None, split: str, **options: Any) -> MemorySet:
        found = real(kind, root, split, **options)
        assert isinstance(found, MemorySet)
        n = 48 if split == "train" else 16
        return MemorySet(found.images[:n], found.labels[:n], found.names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "open_split", cut)
        yield


def arguments(variant: str, folder: Path, *more: object) -> list[str]:
    changes = [part for setting in TINY for part in ("--set", setting)]
    return [f"table2-resnet18-two-step{variant}", "-o", str(folder), "--quiet", *changes, *map(str, more)]


def save_teacher(path: Path, seed: int, classes: int = CLASSES) -> Path:
    torch.manual_seed(seed)
    model = float_network("resnet18", classes)
    randomised(model)
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-step")


@pytest.fixture(scope="module")
def teacher(folder: Path) -> Path:
    return save_teacher(folder / "teacher.pth", 0)


@pytest.fixture(scope="module")
def first(folder: Path, teacher: Path) -> Path:
    assert cli.main(arguments("/step1", folder / "first", "--teacher", teacher)) == 0
    return folder / "first"


@pytest.fixture(scope="module")
def second(folder: Path, teacher: Path, first: Path) -> Path:
    assert cli.main(arguments("", folder / "second", "--teacher", teacher, "--init", first / "last.pth")) == 0
    return folder / "second"


def checkpoint(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, weights_only=True))


def tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """All tensors of nested dicts and lists, by path."""
    if isinstance(value, Tensor):
        return {name: value}
    if not isinstance(value, (dict, list)):
        return {}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return dict(itertools.chain.from_iterable(tensors(v, f"{name}/{k}").items() for k, v in parts))


def assert_same(a: Path, b: Path) -> None:
    """Weights, optimiser, OvSW's state and the random generator's, bit for bit."""
    one, two = (tensors(checkpoint(path)) for path in (a, b))
    assert one.keys() == two.keys()
    assert [k for k in one if not torch.equal(one[k], two[k])] == []


def metrics(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as f:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]


def stopped(run: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends at the save of its second epoch."""
    real, saves = trainer.replace_file, []

    def stops(path: Path, data: bytes) -> None:
        if path.name == "last.pth" and saves:
            raise KeyboardInterrupt
        saves.extend([path] if path.name == "last.pth" else [])
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "replace_file", stops)
        assert cli.main(run) == 130


def doubled(run: trainer.Run) -> trainer.Run:
    """The same run in float64: in float32 another order of additions turns signs over, and the loss with them."""
    assert run.teacher is not None
    for model in (run.model, run.teacher):
        model.double().register_forward_pre_hook(lambda _, given: (given[0].double(),))
    config = run.recipe.ovsw
    run.ovsw = OvSW(run.model, config.lam, config.gamma if config.sad else 0.0, ags=config.ags)
    return run


def test_the_loss_is_the_teachers_cross_entropy(teacher: Path, tmp_path: Path) -> None:
    """Mean over the batch of -sum softmax(teacher) * log_softmax(student), student in training, teacher not."""
    recipe = load_recipe("table2-resnet18-two-step/step1")
    set_values(recipe, [*TINY, "train.epochs=1", "train.batch=48", "data.augment=none"])
    run = doubled(trainer.start(recipe, tmp_path, 1, teacher=teacher))
    trainer.train(run, None, quiet=True)
    split = trainer.open_data(recipe, None, "train")
    assert isinstance(split, MemorySet)
    x = augment.normalise(split.images, *oracle.CIFAR).double()
    student = trainer.build_model(recipe).double().train()
    student.load_state_dict(checkpoint(tmp_path / "initial.pth")["state_dict"])
    state = {k: v.double() for k, v in checkpoint(teacher).items()}
    with torch.no_grad():
        s, t = student(x), float_logits(state, x, (2, 2, 2, 2))
    assert t.std(0).min() > 0.05  # soft labels that differ from image to image
    soft = t.exp() / t.exp().sum(1, keepdim=True)
    expected = -(soft * (s - s.exp().sum(1, keepdim=True).log())).sum() / len(x)
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(expected.item(), abs=1e-9)
    assert run.teacher is not None
    assert all(torch.equal(v, state[k]) for k, v in run.teacher.state_dict().items())


def test_labels_do_not_matter(first: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trainer.open_split

    def wrong(kind: str, root: Path | None, split: str, **options: Any) -> MemorySet | FolderSet:
        found = real(kind, root, split, **options)
        found.labels = (found.labels + 1) % CLASSES if split == "train" else found.labels
        return found

    monkeypatch.setattr(trainer, "open_split", wrong)
    more = ("--teacher", teacher, "--set", "train.label_smoothing=0.1")
    assert cli.main(arguments("/step1", tmp_path, *more)) == 0
    assert_same(first / "last.pth", tmp_path / "last.pth")
    for mine, theirs in zip(metrics(first), metrics(tmp_path)):
        assert mine["loss"] == theirs["loss"]
        assert mine["train_acc1"] != theirs["train_acc1"]


def test_the_second_step_starts_where_the_first_ended(first: Path, second: Path) -> None:
    begin, end = (checkpoint(first / name)["state_dict"] for name in ("initial.pth", "last.pth"))
    start, after = (checkpoint(second / name)["state_dict"] for name in ("initial.pth", "last.pth"))
    assert len(end) == 121
    assert all(torch.equal(start[key], value) for key, value in end.items())
    changed = [k for k in end if not torch.equal(begin[k], end[k]) and not torch.equal(start[k], after[k])]
    assert changed == list(end)
    previous = [key for key in start if key.endswith(".weight_prev")]
    assert len(previous) == 18
    assert all(torch.equal(start[key], start[key.replace("weight_prev", "weight")]) for key in previous)
    assert not any(start[key.replace("weight_prev", "tracker")].any() for key in previous)


def test_the_first_step_has_real_weights(first: Path, second: Path) -> None:
    """A layer of its network convolves signs with the weights as they are, also in evaluation."""
    state = checkpoint(first / "last.pth")["state_dict"]
    recipe = load_recipe("table2-resnet18-two-step/step1")
    set_values(recipe, TINY)
    model = trainer.build_model(recipe).double().eval()
    model.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    inputs: list[Tensor] = []
    layer = model.get_submodule("layer2.0.conv1")
    layer.register_forward_hook(lambda _, given, out: inputs.extend([given[0], out]))
    with torch.no_grad():
        model(x)
    expected = F.conv2d(torch.sign(inputs[0]), state["layer2.0.conv1.weight"].double(), stride=2, padding=1)
    torch.testing.assert_close(inputs[1], expected, atol=1e-10, rtol=0)
    assert checkpoint(first / "last.pth")["ovsw"]["recipe"]["network"]["binary_weights"] is False
    assert checkpoint(second / "last.pth")["ovsw"]["recipe"]["network"]["binary_weights"] is True


@pytest.mark.parametrize("form", ["bare", "module", "old", "learned"])
def test_forms_of_a_start(form: str, first: Path, teacher: Path, tmp_path: Path) -> None:
    """A bare state dict, one with `module.`, one of an old torch without num_batches_tracked; and a scale to be
    learned, which starts at mean |w| of those weights.
    """
    state = checkpoint(first / "last.pth")["state_dict"]
    if form == "old":
        state = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save({f"module.{k}": v for k, v in state.items()} if form == "module" else state, tmp_path / "init.pth")
    recipe = load_recipe("table2-resnet18-two-step")
    set_values(recipe, [*TINY, f"network.learned_scale={str(form == 'learned').lower()}"])
    run = trainer.start(recipe, tmp_path, 0, teacher=teacher, init=tmp_path / "init.pth")
    found = run.model.state_dict()
    assert all(torch.equal(found[k], v) for k, v in state.items())
    scales = [layer.scaling_factor for layer in binary_layers(run.model).values()]
    if form == "learned":
        trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
        for name, scale in zip(binary_layers(run.model), scales):
            assert scale is not None
            torch.testing.assert_close(scale.detach(), state[f"{name}.weight"].abs().mean((1, 2, 3)))
            assert id(scale) in trained
    else:
        assert scales == [None] * 18


@pytest.mark.parametrize("variant", ["", "/adam"])
def test_a_distilled_second_step_resumes_the_same(
    variant: str, first: Path, second: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--teacher", teacher, "--init", first / "last.pth")
    whole = second if not variant else tmp_path / "whole"
    if variant:
        assert cli.main(arguments(variant, whole, *given)) == 0
    broken = tmp_path / "broken"
    stopped(arguments(variant, broken, *given), monkeypatch)
    assert checkpoint(broken / "last.pth")["epoch"] == 1
    assert cli.main(arguments(variant, broken, "--teacher", teacher, "--resume")) == 0
    assert_same(whole / "last.pth", broken / "last.pth")
    assert [row["loss"] for row in metrics(whole)] == [row["loss"] for row in metrics(broken)]


def test_channels_last(first: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses as without, and the same weights whether in one go or in two."""
    losses = []
    for setting in ("true", "false"):
        recipe = load_recipe("table2-resnet18-two-step")
        set_values(recipe, [*TINY, "train.epochs=1", f"train.channels_last={setting}"])
        run = doubled(trainer.start(recipe, tmp_path, 0, teacher=teacher, init=first / "last.pth"))
        trainer.train(run, None, quiet=True)
        losses.append(metrics(tmp_path)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    given = ("--teacher", teacher, "--init", first / "last.pth")
    whole, broken, setting = tmp_path / "whole", tmp_path / "broken", ("--set", "train.channels_last=true")
    assert cli.main(arguments("", whole, *given, *setting)) == 0
    stopped(arguments("", broken, *given, *setting), monkeypatch)
    assert cli.main(arguments("", broken, "--teacher", teacher, *setting, "--resume")) == 0
    assert_same(whole / "last.pth", broken / "last.pth")
    weight = checkpoint(whole / "last.pth")["state_dict"]["layer1.0.conv1.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_compiled(first: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, saved under their own names. The graph is captured but not turned into C++, for time."""
    real, compiled = torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda m: compiled.append(m) or real(m, backend="eager"))
    more = ("--teacher", teacher, "--init", first / "last.pth", "--set", "train.epochs=1")
    for name in ("usual", "compiled"):
        setting = f"train.compile={'true' if name == 'compiled' else 'false'}"
        assert cli.main(arguments("", tmp_path / name, *more, "--set", setting)) == 0
    assert len(compiled) == 1
    assert_same(tmp_path / "usual" / "last.pth", tmp_path / "compiled" / "last.pth")


# Export


def export(path: Path, model: Path, *options: str) -> Engine:
    assert export_main([str(path), "-o", str(model), "--numerics", "float", *options]) == 0
    return Engine(model)


def assert_runs(engine: Engine, arch: str, state: oracle.State, size: int) -> None:
    images = oracle.pick_images(arch, state, np.random.default_rng(7), 2, 8, size)
    x = oracle.prepare(arch, images)
    expected = oracle.logits(arch, state, x)
    assert expected.std(axis=0).max() > 100 * TOLERANCE  # not constants, which any network would give
    assert np.abs(engine.run(x) - expected).max() < TOLERANCE
    assert np.abs(engine.run(images) - expected).max() < TOLERANCE


@pytest.mark.parametrize(
    ("arch", "size", "options"),
    [(REACT18, 64, {}), ("ReActResNet34_1w1a", 32, {"learned": True, "negative_alpha": True})],
)
def test_exported_networks(
    arch: str, size: int, options: dict[str, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint as ReActNet saves it, through the exporter and the engine, against the oracle."""
    state = state_of(arch, size, **options)
    prefixed = {f"module.{k}": v for k, v in state.items()}
    saved = {"epoch": 127, "state_dict": prefixed, "best_top1_acc": torch.tensor(65.9), "optimizer": {"state": {}}}
    torch.save(saved, tmp_path / "c.pth")
    engine = export(tmp_path / "c.pth", tmp_path / "m.bnn", "--input-size", str(size), "--verify", "1")
    (tmp_path / "c.pth").unlink()  # up to 90 MB, which pytest would keep
    assert capsys.readouterr().out.startswith(f"{arch}: 10 classes, input {size}x{size}, ")
    assert_runs(engine, arch, state, size)


def test_golden(tmp_path: Path) -> None:
    """What ReActNet's own code computed: first the oracle, which judges all else, then the engine."""
    saved, io = oracle.golden(shared("golden", "ReActNet_birealnet18_step2.npz"))
    state = {k[len("module.") :]: v for k, v in saved["state_dict"].items()}
    x = oracle.prepare(REACT18, io["x_u8"], io["mean"], io["std"])
    assert np.abs(oracle.logits(REACT18, state, x[:1]) - io["logits64"][:1]).max() < 1e-11
    assert np.abs(oracle.min_margin(REACT18, state, x[:1]) - io["min_margin"][:1]).max() < 1e-11
    torch.save(saved, tmp_path / "c.pth")
    engine = export(tmp_path / "c.pth", tmp_path / "m.bnn", "--verify", "0")
    (tmp_path / "c.pth").unlink()
    assert np.abs(engine.run(x) - io["logits64"]).max() < TOLERANCE


def test_steps_through_the_exporter(
    first: Path, second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is refused: its tensors are those of a binary network, but they are not meant so."""
    assert export_main([str(first / "last.pth"), "-o", str(tmp_path / "m.bnn")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ovsw-export: error: {first / 'last.pth'}: its weights are real, it is the first of two")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "m.bnn").exists()
    state = checkpoint(second / "last.pth")["state_dict"]
    assert_runs(export(second / "last.pth", tmp_path / "m.bnn"), R20, state, 32)


# Refusals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--init INIT", "the recipe distils from resnet18: --teacher FILE gives"),
        ("--init INIT --teacher TEACHER --set train.teacher=", "the recipe has no teacher"),
        ("--teacher TEACHER", "--init FILE gives the checkpoint of the first"),
        ("--teacher TEACHER --resume", "--init FILE gives the checkpoint of the first"),
        ("--teacher TEACHER --init nowhere.pth", "nowhere.pth: no such file"),
        ("--teacher TEACHER --init TEACHER", "teacher.pth: does not fit the network"),
        ("--teacher TEACHER --init INIT --set network.num_classes=5", "last.pth: does not fit the network"),
        ("--init INIT --teacher nowhere.pth", "nowhere.pth: no such file"),
        ("--init INIT --teacher DAMAGED", "damaged.pth: not a PyTorch checkpoint"),
        ("--init INIT --teacher OTHER", "other.pth: does not fit the network, 2 of 122 tensors"),
        ("--init INIT --teacher OTHER", "the first is fc.weight (4, 512)"),
        ("--init INIT --teacher INIT", "last.pth: does not fit the network"),
        ("--init INIT --teacher TEACHER --set train.teacher=resnet50", "unknown float network 'resnet50'"),
        (
            "--init INIT --teacher TEACHER --set train.schedule=step",
            "train.schedule is 'step'; known are cosine, linear",
        ),
    ],
)
def test_refused_runs(
    given: str, words: str, folder: Path, first: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, damaged = folder / "other.pth", folder / "damaged.pth"
    if not other.exists():
        save_teacher(other, 1, CLASSES + 1)
        damaged.write_bytes(teacher.read_bytes()[:100_000])
    files = {"TEACHER": teacher, "INIT": first / "last.pth", "OTHER": other, "DAMAGED": damaged}
    more = [str(files.get(word, word)) for word in given.split()]
    assert cli.main(arguments("", tmp_path / "run", *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("ovsw-train: error: ")
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run" / "last.pth").exists()


def test_another_teacher_is_refused(
    second: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a resume; the same weights under another name are the same teacher."""
    other = save_teacher(tmp_path / "other.pth", 1)
    before = (second / "last.pth").stat().st_mtime_ns
    assert cli.main(arguments("", second, "--teacher", other, "--resume")) == 2
    error = capsys.readouterr().err
    assert f"{second / 'last.pth'}: was trained with another teacher" in error
    assert len(error.splitlines()) == 1
    other.write_bytes(teacher.read_bytes())
    assert cli.main(arguments("", second, "--teacher", other, "--resume")) == 0
    assert (second / "last.pth").stat().st_mtime_ns == before


# Broken images


def coloured_folder(root: Path, broken: set[str]) -> FolderSet:
    """Two classes of three images, each of one grey of its own: 0, 40, 80 and 120, 160, 200."""
    for i, (name, number) in enumerate(itertools.product(("bird", "cat"), range(3))):
        path = root / "train" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if f"{name}/{number}" in broken:
            path.write_text("broken")
        else:
            Image.fromarray(np.full((40, 50, 3), 40 * i, np.uint8)).save(path)
    found = open_split("folder", root, "train", broken="skip")
    assert isinstance(found, FolderSet)
    return found


@pytest.mark.parametrize("scale", [None, (0.08, 1.0)])
def test_a_skipped_image_is_replaced_by_one_of_its_class(scale: tuple[float, float] | None, tmp_path: Path) -> None:
    """By the next one; behind the last comes the first."""
    found = coloured_folder(tmp_path, {"bird/1", "bird/2", "cat/0"})
    greys = [set(found.load(i, 32, 36, scale, np.random.default_rng(i)).flatten().tolist()) for i in range(6)]
    assert greys == [{0}, {0}, {0}, {160}, {160}, {200}]


def test_a_class_that_cannot_be_decoded(tmp_path: Path) -> None:
    found = coloured_folder(tmp_path, {"cat/0", "cat/1", "cat/2"})
    assert found.load(2, 32, 36, None, np.random.default_rng(0)).unique().tolist() == [80]
    with pytest.raises(DataError, match="no image of this class can be decoded") as caught:
        found.load(4, 32, 36, None, np.random.default_rng(0))
    assert str(caught.value).startswith(f"{tmp_path / 'train' / 'cat'}: ")
