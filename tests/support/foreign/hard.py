"""What may be refused, but never be wrong: axes turned, powers, three levels, convolutions in disguise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import Body, Forward, Network, SignConv, binary, habit

HARD: dict[str, Network] = {}


class Late(nn.Module):
    """Binary layers whose result a function reads that has no layer for it."""

    def __init__(self, then: Forward, features: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv, self.then, self.fc = SignConv(16, 16, 3, padding=1), then, nn.Linear(features, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.then(self.conv(binary(self.norm(self.stem(x))))).flatten(1))


def late(name: str, then: Forward, features: int) -> None:
    def make() -> nn.Module:
        return Late(then, features)

    make.__name__ = name
    habit(HARD, (1, 3, 8, 8))(make)


late("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), 1024)
late("rows_as_columns", lambda x: x.transpose(2, 3)[:, :, :3], 384)
late("flipped_and_rolled", lambda x: torch.roll(x.flip(3), 1, 2), 1024)
late("largest_over_channels", lambda x: x.amax(1), 64)
late("signs_of_even_sums", torch.sign, 1024)  # often zero, whose sign torch calls 0: three levels, not two
late("powers_of_the_stream", lambda x: (0.1 * x).pow(3) + torch.exp(-x.abs()), 1024)


@habit(HARD, (1, 3, 8, 8))
def lstm() -> nn.Module:
    """Of one step: products of gates."""
    rnn = nn.LSTM(1024, 8, batch_first=True)
    return Late(lambda x: rnn(x.flatten(1)[:, None])[0][:, 0], 8)


class ChannelsLastLinear(Late):
    """A 1x1 convolution as a linear layer over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        x = binary(self.norm(self.stem(x))).permute(0, 2, 3, 1)
        x = F.linear(x, binary(self.conv.weight[:, :, 0, 0])).permute(0, 3, 1, 2)
        return self.fc(x.flatten(1))


@habit(HARD, (1, 3, 8, 8))
def linear_over_the_last_axis() -> nn.Module:
    return ChannelsLastLinear(binary, 1024)


class Unfolded(Late):
    """A convolution as a product of matrices."""

    def forward(self, x: Tensor) -> Tensor:
        x = binary(self.norm(self.stem(x)))
        columns = F.unfold(x, 3, padding=1)
        x = (binary(self.conv.weight).view(16, -1) @ columns).view(-1, 16, 8, 8)
        return self.fc(x.flatten(1))


@habit(HARD, (1, 3, 8, 8))
def unfolded_convolution() -> nn.Module:
    return Unfolded(binary, 1024)


class Scaled(nn.Module):
    """+-a with an a per input channel: no two values per output channel are left, so nothing is binary but the bits."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1) / math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(self.norm(x)).mul_(self.scale)


@habit(HARD)
def scaled_per_channel() -> nn.Module:
    return Body(Scaled)


@habit(HARD)
def per_image_and_channel_mean() -> nn.Module:
    return Body(lambda _: lambda x: torch.where(x > F.adaptive_avg_pool2d(x, 1), 1.0, -1.0))


@habit(HARD)
def sign_bit() -> nn.Module:
    return Body(lambda _: lambda x: 1 - 2 * torch.signbit(x).float())


def halves(x: Tensor) -> Tensor:
    a, b = x.split(x.shape[1] // 2, dim=1)
    return torch.cat([a.sign(), torch.where(b > 0, 1.0, -1.0)], 1)


@habit(HARD)
def halves_apart() -> nn.Module:
    return Body(lambda _: halves)
