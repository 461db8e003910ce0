"""Any network: the steps after `load` know no names. It is exact or refused, with all reasons at once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import Engine
from ovsw import format as bnn
from ovsw.export import ExportError
from ovsw.export.frontend.torch_module import trace
from ovsw.export.passes import build
from ovsw.export.validate import validate
from ovsw.nn import BinaryConv2d

from support.exporting import TOLERANCE
from support.quantizing import randomised

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Foreign(nn.Module):
    """Much that the exporter does not know, in one network, beside things that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.gelu = nn.GELU()
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.group_norm = nn.GroupNorm(2, 8)
        self.turned = nn.ConvTranspose2d(8, 8, 2, 2)
        self.head = nn.Linear(8 * 5 * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gelu(self.grouped(self.stem(x)))
        x = self.turned(self.group_norm(self.norm(self.mirrored(x)))) * 2
        x = torch.sigmoid(x) + torch.linspace(0, 1, 32)
        x = F.adaptive_avg_pool2d(x.transpose(2, 3) / x, 5)
        return self.head(x.flatten(1)).softmax(0)


def test_everything_unsupported_is_listed_at_once() -> None:
    with pytest.raises(ExportError) as caught:
        validate(trace(Foreign().eval(), (3, 16, 16)))
    message = str(caught.value)
    reasons = [
        ("gelu", "gelu is not supported; use ReLU", "in gelu (GELU), test_any_module.py:"),
        ("norm", "use batch norm with running statistics", "in norm (BatchNorm2d)"),
        ("group_norm", "group_norm is not supported; use batch norm", "(GroupNorm)"),
        ("turned", "transposed convolutions are not supported; use F.interpolate followed by a convolution"),
        ("add", "differ from pixel to pixel", "in the network (Foreign), test_any_module.py:"),
        ("add", "moved between channels and pixels", "test_any_module.py:"),
        ("div", "division by a map", "test_any_module.py:"),
        ("adaptive_avg_pool2d", "from 32 to 5 is not supported; use a divisor of 32"),
        ("softmax", "over dimension 0", "use the channel dimension"),
    ]
    assert [problem.split(":")[0] for problem in caught.value.problems] == [name for name, *_ in reasons]
    for problem, (_, *words) in zip(caught.value.problems, reasons):
        assert [w for w in words if w not in problem] == []
        assert problem in message
    assert "9 problem(s)" in message


class BinaryInput(nn.Module):
    """Signs of the input itself, which is also read by a real layer and as a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.signs = BinaryConv2d(3, 3, 3, padding=1, learned_scale=True)
        self.again = BinaryConv2d(3, 3, (1, 3), padding=(0, 1))  # type: ignore[arg-type]
        self.real = nn.Conv2d(3, 3, (3, 1), padding=(1, 0), bias=False)
        self.head = nn.Linear(3 * 6 * 10, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.signs(x) + x
        z = self.real(x) + self.again(x)
        return self.head((y + z).flatten(1))


class Sums(nn.Module):
    """Additions of a value with itself, of three values, under a norm, and of two binary layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.a = BinaryConv2d(8, 8, 3, padding=1)
        self.b = BinaryConv2d(8, 8, 3, padding=1, learned_scale=True)
        self.after = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.norm(x + x)
        y = self.a(x) + self.b(x)
        y = F.hardtanh(self.after(y + x + y))
        y = y + y
        y = y + self.a(y)  # the same layer a second time
        return self.head(F.adaptive_avg_pool2d(y, (1, 1)).flatten(1))


class ManyReaders(nn.Module):
    """One activation read by two binary layers, a real layer, a pool and two additions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.Hardtanh())
        self.a = nn.Sequential(BinaryConv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12))
        self.b = nn.Sequential(BinaryConv2d(12, 12, 1), nn.BatchNorm2d(12))
        self.real = nn.Conv2d(12, 12, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.side = nn.Linear(12, 5)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = self.a(x) + x, F.relu(self.b(x)) + x
        y = F.hardtanh(a) + self.real(x) + self.pool(x)
        side = self.side(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return self.head(F.adaptive_avg_pool2d(y + b, 1).flatten(1)) + side


class Pools(nn.Module):
    """Max-pools behind scales of both signs: of values nobody else reads, and of values that are read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.MaxPool2d(2))
        self.private = nn.Sequential(
            BinaryConv2d(16, 16, 3, padding=1, learned_scale=True), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1)
        )
        self.public = BinaryConv2d(16, 16, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Sequential(BinaryConv2d(16, 16, 3, padding=1, learned_scale=True), nn.MaxPool2d(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.private(self.stem(x))
        dots = self.public(x)
        normed = self.norm(dots)
        y = self.pool(dots) + self.pool(normed)
        z = F.avg_pool2d(normed, 2) + self.last(x)
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


def in_float64(model: nn.Module, x: Tensor) -> tuple[np.ndarray, list[float]]:
    """The output, and per binary layer the smallest |value| whose sign is taken.

    Exact zeros are left out: they come from ReLUs and padding, and no rounding makes them anything else.
    """
    margins: list[float] = []

    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        margins.append(float(inputs[0].abs().where(inputs[0] != 0, torch.inf).min()))

    double = copy.deepcopy(model).double()
    for module in double.modules():
        if isinstance(module, BinaryConv2d):
            module.register_forward_pre_hook(watch)
    with torch.no_grad():
        return double(x.double()).numpy(), margins


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (BinaryInput, (3, 6, 10)),
        (Sums, (3, 9, 7)),
        (ManyReaders, (3, 8, 8)),
        (Pools, (3, 24, 32)),
    ],
)
def test_any_network(network: type[nn.Module], shape: tuple[int, int, int], seed: int) -> None:
    model = randomised(network(), seed, binary=0.2)
    candidates = [torch.randn(1, *shape) for _ in range(12)]
    x = max(candidates, key=lambda candidate: min(in_float64(model, candidate)[1]))
    expected, margins = in_float64(model, x)
    assert min(margins) > 2e-6
    graph = trace(model, shape)
    assert validate(graph) == []
    packed = build(graph, [0.0] * 3, [1.0] * 3, {}).model
    assert sum(op.kind == "bconv" for op in packed.ops) == len(margins)  # none is computed twice
    data = bnn.to_bytes(packed)
    tolerance = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for threads in (1, 2):
        assert np.abs(Engine(data, threads=threads).run(x.numpy()) - expected).max() < tolerance


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = BinaryConv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(torch.add(self.a(x), self.b(x)), 1).flatten(1))


class Inplace(Added):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) + self.b(x)
        z = F.relu(y, inplace=True)  # y too
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


class Accumulated(Added):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(x)
        z = y.add_(self.a(x))  # y too
        return self.head(F.adaptive_avg_pool2d(y + z, 1).flatten(1))


@pytest.mark.parametrize("network", [Added, Inplace, Accumulated])
def test_what_is_changed_in_place_is_read_as_it_is_then(network: type[nn.Module]) -> None:
    model = randomised(network(), 0)
    x = torch.randn(1, 3, 5, 5)
    expected, _ = in_float64(model, x)
    graph = trace(model, (3, 5, 5))
    assert validate(graph) == []
    got = Engine(bnn.to_bytes(build(graph, [0.0] * 3, [1.0] * 3, {})[0])).run(x.numpy())
    assert np.abs(got - expected.reshape(1, -1)).max() < TOLERANCE
