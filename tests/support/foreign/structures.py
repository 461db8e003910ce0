"""Habits of building a network: what stands around the binary layers, and what comes out at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import Call, Network, SignConv, binary, habit

HABITS: dict[str, Network] = {}


def conv3(i: int, o: int, stride: int = 1, **options: Any) -> nn.Module:
    return SignConv(i, o, 3, stride=stride, **{"padding": 1, "bias": False, **options})


def norm_sign_conv(i: int, o: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(i), Call(binary), conv3(i, o, **options))


@habit(HABITS)
def sequential_only() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(16),
        nn.Hardtanh(inplace=True),
        Call(binary),
        conv3(16, 32),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(32),
        nn.Dropout(0.5),
        Call(binary),
        nn.Flatten(),
        nn.Linear(512, 6),
    )


@habit(HABITS, (1, 3, 8, 8))
class Mlp(nn.Module):
    """Rows of pixels, binary matrices by three spellings, batch norm over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(64, 3 * 8 * 8))
        self.b = nn.Parameter(torch.randn(64, 64))
        self.c = nn.Linear(64, 5, bias=True)
        self.bn1, self.bn2 = nn.BatchNorm1d(64), nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 3 * 8 * 8)
        x = self.bn1(torch.matmul(binary(x), binary(self.a).t()))
        x = self.bn2(torch.einsum("ni,oi->no", binary(x), binary(self.b)))
        return F.log_softmax(F.linear(binary(x), self.c.weight.sign()) + self.c.bias, dim=1)


@habit(HABITS, (1, 3, 10, 10))
class Dense(nn.Module):
    """Every layer's maps beside all earlier ones; a real 1x1 and a pool between two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.first = nn.ModuleList(norm_sign_conv(16 + 8 * i, 8, dilation=2, padding=2) for i in range(3))
        self.between = nn.Sequential(nn.BatchNorm2d(40), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(40, 24, 1, bias=False))
        self.second = nn.ModuleList(norm_sign_conv(24 + 8 * i, 8) for i in range(2))
        self.last, self.fc = nn.BatchNorm2d(40), nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.first:
            x = torch.cat((x, layer(x)), dim=1)
        x = self.between(x)
        maps = [x]
        for layer in self.second:
            maps.append(layer(torch.cat(maps, 1)))
        return self.fc(F.relu(self.last(torch.cat(maps, 1))).mean((-2, -1)))


@habit(HABITS)
class Shuffle(nn.Module):
    """Half of the channels pass by; a shuffle mixes them; grouped, depthwise and pointwise layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.grouped, self.bn1 = conv3(8, 8, groups=2), nn.BatchNorm2d(8)
        self.depth, self.bn2 = conv3(16, 16, groups=16), nn.BatchNorm2d(16)
        self.real, self.bn3 = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16)
        self.point, self.bn4 = SignConv(16, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.fc = nn.Linear(24, 6)

    @staticmethod
    def shuffle(x: Tensor, groups: int) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, groups, c // groups, h, w)
        return torch.transpose(x, 1, 2).contiguous().view(n, -1, h, w)

    def forward(self, x: Tensor) -> Tensor:
        kept, x = self.stem(x).chunk(2, dim=1)
        x = torch.cat((kept, self.bn1(self.grouped(binary(x)))), 1)
        x = self.shuffle(x, 4)
        x = x + self.bn2(self.depth(binary(x)))
        x = F.relu6(self.bn3(self.real(x))) - 1.0
        x = self.bn4(self.point(binary(x)))
        return self.fc(F.avg_pool2d(x, (x.shape[2], x.shape[3])).squeeze(3).squeeze(2))


@habit(HABITS)
class Gated(nn.Module):
    """Squeeze-and-excite, once with a sigmoid and once with a hard one; map times map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv1, self.bn1 = conv3(16, 16, 2), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = conv3(16, 16), nn.BatchNorm2d(16)
        self.squeeze = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
        self.hard = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Hardsigmoid())
        self.fc = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.bn1(self.conv1(binary(x)))
        b, c, _, _ = y.size()
        y = y * self.squeeze(y.mean((2, 3))).view(b, c, 1, 1).expand_as(y)
        y = y + F.avg_pool2d(x, 2)
        z = self.bn2(self.conv2(binary(y)))
        z = z * self.hard(y)
        return self.fc((z * torch.sigmoid(y)).mean((2, 3)))


@habit(HABITS)
class Padded(nn.Module):
    """Borders of +1, -1 and 0, put on before the sign and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.layers = nn.ModuleList(conv3(12, 12, padding=0) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(4))
        self.ones, self.zeros = nn.ConstantPad2d(1, 1.0), nn.ZeroPad2d((1, 0, 0, 1))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.norms[0](self.layers[0](F.pad(binary(x), (1, 1, 1, 1), value=-1)))
        x = x + self.norms[1](self.layers[1](self.ones(binary(x))))
        x = x + self.norms[2](self.layers[2](binary(F.pad(x, [1] * 4, mode="constant", value=-1.0))))
        x = self.norms[3](self.layers[3](binary(self.zeros(x))))
        return self.fc(x.mean([2, 3]))


class Bias(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.expand_as(x)


@habit(HABITS)
class React(nn.Module):
    """Shifted signs, shifted PReLUs, a reduction whose two halves are the same maps twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.move1, self.conv1, self.bn1 = Bias(16), conv3(16, 16), nn.BatchNorm2d(16)
        self.act1 = nn.Sequential(Bias(16), nn.PReLU(16), Bias(16))
        self.move2, self.left, self.right = Bias(16), SignConv(16, 16, 1), SignConv(16, 16, 1)
        self.bn2, self.bn3 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.act2 = nn.Sequential(Bias(32), nn.PReLU(32), Bias(32))
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.act1(self.bn1(self.conv1(torch.sign(self.move1(x)))) + x)
        y = torch.sign(self.move2(x))
        left, right = self.bn2(self.left(y)) + x, self.bn3(self.right(y)) + x
        x = self.act2(torch.cat([left, right], dim=1))
        return self.fc(nn.AdaptiveAvgPool2d(1)(x).view(x.size(0), -1))


@habit(HABITS, (1, 3, 12, 12))
class Decoder(nn.Module):
    """Down and up again by both kinds of upsampling, with a skip; the result is a map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 12, 3, padding=1), norm_sign_conv(12, 24, stride=2)
        self.deep, self.up = norm_sign_conv(24, 24), norm_sign_conv(36, 12)
        self.grow = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.down(x)
        y = y + self.deep(y)
        y = self.up(torch.cat([x, self.grow(y)], 1))
        return F.interpolate(self.out(y), size=(24, 24), mode="bilinear", align_corners=False)


@habit(HABITS)
class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.bn = nn.Conv2d(3, 16, 3, 2, 1), conv3(16, 16), nn.BatchNorm2d(16)
        self.classes, self.boxes = nn.Linear(16, 5), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = F.hardtanh(self.bn(self.body(binary(x))) + x, -2, 2)
        return torch.softmax(self.classes(x.mean([2, 3])), dim=-1), self.boxes(x)
