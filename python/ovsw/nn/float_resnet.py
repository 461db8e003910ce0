"""Float networks that binary ones are distilled from: torchvision's ResNet18/34 with its key names, and cResNet20."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.networks import network
from ovsw.nn.resnet import padded_shortcut, stage

FLOAT_NETWORKS = ("resnet18", "resnet34")


class FloatBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class FloatPaddingBlock(FloatBlock):
    """As in cResNet20: where the shape changes, the shortcut averages 2x2 pixels and pads channels with zeros."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__(cin, cout, stride)
        self.downsample = padded_shortcut(cin, cout, stride)


class FloatCifarResNet20(nn.Module):
    """The float twin of cResNet20."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(FloatPaddingBlock, 16, 16, 3, 1)
        self.layer2 = stage(FloatPaddingBlock, 16, 32, 3, 2)
        self.layer3 = stage(FloatPaddingBlock, 32, 64, 3, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))  # (N, 64, 8, 8)
        return self.linear(self.avgpool(x).flatten(1))


class FloatResNet(nn.Module):
    def __init__(self, blocks: Sequence[int], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = stage(FloatBlock, 64, 64, blocks[0], 1)
        self.layer2 = stage(FloatBlock, 64, 128, blocks[1], 2)
        self.layer3 = stage(FloatBlock, 128, 256, blocks[2], 2)
        self.layer4 = stage(FloatBlock, 256, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 224, 224)
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def float_network(name: str, num_classes: int = 1000) -> nn.Module:
    """A float network by name. Raises ValueError for an unknown one."""
    if name not in FLOAT_NETWORKS:
        raise ValueError(f"unknown float network '{name}'; known are {', '.join(FLOAT_NETWORKS)}")
    return FloatResNet(network(name).blocks, num_classes)
