"""Habits of taking a sign in a module: what it learns, and what it computes of the image.

How a sign itself is spelled is in tests/export/test_spellings.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import Body, Network, habit

HABITS: dict[str, Network] = {}


@habit(HABITS)
def torch_sign() -> nn.Module:
    return Body(lambda _: torch.sign)


@habit(HABITS)
def zeros_and_ones() -> nn.Module:
    return Body(lambda _: lambda x: (x > 0).float())


@habit(HABITS)
def sign_after_relu() -> nn.Module:
    return Body(lambda _: lambda x: torch.sign(F.relu(x)))


class TanhSurrogate(nn.Module):
    """A temperature that is asked for in Python, as in annealed training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor([4.0]))

    def forward(self, x: Tensor) -> Tensor:
        soft = torch.tanh(x * self.temperature) if self.temperature > 1 else F.hardtanh(x)
        return (x.sign() - soft).detach() + soft


@habit(HABITS)
def tanh_surrogate() -> nn.Module:
    return Body(lambda _: TanhSurrogate())


class Threshold(nn.Module):
    """Per channel and learned, of a shape that is expanded by hand."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > self.threshold.expand_as(x), 1.0, -1.0)


@habit(HABITS)
def learned_thresholds() -> nn.Module:
    return Body(Threshold)


class Levels(nn.Module):
    """Two levels, a centre and a distance, both learned numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.distance = nn.Parameter(torch.tensor(0.7))
        self.centre = nn.Parameter(torch.tensor(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign((x - self.centre) / self.distance) * self.distance + self.centre


@habit(HABITS)
def two_learned_levels() -> nn.Module:
    return Body(lambda _: Levels())


class PerImage(nn.Module):
    """Centred and divided by the deviation of the whole image before the sign."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean([1, 2, 3], keepdim=True)
        return torch.sign(x / x.std([1, 2, 3], keepdim=True))


@habit(HABITS)
def per_image_mean() -> nn.Module:
    return Body(lambda _: PerImage())


@habit(HABITS)
def per_pixel_mean() -> nn.Module:
    return Body(lambda _: lambda x: torch.sign(x - x.mean(1, keepdim=True)))
