"""RBNN: weights rotated towards their signs, activations against their own image's mean, a narrowing gradient.

Parameter and buffer names are those of RBNN's code: they are the checkpoint's keys.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn.binary import BinaryLayer, SurrogateSign, centred, sign
from ovsw.nn.resnet import CifarResNet20, LinearResNet18, OneShortcutBlock, OneSubsamplingBlock, SubsamplingBlock
from ovsw.nn.vgg import VGGSmall


def rising(progress: float, low: float, high: float) -> tuple[float, float]:
    """(t, k) of a gradient that narrows: t from `low` to `high` in equal ratios, k = max(1 / t, 1)."""
    t = low * (high / low) ** progress
    return t, max(1 / t, 1.0)


def _triangle(x: Tensor, t: float, k: float) -> Tensor:
    return (k * t * (math.sqrt(2) - t * x.abs())).clamp_(min=0)


def _sides(n: int) -> tuple[int, int]:
    """The two factors of n that are nearest to each other, the smaller first."""
    side = next(i for i in range(math.isqrt(n), 0, -1) if n % i == 0)
    return side, n // side


def _standardised(x: Tensor) -> Tensor:
    """With a mean of 0 and an unbiased variance of 1; several times as fast as Tensor.std on a CPU."""
    x = centred(x)
    norm = torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)
    return x * (math.sqrt(x[0].numel() - 1) / norm)


class RotatedConv2d(BinaryLayer):
    """RBNN's binary convolution, with a learned scale `alpha` per output channel.

    A filter of a * b weights is standardised, seen as an a x b matrix X and turned to R1^T X R2; the binary weight is
    the sign of what lies between both, |sin(rotate)| of the way. R1 and R2 are set once per epoch, such that the turned
    weights come near to their signs; no gradient passes them. Activations are standardised per image before the sign,
    in training and after it.
    """

    T_MIN, T_MAX = 1e-2, 1e1
    CYCLES = 3

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)
        self.sides = _sides(self.weight[0].numel())
        self.alpha = nn.Parameter(self.weight.detach().abs().mean(dim=(1, 2, 3)).view(-1, 1, 1))
        self.rotate = nn.Parameter(torch.full((out_channels, 1, 1, 1), math.pi / 2))
        self.R1: Tensor
        self.R2: Tensor
        for name, side in zip(("R1", "R2"), self.sides):
            self.register_buffer(name, nn.init.orthogonal_(torch.empty(side, side)))
        self.set_progress(0.0)

    @property
    def learned_scale(self) -> bool:
        return True

    def set_progress(self, progress: float) -> None:
        self.t, self.k = rising(progress, self.T_MIN, self.T_MAX)

    @torch.no_grad()
    def begin_epoch(self) -> None:
        """Turns R1 and R2: in each cycle both are the best for the signs that they gave, by Procrustes' solution."""
        x = self._matrices(_standardised(self.weight))
        for _ in range(self.CYCLES):
            b = sign(self.R1.T @ x @ self.R2, self.zero)
            u, _, vh = torch.linalg.svd((b @ self.R2.T @ x.mT).sum(dim=0))
            self.R1.copy_(vh.T @ u.T)
            u, _, vh = torch.linalg.svd((x.mT @ self.R1 @ b).sum(dim=0))
            self.R2.copy_(u @ vh)

    def _matrices(self, w: Tensor) -> Tensor:
        return w.reshape(-1, *self.sides)

    def latent(self) -> Tensor:
        """The weight whose sign is taken."""
        w = _standardised(self.weight)
        turned = (self.R1.T @ self._matrices(w.detach()) @ self.R2).view_as(w)
        return w + self.rotate.sin().abs() * (turned - w)

    @torch.no_grad()
    def signed(self) -> Tensor:
        return self.latent()

    def forward(self, x: Tensor) -> Tensor:
        x = _standardised(x) if self.training else centred(x)
        narrow = functools.partial(_triangle, t=self.t, k=self.k)
        wide = functools.partial(_triangle, t=max(self.t, 1.0), k=1.0)
        a = SurrogateSign.apply(x, self.zero, wide)  # type: ignore[no-untyped-call]
        b = SurrogateSign.apply(self.latent(), self.zero, narrow)  # type: ignore[no-untyped-call]
        return F.conv2d(a, b, None, self.stride, self.padding) * self.alpha


class RBNNResNet20(CifarResNet20):
    """`resnet20_bireal_1w1a` of RBNN's code: a shortcut around each convolution, tiny batch-norm weights at first."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes, conv=RotatedConv2d, block=SubsamplingBlock)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1e-8)
        _initialise(self)


class RBNNPlainResNet20(CifarResNet20):
    """`resnet20_1w1a` of RBNN's code: one shortcut around both convolutions of a block."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes, conv=RotatedConv2d, block=OneSubsamplingBlock)
        _initialise(self)


class RBNNResNet18(LinearResNet18):
    """`resnet18_1w1a` of RBNN's code."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(OneShortcutBlock, RotatedConv2d, num_classes)


class RBNNVGGSmall(VGGSmall):
    """`vgg_small_1w1a` of RBNN's code."""

    def __init__(self, num_classes: int = 10, input_size: int = 32) -> None:
        super().__init__(num_classes, input_size=input_size, conv=RotatedConv2d, learned_slope=False)


def _initialise(model: CifarResNet20) -> None:
    for layer in (model.conv1, model.linear):
        nn.init.kaiming_normal_(layer.weight)
