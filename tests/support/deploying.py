"""Random networks with an integer form, of every kind of block that has one."""

from __future__ import annotations

import functools
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import BinaryConv2d
from ovsw.nn.resnet import ImageNetBlock, PaddingBlock

from support.quantizing import randomised

LEARNED = functools.partial(BinaryConv2d, learned_scale=True)


class Plain(nn.Module):
    """A binary convolution with neither shortcut nor a scale that is learned; pooled before the batch norm or not."""

    def __init__(self, cin: int, cout: int, pool: bool) -> None:
        super().__init__()
        self.conv = BinaryConv2d(cin, cout, 3, 1, 1)
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.norm = nn.BatchNorm2d(cout)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.hardtanh(self.norm(self.pool(self.conv(x)))))


class Uncentred(nn.Module):
    """Signs of maps whose numbers have no half step between -1 and 0: sums that no op scales, channels of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = BinaryConv2d(channels, channels, 3, 1, 1, learned_scale=True)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = BinaryConv2d(channels + 2, channels, 3, 1, 1, learned_scale=True)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardtanh(self.first_norm(self.first(x)))
        padded = F.pad(F.hardtanh(x + y), (0, 0, 0, 0, 1, 1))
        return F.hardtanh(self.second_norm(self.second(padded)))


class Twice(nn.Module):
    """One layer called twice, before either result is used."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = BinaryConv2d(channels, channels, 1, learned_scale=True)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.conv(x), self.conv(F.max_pool2d(x, 3, 1, 1))
        y = F.hardtanh(self.norm(one))
        return F.hardtanh(self.norm(two) + y)


def draw_block(rng: random.Random, channels: int) -> tuple[nn.Module, int]:
    """A block, and how many channels it gives."""
    kind, wider = (
        rng.choice(["plain", "pooled", "uncentred", "twice", "padded", "real"]),
        channels + 2 * rng.choice([1, 2]),
    )
    if kind == "uncentred":
        return Uncentred(channels), channels
    if kind == "twice":
        return Twice(channels), channels
    if kind == "padded":
        return PaddingBlock(channels, wider, 2, LEARNED), wider
    if kind == "real":
        return ImageNetBlock(channels, wider, 2, LEARNED), wider
    return Plain(channels, wider, pool=kind == "pooled"), wider


class Drawn(nn.Module):
    """A stem, some blocks and a head for 32x32 pixels, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        channels = rng.choice([4, 8, 12])
        window = rng.choice([1, 3, 5])
        self.stem = nn.Conv2d(3, channels, window, rng.choice([1, 2]), window // 2)
        self.norm = nn.BatchNorm2d(channels)
        self.clamp = nn.Hardtanh(*rng.choice([(-1.0, 1.0), (-0.75, 1.0), (-1.0, 1.25)]))
        blocks: list[nn.Module] = []
        for _ in range(rng.choice([1, 2, 3])):
            block, channels = draw_block(rng, channels)
            blocks.append(block)
        self.blocks = nn.Sequential(*blocks)
        self.last = BinaryConv2d(channels, channels, 3, 1, 1)
        self.last_norm = nn.BatchNorm2d(channels)
        self.last_act = rng.choice([nn.Hardtanh(), nn.PReLU(channels)])
        self.pool = nn.AdaptiveAvgPool2d(1) if isinstance(self.last_act, nn.Hardtanh) else nn.Identity()
        features = self.pool(self.last(self.eval()._trunk(torch.zeros(1, 3, 32, 32)))).numel()
        self.head = nn.Linear(features, 7)
        randomised(self, seed, binary=0.1)
        for module in self.modules():
            if isinstance(module, BinaryConv2d):
                module.zero = rng.choice([0, 1])
            elif isinstance(module, Plain):
                nn.init.constant_(module.norm.running_var, 30.0)  # dots are large, as their scale is derived

    def _trunk(self, x: Tensor) -> Tensor:
        return self.blocks(self.clamp(self.norm(self.stem(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = self.last_act(self.last_norm(self.last(self._trunk(x))))
        return self.head(self.pool(x).flatten(1))
