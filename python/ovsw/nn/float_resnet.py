"""Float networks that binary ones are distilled from: torchvision's ResNet18/34 with its key names, and cResNet20."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.networks import network
from ovsw.nn.resnet import FOUR_STAGES, THREE_STAGES, Staged, padded_shortcut, real_shortcut

FLOAT_NETWORKS = ("resnet18", "resnet34")


class FloatBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = real_shortcut(cin, cout, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class FloatPaddingBlock(FloatBlock):
    """As in cResNet20: where the shape changes, the shortcut averages 2x2 pixels and pads channels with zeros."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__(cin, cout, stride)  # draws the weights of a real shortcut: seeds keep their meaning
        self.downsample = padded_shortcut(cin, cout, stride)


class FloatCifarResNet20(Staged):
    """The float twin of cResNet20."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.add_stages(FloatPaddingBlock, (3, 3, 3), THREE_STAGES)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        return self.linear(self.features(F.relu(self.bn1(self.conv1(x)))).flatten(1))  # (N, classes)


class FloatResNet(Staged):
    def __init__(self, blocks: Sequence[int], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.add_stages(FloatBlock, blocks, FOUR_STAGES)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 224, 224)
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(self.features(x).flatten(1))  # (N, classes)


def float_network(name: str, num_classes: int = 1000) -> nn.Module:
    """A float network by name. Raises ValueError for an unknown one."""
    if name not in FLOAT_NETWORKS:
        raise ValueError(f"unknown float network '{name}'; known are {', '.join(FLOAT_NETWORKS)}")
    return FloatResNet(network(name).blocks, num_classes)
