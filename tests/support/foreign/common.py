"""What the foreign networks share: registering, liveliness of parameters, a body to try one detail in."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Forward = Callable[[Tensor], Any]
Network = Callable[[], tuple[Forward, tuple[int, ...]]]

SHAPE = (1, 3, 16, 16)


def lively(model: nn.Module) -> nn.Module:
    """Gives every parameter and statistic that starts as a constant a value that matters; eval mode."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.5)
                module.running_var.uniform_(0.5, 2.0)
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.25 * torch.randn_like(parameter))
    return model.eval()


Make = TypeVar("Make", bound=Callable[[], Forward])


def habit(into: dict[str, Network], shape: tuple[int, ...] = SHAPE) -> Callable[[Make], Make]:
    """Registers what makes a network, a class or a function, under its name; modules are made lively."""

    def register(make: Make) -> Make:
        def seeded() -> tuple[Forward, tuple[int, ...]]:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(make.__name__.encode()))
                model = make()
                return lively(model) if isinstance(model, nn.Module) else model, shape

        assert make.__name__ not in into
        into[make.__name__] = seeded
        return make

    return register


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class SignConv(nn.Conv2d):
    """The plainest binary convolution: takes what is binary already, signs its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, torch.where(self.weight < 0, -1.0, 1.0), self.bias)


class Body(nn.Module):
    """A stem, two binary layers with `act` before each, a shortcut, a head: the detail to try is `act` or `conv`."""

    def __init__(self, act: Callable[[int], Forward], conv: Callable[..., nn.Module] = SignConv) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12))
        acts = [act(12), act(24)]
        self.act1, self.act2 = (a if isinstance(a, nn.Module) else Call(a) for a in acts)
        self.conv1 = conv(12, 24, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(24)
        self.conv2 = conv(24, 24, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        self.fc = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.hardtanh(self.bn1(self.conv1(self.act1(x))))
        x = F.hardtanh(self.bn2(self.conv2(self.act2(x))) + x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def binary(x: Tensor) -> Tensor:
    """A plain sign for networks that try something else."""
    return torch.where(x < 0, -1.0, 1.0)
