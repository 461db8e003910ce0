"""Random PyTorch networks full of exact zeros and ties: clamps of every kind before every op that passes values on,
before every way to write a sign, with comparisons and softmax in the middle and several outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Op = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Op] = {
    "none": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "clamp(0, 1)": lambda x: x.clamp(0, 1),
    "clamp(min=0)": lambda x: x.clamp(min=0),
    "clamp(-1, 0)": lambda x: x.clamp(-1, 0),
    "clamp(-0.5, 1.5)": lambda x: x.clamp(-0.5, 1.5),
    "hardtanh": F.hardtanh,
    "leaky": lambda x: F.leaky_relu(x, 0.25),
}
PASSING: dict[str, Op] = {
    "nothing": lambda x: x,
    "max pool": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "max pool, padded": lambda x: F.max_pool2d(x, 3, 1, 1),
    "average pool": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "average pool, padded": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "add": lambda x: x + x.flip(1),
    "cat": lambda x: torch.cat([x, x.flip(3)], 1)[:, ::2],
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "shuffle": lambda x: x.view(1, 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
    "flip": lambda x: x.flip(3),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
}
SIGNS: dict[str, Op] = {
    "sign": torch.sign,
    "x > 0": lambda x: (x > 0).to(x.dtype) * 2 - 1,
    "x >= 0": lambda x: (x >= 0).to(x.dtype) * 2 - 1,
    "where": lambda x: torch.where(x > 0, 1.0, -1.0).to(x.dtype),
    "0 and 1": lambda x: (x > 0).to(x.dtype),
    "x < 0": lambda x: 1 - 2 * (x < 0).to(x.dtype),
    "shifted": lambda x: torch.where(x > 0.3, 1.0, -1.0).to(x.dtype),
}
MIDDLE: dict[str, Op] = {
    "mask of zeros": lambda x: x * (x != 0).to(x.dtype) + (x == 0).to(x.dtype),
    "peaks": lambda x: x * (F.max_pool2d(x, 3, 1, 1) == x).to(x.dtype),
    "above its neighbour": lambda x: x + (x > x.flip(1)).to(x.dtype),
    "gate": lambda x: x * F.hardtanh(x.mean((2, 3), keepdim=True), 0, 1),
    "softmax": lambda x: F.softmax(x, 1) - 0.1,
    "abs": lambda x: x.abs() - 0.5,
}


class BinaryConv(nn.Module):
    """A convolution of +-1, as people write it, on what a sign has made.

    Without a norm behind it, sums are often exactly 0, and so are averages of them. That they are so for torch, too,
    they are scaled by a power of two.
    """

    def __init__(self, channels: int, size: int, scaled: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, size, size))
        self.size, self.scaled = size, scaled

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.weight.sign(), padding=self.size // 2)
        return y * self.weight.abs().mean((1, 2, 3)).view(1, -1, 1, 1) if self.scaled else y * 0.125


class Unit(nn.Module):
    """An activation, something that passes values on, perhaps a comparison, a sign, a binary convolution and a norm."""

    def __init__(self, rng: np.random.Generator, channels: int) -> None:
        super().__init__()
        self.act, self.passing, self.sign = (str(rng.choice(list(d))) for d in (ACTIVATIONS, PASSING, SIGNS))
        self.middle = str(rng.choice(list(MIDDLE))) if rng.random() < 0.25 else None
        self.keeps = bool(rng.random() < 0.3)  # a shortcut around the convolution
        self.norm = norm(rng, channels) if rng.random() < 0.7 else None
        self.conv = BinaryConv(channels, int(rng.choice([1, 3])), self.norm is not None and bool(rng.random() < 0.7))

    def forward(self, x: Tensor) -> Tensor:
        x = PASSING[self.passing](ACTIVATIONS[self.act](x))
        x = x if self.middle is None else MIDDLE[self.middle](x)
        y = self.conv(SIGNS[self.sign](x))
        y = y if self.norm is None else self.norm(y)
        return y + x if self.keeps else y

    def extra_repr(self) -> str:
        return f"{self.act}, {self.passing}, {self.middle}, {self.sign}"


def norm(rng: np.random.Generator, channels: int) -> nn.Module:
    made = nn.BatchNorm2d(channels)
    made.weight.data = torch.tensor(rng.uniform(0.3, 1.5, channels) * rng.choice([-1, 1, 1], channels)).float()
    made.bias.data = torch.tensor(rng.choice([0.0, -0.4, 0.3], channels)).float()
    made.running_mean = torch.tensor(rng.normal(0, 2, channels)).float()
    made.running_var = torch.tensor(rng.uniform(2, 20, channels)).float()
    return made


class RandomModule(nn.Module):
    """The network of a seed. Its stem has offsets that leave whole channels at 0 behind a ReLU."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        channels = int(rng.choice([4, 8, 12]))
        self.shape = (int(rng.choice([1, 3])), int(rng.integers(6, 11)), int(rng.integers(6, 11)))
        self.stem = nn.Conv2d(self.shape[0], channels, 3, padding=1)
        self.stem.bias.data = torch.tensor(rng.uniform(-2, 1, channels)).float()
        self.units = nn.ModuleList(Unit(rng, channels) for _ in range(int(rng.integers(1, 4))))
        self.head = nn.Linear(channels, 5)
        self.end = str(rng.choice(["logits", "softmax", "map", "two", "mask", "relu map", "slice"]))
        self.mean, self.std = (0.0, 1.0) if rng.random() < 0.4 else (0.5, 0.25)

    def forward(self, x: Tensor) -> Any:
        y = self.stem(x)
        for unit in self.units:
            y = unit(y)
        logits = self.head(y.mean((2, 3)))
        return {
            "logits": lambda: logits,
            "softmax": lambda: F.softmax(logits, 1),
            "map": lambda: y,
            "two": lambda: (logits, F.relu(y)),
            "mask": lambda: (y > 0).to(y.dtype),
            "relu map": lambda: F.max_pool2d(F.relu(y), 2, ceil_mode=True),
            "slice": lambda: F.softmax(logits, 1)[:, 1:3],
        }[self.end]()


def pictures(shape: tuple[int, int, int], seed: int, count: int) -> np.ndarray:
    """uint8 (count, h, w, c): noise, flat areas and black borders."""
    c, h, w = shape
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, h, w, c), np.uint8)
    images[1::3, : h // 2] = rng.choice([0, 255])
    images[2::3] = rng.choice([0, 10, 128, 255], (len(images[2::3]), 1, 1, c))
    images[2::3, h // 3 :, w // 3 :] = rng.integers(0, 256, c)
    return images
