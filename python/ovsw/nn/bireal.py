"""Bi-Real: a shortcut around every binary convolution and nothing else between them.

Attribute names are those of Bi-Real's PyTorch code: they are the checkpoint's keys. (A convolution's weight is called
`weights` there and is a column, which the exporter understands.)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ovsw.nn.binary import Layer, binary_unit
from ovsw.nn.react import ReActConv2d, ReActResNet, pooled_shortcut
from ovsw.nn.resnet import CifarResNet20


class BiRealBlock(nn.Module):
    """Binary convolution, batch norm, shortcut."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__()
        self.binary_conv = conv(cin, cout, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(cout)
        self.downsample = pooled_shortcut(cin, cout, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return binary_unit(self.binary_conv, self.bn1, None, x, shortcut)


class BiRealNet(ReActResNet):
    """`birealnet18` and `birealnet34` for ImageNet; `blocks` counts single convolutions."""

    def __init__(self, blocks: Sequence[int], num_classes: int = 1000, learned_scale: bool = False) -> None:
        super().__init__(blocks, num_classes, learned_scale, BiRealBlock)


class BiRealResNet20(CifarResNet20):
    """cResNet20 with Bi-Real's convolutions: its shortcuts are Bi-Real's already."""

    def __init__(self, num_classes: int = 10, learned_scale: bool = False) -> None:
        super().__init__(num_classes, learned_scale, ReActConv2d)
