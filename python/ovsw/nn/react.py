"""ReActNet's ResNet18/34: learned shifts before the sign and around a PReLU, one convolution per block.

Attribute names are those of ReActNet's code: they are the checkpoint's keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import native
from ovsw.nn.binary import ActivationSign, BinaryConv2d, Layer, sign, with_scale
from ovsw.nn.resnet import FOUR_STAGES, Staged


class _ScaledSign(torch.autograd.Function):
    """scale * sign(weight), with the gradient passed straight through: it does not see the scale."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor, zero: int) -> Tensor:
        return sign(weight, zero) * scale.view(-1, 1, 1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


class _Unscaled(torch.autograd.Function):
    """The weight itself; its gradient, which has come through `scale * sign(weight)`, loses the scale again."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grads[0] / torch.where(scale == 0, 1.0, scale).view(-1, 1, 1, 1), None


class ReActConv2d(BinaryConv2d):
    """The binary convolution of ReActNet: the scale is mean|weight|, activations are not divided by their deviation,
    and weights beyond -1..1 get no gradient. Bi-Real's is the same.
    """

    @torch.no_grad()
    def derived_scale(self) -> Tensor:
        """mean|w| of each output channel."""
        return self.weight.abs().mean(dim=(1, 2, 3))

    def plan(self) -> native.Plan | None:
        if not self.binary_weights:
            return None
        weight, scale = self.latent().clamp(-1, 1), self.scale()
        if self.scaling_factor is None:
            weight = _Unscaled.apply(weight, scale)  # type: ignore[no-untyped-call]
        return native.Plan(weight, scale)

    def forward(self, x: Tensor) -> Tensor:
        done = native.unit(self, x)
        if done is not None:
            return done
        weight = self.latent().clamp(-1, 1) if self.binary_weights else self.weight
        if not self.training or not self.binary_weights or self.scaling_factor is not None:
            return self.convolve(x, weight)
        a = ActivationSign.apply(x, self.zero)  # type: ignore[no-untyped-call]
        b = _ScaledSign.apply(weight, self.scale(), self.zero)  # type: ignore[no-untyped-call]
        return F.conv2d(a, b, None, self.stride, self.padding)


class Shift(nn.Module):
    """A learned value per channel, added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def pooled_shortcut(cin: int, cout: int, stride: int) -> nn.Sequential | None:
    """Where the shape changes: pixels averaged, a real 1x1 convolution, batch norm."""
    if stride == 1 and cin == cout:
        return None
    return nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout))


class ReActBlock(nn.Module):
    """Shifted sign, binary convolution, batch norm, shortcut, shifted PReLU."""

    def __init__(self, cin: int, cout: int, stride: int, conv: Layer) -> None:
        super().__init__()
        self.move0 = Shift(cin)
        self.binary_conv = conv(cin, cout, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(cout)
        self.move1 = Shift(cout)
        self.prelu = nn.PReLU(cout)
        self.move2 = Shift(cout)
        self.downsample = pooled_shortcut(cin, cout, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        if not native.watched(self.move0, self.move1, self.prelu, self.move2):
            slopes = native.Slopes(self.prelu.weight, before=self.move1.bias, after=self.move2.bias)
            done = native.unit(self.binary_conv, x, self.bn1, slopes, shortcut, self.move0.bias)
            if done is not None:
                return done
        y = self.bn1(self.binary_conv(self.move0(x))) + shortcut
        return self.move2(self.prelu(self.move1(y)))


class ReActResNet(Staged):
    """`birealnet18` and `birealnet34` of ReActNet's code, for ImageNet; `blocks` counts single convolutions."""

    def __init__(
        self,
        blocks: Sequence[int],
        num_classes: int = 1000,
        learned_scale: bool = False,
        block: type[nn.Module] = ReActBlock,
    ) -> None:
        super().__init__()
        conv = with_scale(ReActConv2d, learned_scale)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.add_stages(block, blocks, FOUR_STAGES, conv)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 224, 224)
        x = self.maxpool(self.bn1(self.conv1(x)))  # (N, 64, 56, 56)
        return self.fc(self.features(x).flatten(1))  # (N, classes)
