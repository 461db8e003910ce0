"""Networks fused, quantized and simulated, for the tests of integer exports."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw import format as bnn
from ovsw import numerics
from ovsw.export.frontend.torch_module import trace
from ovsw.export.ops.fused import Fused
from ovsw.export.passes import build, legalized
from ovsw.export.passes.fuse import fuse
from ovsw.nn import BinaryConv2d, create

from support import oracle

R20 = "cResNet20_1w1a"


def integer_ops(model: nn.Module, shape: tuple[int, int, int]) -> list[Fused]:
    return fuse(legalized(trace(model.eval(), shape), "integer"))


def integer_model(
    model: nn.Module, shape: tuple[int, int, int], mean: Any, std: Any, **options: Any
) -> tuple[bnn.Model, list[str]]:
    """The model that the exporter makes, and warnings."""
    return build(trace(model.eval(), shape), mean, std, {}, "integer", **options)[:2]


def loaded(arch: str, state: oracle.State, size: int) -> nn.Module:
    classes = list(state.values())[-1].shape[0]
    learned = any(key.endswith("scaling_factor") for key in state)
    model = create(arch, classes, learned_scale=learned, input_size=size)
    model.load_state_dict(state, strict=False)
    return model.eval()


@functools.cache
def state_of(arch: str, size: int, **options: Any) -> oracle.State:
    """Shared by tests: edit copies only."""
    return oracle.random_state(arch, 10, np.random.default_rng(3), size=size, **options)


def normalisation(arch: str) -> tuple[Any, Any]:
    return oracle.IMAGENET if oracle.input_size(arch) == 224 else oracle.CIFAR


class Gentle(nn.Module):
    """A ResNet-like network with few signs that matter: real layers carry most, so that rounding shows as rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.Hardtanh(), nn.MaxPool2d(3, 2, 1))
        self.conv = BinaryConv2d(16, 16, 3, padding=1, learned_scale=True)
        self.norm = nn.BatchNorm2d(16)
        self.short = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24))
        self.down = BinaryConv2d(16, 24, 3, 2, 1, learned_scale=True)
        self.down_norm = nn.BatchNorm2d(24)
        self.wide = nn.Sequential(nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Hardtanh(-0.8, 1.2))
        self.head_norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.hardtanh(self.norm(self.conv(x)) + x)
        x = F.hardtanh(self.down_norm(self.down(x)) + self.short(x))
        x = self.wide(x)
        return self.head(self.head_norm(F.adaptive_avg_pool2d(x, 1)).flatten(1))


def randomised(model: nn.Module, seed: int, binary: float = 0.02) -> nn.Module:
    """Values that matter, with negative ones among them; `binary` is the size of the binary layers' scales."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(module.weight, 0, 1.0)
            nn.init.normal_(module.bias, 0, 0.3)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, 0, module.weight[0].numel() ** -0.5)
        if isinstance(module, BinaryConv2d) and module.scaling_factor is not None:
            nn.init.normal_(module.scaling_factor, 0, binary)
    return model.eval()


def simulated(
    model: nn.Module, shape: tuple[int, int, int], images: np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray, bnn.Model, list[str]]:
    """Logits of the integer model and of torch in float64, the model, and warnings."""
    mean, std = oracle.CIFAR
    packed, warnings = integer_model(model, shape, mean, std, **options)
    x = oracle.prepare(R20, images)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(torch.from_numpy(x).double()).numpy()
    return numerics.simulate(packed, images), expected, packed, warnings
