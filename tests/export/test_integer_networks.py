"""Whole networks in integers: rounding that shows as rounding, extreme constants, what integers cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.export.errors import NotIntegerError
from ovsw.nn import BinaryConv2d, create

from support import oracle
from support.quantizing import Gentle, integer_model, randomised, simulated

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("seed", range(4))
def test_a_gentle_network(seed: int, isa: str) -> None:
    model = randomised(Gentle(), seed, binary=1e-5)
    images = np.random.default_rng(seed).integers(0, 256, (20, 3, 2, 3), np.uint8).repeat(16, 1).repeat(16, 2)
    logits, expected, packed, warnings = simulated(model, (3, 48, 32), images)
    assert warnings == []
    assert np.abs(logits - expected).max() < 4e-3
    assert (logits.argmax(1) == expected.argmax(1)).all()
    assert expected.std(axis=0).max() > 0.03
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()
    narrow, *_ = simulated(model, (3, 48, 32), images, weights="int8")
    assert 1e-4 < np.abs(narrow - expected).max() < 0.2


@pytest.mark.parametrize("value", [0.0, 1e-8, -1e-8, -1.0])
def test_small_and_negative_norm_weights(value: float) -> None:
    model = Gentle()
    randomised(model, 1, binary=1e-5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.weight[::3] = value
    images = np.random.default_rng(2).integers(0, 256, (10, 32, 32, 3), np.uint8)
    logits, expected, _, warnings = simulated(model, (3, 32, 32), images)
    assert warnings == []
    assert np.abs(logits - expected).max() < 4e-3


class Pooled(nn.Module):
    """Pools between a layer and its norm, with scales of both signs: `legalize` has to put each in its right place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2))
        self.stem_norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(BinaryConv2d(8, 24, 3, padding=1, learned_scale=True), nn.MaxPool2d(3, 2, 1))
        self.norm = nn.BatchNorm2d(24)
        self.classifier = nn.Conv2d(24, 5, (3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem_norm(self.stem(x)))
        return self.classifier(F.hardtanh(self.norm(self.body(x)))).flatten(1)


@pytest.mark.parametrize("positive", [True, False])
def test_pools_before_norms(positive: bool) -> None:
    model = randomised(Pooled(), 3, binary=0.1)
    with torch.no_grad():
        model.stem_norm.weight.abs_()  # type: ignore[operator]
        if positive:
            model.norm.weight.abs_()  # type: ignore[operator]
    images = np.random.default_rng(2).integers(0, 256, (30, 12, 8, 3), np.uint8)
    logits, expected, packed, _ = simulated(model, (3, 12, 8), images)
    near = np.abs(logits - expected).max(axis=1) < 2e-3
    assert near.mean() > 0.5  # the others have a value within rounding of 0 before the sign
    kinds = [op.kind for op in packed.ops]
    extra = [] if positive else ["avgpool"]
    assert kinds == ["conv", "maxpool", "bconv", "maxpool", *extra, "linear"]
    assert Engine(bnn.to_bytes(packed)).run(images).tolist() == logits.tolist()


def test_a_pool_before_a_negative_norm_of_a_real_layer_is_refused() -> None:
    model = randomised(Pooled(), 3)
    with torch.no_grad():
        model.stem_norm.weight.fill_(-1.0)  # type: ignore[operator]
    with pytest.raises(NotIntegerError, match=r"stem.0: its result is not clamped"):
        integer_model(model, (3, 12, 8), *oracle.CIFAR)


class Chain(nn.Module):
    """One binary layer between clamps, then the head: its constants are all that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.conv = BinaryConv2d(8, 6, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.stem(x))
        x = F.hardtanh(self.norm(self.conv(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def chain(scale: float, bias: float) -> nn.Module:
    """clamp(scale * dots + bias) in every channel."""
    model = randomised(Chain(), 5)
    assert isinstance(model, Chain)
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    assert model.conv.scaling_factor is not None
    with torch.no_grad():
        model.conv.scaling_factor.fill_(scale)
        model.norm.running_mean.zero_()
        model.norm.running_var.fill_(1 - model.norm.eps)
        model.norm.weight.fill_(1.0)
        model.norm.bias.fill_(bias)
    return model


@pytest.mark.parametrize(
    ("scale", "bias", "words"),
    [
        (0.03, 0.2, None),
        (0.03, -25.0, None),
        (0.03, 5000.0, "offset so large"),
        (30.0, -5000.0, "scale over 1"),
        (0.03, 1e6, "offset so large"),
        (0.03, -1e9, "offset so large"),
        (1e-9, 0.7, None),
        (3.0, 0.5, "scale over 1"),
        (500.0, -0.3, "scale over 1"),
    ],
)
def test_extreme_constants(scale: float, bias: float, words: str | None) -> None:
    model = chain(scale, bias)
    images = np.random.default_rng(2).integers(0, 256, (10, 6, 6, 3), np.uint8)
    logits, expected, packed, warnings = simulated(model, (3, 6, 6), images)
    numerics.check(packed)
    assert np.abs(logits - expected).max() < 5e-3
    if words is None:
        assert warnings == []
    else:
        assert len(warnings) == 1
        assert words in warnings[0]
        assert warnings[0].startswith("conv: 6 of 6 channels have")


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        (
            "cResNet18_1w1a",
            "conv1: its result is not clamped, so an integer file needs calibration images for its scale",
        ),
        (
            "ReActResNet18_1w1a",
            "conv1: its result is not clamped, so an integer file needs calibration images for its scale",
        ),
    ],
)
def test_networks_that_need_calibration(arch: str, reason: str) -> None:
    size = 32
    with pytest.raises(NotIntegerError) as caught:
        integer_model(create(arch, 10, input_size=size), (3, size, size), *oracle.CIFAR)
    assert str(caught.value).startswith(reason)


class ReadsPixels(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = BinaryConv2d(3, 3, 3, padding=1) if how == "signs" else nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.how == "pool":
            y = F.hardtanh(y) + F.max_pool2d(x, 3, 1, 1)
        if self.how == "add":
            y = y + x
        y = F.relu(y) if self.how == "relu" else F.hardtanh(y)
        logits = self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return F.hardtanh(logits) if self.how == "end" else logits


@pytest.mark.parametrize("how", ["signs", "pool", "add", "relu", "end"])
def test_pixels_that_are_not_convolved_and_results_that_are_not_linear(how: str, isa: str) -> None:
    """Logits are those of PyTorch to what 16 bits leave; with signs of pixels wherever none falls the other way."""
    torch.manual_seed(1)
    model = ReadsPixels(how).eval()
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), np.uint8)
    logits, expected, packed, _ = simulated(
        model, (3, 6, 6), images, calibration=oracle.prepare("cResNet20_1w1a", images)
    )
    error = np.abs(logits - expected).max(axis=1)
    assert (error < 2e-3 * np.abs(expected).max()).sum() >= 19
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()


class Sloped(nn.Module):
    """One binary layer, scaled or pooled, with a PReLU of slopes 1 to -1 (or `slope`) before the classifier."""

    def __init__(self, how: str, slope: float | None = None) -> None:
        super().__init__()
        self.how = how
        self.stem, self.conv = nn.Conv2d(3, 5, 3, padding=1), BinaryConv2d(5, 6, 3, padding=1)
        self.norm, self.prelu = nn.BatchNorm2d(6), nn.PReLU(6)
        self.head = nn.Linear(6 * (9 if how == "pool" else 36) if how != "mean" else 6, 4)
        with torch.no_grad():
            self.prelu.weight.copy_(torch.linspace(1, -1, 6) if slope is None else torch.full((6,), slope))

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardtanh(self.stem(x))
        if self.how == "pad":
            return self.head(self.prelu(F.pad(y, (0, 0, 0, 0, 0, 1))).flatten(1))
        y = self.conv(y)
        y = self.prelu(self.norm(F.max_pool2d(y, 2) if self.how == "pool" else y))
        return self.head((F.adaptive_avg_pool2d(y, 1) if self.how == "mean" else y).flatten(1))


@pytest.mark.parametrize("how", ["scaled", "pool"])
@pytest.mark.parametrize("slope", [None, 0.25, 1.9])
def test_prelu_before_the_classifier(how: str, slope: float | None, isa: str) -> None:
    """Wherever no sign falls the other way, logits are those of PyTorch to what the last map's steps leave."""
    model = randomised(Sloped(how, slope), 3, binary=1.0)
    with torch.no_grad():
        model.prelu.weight.copy_(Sloped(how, slope).prelu.weight)
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), np.uint8)
    logits, expected, packed, _ = simulated(model, (3, 6, 6), images)
    assert [op.act for op in packed.ops][-2] == "prelu"
    assert packed.version == (1, 2)
    error = np.abs(logits - expected).max(axis=1)
    assert (error < 0.02 * np.abs(expected).max()).sum() > 10
    assert Engine(bnn.to_bytes(packed), isa=isa).run(images).tolist() == logits.tolist()


@pytest.mark.parametrize(
    ("how", "slope", "reason"),
    [
        ("scaled", 2.0, "prelu: a slope is 2, integer files need slopes below 2"),
        ("mean", 0.25, "conv: its result is not clamped"),
    ],
)
def test_prelu_that_integers_do_not_have(how: str, slope: float, reason: str) -> None:
    with pytest.raises(NotIntegerError, match=reason):
        integer_model(Sloped(how, slope), (3, 6, 6), *oracle.CIFAR)
