"""ReActNet: its networks, its gradients, its recipes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.nn import ReActConv2d, binary_layers, create, float_network
from ovsw.nn.react import ReActBlock
from ovsw.train.optim import make_optimizer
from ovsw.train.recipe import TrainConfig, load_recipe

from support import oracle, shared
from support.react import REACT18, float_logits, randomised, state_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


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
    block = ReActBlock(cin, cin * stride, stride, ReActConv2d).double().train()
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
