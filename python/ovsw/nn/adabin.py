"""AdaBin: weights of two values per filter and activations of two values per layer, neither of them opposite.

Parameter names are those of AdaBin's code: they are the checkpoint's keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import native
from ovsw.nn.binary import ActivationSign, BinaryLayer, SurrogateSign, centred
from ovsw.nn.rbnn import rising
from ovsw.nn.resnet import FOUR_STAGES, THREE_STAGES, Staged, padded_shortcut, real_shortcut


def _tanh_slope(x: Tensor, t: float, k: float) -> Tensor:
    return k * t * (1 - torch.tanh(t * x).square())


class AdaptiveSign(nn.Module):
    """alpha * (s + beta) with s = sign((x - beta) / alpha), as AdaBin's code has it; its paper has alpha * s + beta."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_a = nn.Parameter(torch.tensor(1.0))
        self.beta_a = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, zero: int = 1) -> Tensor:
        s = ActivationSign.apply((x - self.beta_a) / self.alpha_a, zero)  # type: ignore[no-untyped-call]
        return self.alpha_a * (s + self.beta_a)


class AdaptiveConv2d(BinaryLayer):
    """AdaBin's binary convolution: a filter's weights become its mean plus or minus its deviation."""

    T_MIN, T_MAX = 1e-3, 1e1

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)
        self.binary_a = AdaptiveSign()
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        self.t, self.k = rising(progress, self.T_MIN, self.T_MAX)

    @torch.no_grad()
    def signed(self) -> Tensor:
        return centred(self.weight)

    def two_valued(self) -> tuple[Tensor, Tensor, Tensor]:
        """alpha, b = +-1 and beta of the weight in force, alpha * b + beta."""
        beta = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        rest = self.weight - beta
        alpha = rest.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
        slope = functools.partial(_tanh_slope, t=self.t, k=self.k)
        b = SurrogateSign.apply(rest / alpha, self.zero, slope)  # type: ignore[no-untyped-call]
        return alpha, b, beta

    def plan(self) -> native.Plan | None:
        act = self.binary_a
        if act.alpha_a.item() <= 0 or native.watched(act):
            return None
        alpha, b, beta = self.two_valued()
        alpha, beta = alpha.flatten(), beta.flatten()
        shift = (-act.beta_a).expand(self.in_channels)
        return native.Plan(b, act.alpha_a * alpha, act.alpha_a, shift=shift, ratio=beta / alpha, level=act.beta_a)

    def forward(self, x: Tensor) -> Tensor:
        done = native.unit(self, x)
        if done is not None:
            return done
        alpha, b, beta = self.two_valued()
        return F.conv2d(self.binary_a(x, self.zero), alpha * b + beta, None, self.stride, self.padding)


class Maxout(nn.Module):
    """A slope per channel for positive values, and another for negative ones."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.neg_scale = nn.Parameter(torch.full((channels,), 0.25))
        self.pos_scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.pos_scale.view(-1, 1, 1) * F.relu(x) - self.neg_scale.view(-1, 1, 1) * F.relu(-x)


def _unit(conv: AdaptiveConv2d, norm: nn.BatchNorm2d, act: Maxout, x: Tensor, residual: Tensor) -> Tensor:
    """act(norm(conv(x)) + residual), which the native kernels compute in one call."""
    done = None
    if not native.watched(act):
        done = native.unit(conv, x, norm, native.Slopes(act.neg_scale, act.pos_scale), residual)
    return act(norm(conv(x)) + residual) if done is None else done


class AdaBinBlock(nn.Module):
    """A shortcut around each of two convolutions; where the shape changes, a real 1x1 convolution with batch norm."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = AdaptiveConv2d(cin, cout, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(cout)
        self.nonlinear1 = Maxout(cout)
        self.conv2 = AdaptiveConv2d(cout, cout, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(cout)
        self.nonlinear2 = Maxout(cout)
        self.shortcut = self.make_shortcut(cin, cout, stride)

    def make_shortcut(self, cin: int, cout: int, stride: int) -> nn.Sequential:
        return real_shortcut(cin, cout, stride) or nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = _unit(self.conv1, self.bn1, self.nonlinear1, x, self.shortcut(x))
        return _unit(self.conv2, self.bn2, self.nonlinear2, y, y)


class AdaBinPaddingBlock(AdaBinBlock):
    """Where the shape changes, the shortcut takes every second pixel and pads channels with zeros."""

    def make_shortcut(self, cin: int, cout: int, stride: int) -> nn.Sequential:
        return padded_shortcut(cin, cout, stride, subsample=True)


class AdaBinResNet(Staged):
    """Stages of `widths` channels and `blocks` blocks each, every stage after the first at half the size."""

    def __init__(
        self, block: type[AdaBinBlock], blocks: Sequence[int], widths: Sequence[int], num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.nonlinear1 = Maxout(widths[0])
        self.add_stages(block, blocks, widths)
        self.linear = nn.Linear(widths[-1], num_classes)
        self.bn2 = nn.BatchNorm1d(widths[-1])

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.nonlinear1(self.bn1(self.conv1(x)))
        return self.linear(self.bn2(self.features(x).flatten(1)))  # (N, classes)


class AdaBinResNet18(AdaBinResNet):
    """`resnet18_1w1a` of AdaBin's code for CIFAR."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(AdaBinBlock, (2, 2, 2, 2), FOUR_STAGES, num_classes)


class AdaBinResNet20(AdaBinResNet):
    """`resnet20_1w1a` of AdaBin's code."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(AdaBinPaddingBlock, (3, 3, 3), THREE_STAGES, num_classes)
        for layer in (self.conv1, self.linear):
            nn.init.kaiming_normal_(layer.weight)
