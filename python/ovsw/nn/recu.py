"""ReCU: weights standardised and cut at a quantile that rises during training, a learned scale per output channel.

Parameter and buffer names are those of ReCU's code: they are the checkpoint's keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn.binary import ActivationSign, BinaryLayer, WeightSign, centred
from ovsw.nn.resnet import CifarResNet20, LinearResNet18, OnePaddingBlock
from ovsw.nn.vgg import VGGSmall


class RectifiedConv2d(BinaryLayer):
    """ReCU's binary convolution. The quantiles are those of a Laplace distribution with the layer's mean |w|."""

    EPS = 1e-5
    TAU_MIN, TAU_MAX = 0.85, 0.99

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)
        self.alpha = nn.Parameter(torch.rand(out_channels, 1, 1))
        self.tau: Tensor
        self.register_buffer("tau", torch.tensor(1.0))  # nothing is cut before a trainer says how far it is

    @property
    def learned_scale(self) -> bool:
        return True

    def set_progress(self, progress: float) -> None:
        share = (math.exp(progress) - 1) / (math.e - 1)
        self.tau.fill_(self.TAU_MIN + (self.TAU_MAX - self.TAU_MIN) * share)

    @torch.no_grad()
    def signed(self) -> Tensor:
        return centred(self.weight)

    def latent(self) -> Tensor:
        """The weight whose sign is taken in training: a standard deviation of 2 sqrt(2), cut at the quantiles."""
        w = centred(self.weight)
        w = w * (2 * math.sqrt(2) / torch.sqrt(w.var(dim=(1, 2, 3), keepdim=True) + self.EPS))
        limit = -w.detach().abs().mean() * torch.log(2 - 2 * self.tau)
        return torch.clamp(w, -limit, limit)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x / torch.sqrt(x.var(dim=(1, 2, 3), keepdim=True) + self.EPS)
        a = ActivationSign.apply(x, self.zero)  # type: ignore[no-untyped-call]
        b = WeightSign.apply(self.latent() if self.training else self.signed(), self.zero)  # type: ignore[no-untyped-call]
        return F.conv2d(a, b, None, self.stride, self.padding) * self.alpha


class ReCUResNet20(CifarResNet20):
    """`resnet20_1w1a` of ReCU's code."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes, conv=RectifiedConv2d)
        nn.init.kaiming_normal_(self.conv1.weight)


class ReCUResNet18(LinearResNet18):
    """`resnet18_1w1a` of ReCU's code."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(OnePaddingBlock, RectifiedConv2d, num_classes)
        nn.init.kaiming_normal_(self.conv1.weight)


class ReCUVGGSmall(VGGSmall):
    """`vgg_small_1w1a` of ReCU's code."""

    def __init__(self, num_classes: int = 10, input_size: int = 32) -> None:
        super().__init__(num_classes, input_size=input_size, conv=RectifiedConv2d, learned_slope=False)
