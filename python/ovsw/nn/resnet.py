"""The binary ResNets: ResNet18/34 for ImageNet, cResNet18 and cResNet20 for CIFAR.

Attribute names are those of the reference implementation: they are the checkpoint's keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn.binary import BinaryConv2d, binary_unit


class TwoConvolutions(nn.Module):
    """What all blocks have: two binary convolutions, each with batch norm."""

    def __init__(self, cin: int, cout: int, stride: int, learned_scale: bool) -> None:
        super().__init__()
        self.conv1 = BinaryConv2d(cin, cout, 3, stride, 1, learned_scale)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = BinaryConv2d(cout, cout, 3, 1, 1, learned_scale)
        self.bn2 = nn.BatchNorm2d(cout)


class TwoShortcutBlock(TwoConvolutions):
    """A shortcut around *each* convolution (Bi-Real): ImageNet ResNets and cResNet20."""

    def __init__(self, cin: int, cout: int, stride: int, learned_scale: bool) -> None:
        super().__init__(cin, cout, stride, learned_scale)
        self.nonlinear = nn.Hardtanh()

    def shortcut(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        y = binary_unit(self.conv1, self.bn1, self.nonlinear, x, self.shortcut(x))
        return binary_unit(self.conv2, self.bn2, self.nonlinear, y, y)


class ImageNetBlock(TwoShortcutBlock):
    """Where the shape changes, the shortcut is a real 1x1 convolution with batch norm (key `downsample`)."""

    def __init__(self, cin: int, cout: int, stride: int, learned_scale: bool) -> None:
        super().__init__(cin, cout, stride, learned_scale)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def shortcut(self, x: Tensor) -> Tensor:
        return x if self.downsample is None else self.downsample(x)


class PaddingBlock(TwoShortcutBlock):
    """Where the shape changes, the shortcut averages 2x2 pixels and pads channels with zeros (no parameters)."""

    def __init__(self, cin: int, cout: int, stride: int, learned_scale: bool) -> None:
        super().__init__(cin, cout, stride, learned_scale)
        self.pad = (cout - cin) // 2
        self.pool = nn.AvgPool2d(2, 2) if stride != 1 else nn.Identity()

    def shortcut(self, x: Tensor) -> Tensor:
        return F.pad(self.pool(x), (0, 0, 0, 0, self.pad, self.pad)) if self.pad else x


class OneShortcutBlock(TwoConvolutions):
    """*One* shortcut around both convolutions, which is itself a binary 1x1 where the shape changes."""

    def __init__(self, cin: int, cout: int, stride: int, learned_scale: bool) -> None:
        super().__init__(cin, cout, stride, learned_scale)
        self.act1 = nn.Hardtanh()
        self.act2 = nn.Hardtanh()
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(BinaryConv2d(cin, cout, 1, stride, 0, learned_scale), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = binary_unit(self.conv1, self.bn1, self.act1, x)
        return binary_unit(self.conv2, self.bn2, self.act2, y, self.shortcut(x))


def stage(block: type[nn.Module], cin: int, cout: int, n: int, stride: int, *scale: bool) -> nn.Sequential:
    """`n` blocks, the first of which changes the shape; `scale` is whether scales are learned, where there are any."""
    first = block(cin, cout, stride, *scale)
    return nn.Sequential(first, *(block(cout, cout, 1, *scale) for _ in range(n - 1)))


class ResNet(nn.Module):
    """ResNet18/34 for ImageNet: real 7x7 stem, 16 or 32 binary convolutions, batch norm before the classifier."""

    def __init__(self, blocks: Sequence[int], num_classes: int = 1000, learned_scale: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.nonlinear = nn.Hardtanh()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = stage(ImageNetBlock, 64, 64, blocks[0], 1, learned_scale)
        self.layer2 = stage(ImageNetBlock, 64, 128, blocks[1], 2, learned_scale)
        self.layer3 = stage(ImageNetBlock, 128, 256, blocks[2], 2, learned_scale)
        self.layer4 = stage(ImageNetBlock, 256, 512, blocks[3], 2, learned_scale)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.bn2 = nn.BatchNorm1d(512)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1e-8)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 224, 224)
        x = self.maxpool(self.nonlinear(self.bn1(self.conv1(x))))  # (N, 64, 56, 56)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (N, 512, 7, 7)
        return self.fc(self.bn2(self.avgpool(x).flatten(1)))  # (N, classes)


class CifarResNet18(nn.Module):
    """cResNet18: real 3x3 stem without activation, one shortcut per block, classifier as a 1x1 convolution."""

    def __init__(self, num_classes: int = 100, learned_scale: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(OneShortcutBlock, 64, 64, 2, 1, learned_scale)
        self.layer2 = stage(OneShortcutBlock, 64, 128, 2, 2, learned_scale)
        self.layer3 = stage(OneShortcutBlock, 128, 256, 2, 2, learned_scale)
        self.layer4 = stage(OneShortcutBlock, 256, 512, 2, 2, learned_scale)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.bn2 = nn.BatchNorm2d(512)
        self.fc = nn.Conv2d(512, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.bn1(self.conv1(x))  # (N, 64, 32, 32)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (N, 512, 4, 4)
        return self.fc(self.bn2(self.avgpool(x))).flatten(1)  # (N, classes)


class CifarResNet20(nn.Module):
    """cResNet20: 16/32/64 channels, three blocks each, parameter-free shortcuts."""

    def __init__(self, num_classes: int = 10, learned_scale: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.nonlinear = nn.Hardtanh()
        self.layer1 = stage(PaddingBlock, 16, 16, 3, 1, learned_scale)
        self.layer2 = stage(PaddingBlock, 16, 32, 3, 2, learned_scale)
        self.layer3 = stage(PaddingBlock, 32, 64, 3, 2, learned_scale)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.bn2 = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.nonlinear(self.bn1(self.conv1(x)))  # (N, 16, 32, 32)
        x = self.layer3(self.layer2(self.layer1(x)))  # (N, 64, 8, 8)
        return self.linear(self.bn2(self.avgpool(x).flatten(1)))  # (N, classes)
