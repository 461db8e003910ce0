"""The base class of binary convolutions, gradients of signs, and the convolution of OvSW and XNOR-Net++.

The other methods' layers are in rbnn.py, adabin.py, recu.py and react.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.nn import native


def sign(x: Tensor, zero: int = 1) -> Tensor:
    """+1 where x > 0, -1 where x < 0, and `zero` where x is 0 or -0.0: +1 in the paper, 0 in its released code."""
    if zero == 0:
        return torch.sign(x)
    return (x >= 0).to(x.dtype).mul_(2).sub_(1)


class ActivationSign(torch.autograd.Function):
    """sign, with the gradient of Bi-Real's piecewise polynomial: 2 - 2|x| where that is positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, zero: int) -> Tensor:
        ctx.save_for_backward(x)
        return sign(x, zero)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * (2 - 2 * x.abs()).clamp_(min=0), None


class SurrogateSign(torch.autograd.Function):
    """sign, with the gradient of another function: `slope` gives its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, zero: int, slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return sign(x, zero)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.slope(x), None, None


class WeightSign(torch.autograd.Function):
    """sign, with the gradient passed straight through, not even clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, zero: int) -> Tensor:
        return sign(x, zero)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def recu(weight: Tensor, tau: float) -> Tensor:
    """ReCU's clamp: weights beyond the tau and 1 - tau quantiles of the layer are cut there and get no gradient.

    The quantiles are those of a Laplace distribution with the layer's mean |w|, as in ReCU's own code.
    """
    limit = -weight.detach().abs().mean() * torch.log(torch.tensor(2 - 2 * tau))
    return weight.clamp(min=-limit.item(), max=limit.item())


def centred(x: Tensor) -> Tensor:
    """Each sample, or filter, minus its mean."""
    return x - x.mean(dim=(1, 2, 3), keepdim=True)


@torch.no_grad()
def _deviation(x: Tensor, eps: float) -> Tensor:
    """sqrt(unbiased variance + eps) of each sample; several times as fast as Tensor.var on a CPU."""
    norm = torch.linalg.vector_norm(centred(x), dim=(1, 2, 3), keepdim=True)
    return torch.sqrt(norm.square() / (x[0].numel() - 1) + eps)


class BinaryLayer(nn.Conv2d):
    """A convolution with binary weights: the interface that networks, trainers and OvSW use.

    `zero` is the sign of an exact zero (see `sign`). A trainer calls `begin_epoch` before the first batch of an epoch
    and `set_progress` before every batch; most layers have nothing to do there.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_in", nonlinearity="relu")
        self.zero = 1

    @property
    def learned_scale(self) -> bool:
        """Whether its scale is a parameter."""
        return False

    @torch.no_grad()
    def signed(self) -> Tensor:
        """The latent weight, whose sign is the binary weight, without gradient."""
        return self.weight.detach()

    @torch.no_grad()
    def avoid_zeros(self) -> None:
        """Replaces weights that were drawn as exactly 0, about one in 2^24, by the smallest other magnitude."""
        zero = self.weight == 0
        if not zero.is_meta and zero.any() and not zero.all():
            self.weight[zero] = self.weight[~zero].abs().min()

    def plan(self) -> native.Plan | None:
        """How the native kernels compute this layer as it is now; None if they do not."""
        return None

    def set_progress(self, progress: float) -> None:
        """Takes the share of the training that is over, from 0 to 1."""

    def begin_epoch(self) -> None:
        """Work that is done once per epoch."""


Layer = Callable[..., BinaryLayer]  # of in_channels, out_channels, kernel_size, stride, padding


class BinaryConv2d(BinaryLayer):
    """A convolution of sign(x) with sign(weight), times a scale per output channel.

    Padding is 0 *after* the sign, so taps outside the image contribute nothing. The scale is the parameter
    `scaling_factor` if `learned_scale`, otherwise derived from the standardised weight at every call, without gradient.
    In training each sample is divided by its standard deviation before the sign, which changes no sign but the width of
    the window in which gradients pass.

    `tau`, if set, applies ReCU's clamp in training. Without `binary_weights` only activations are binary and there is
    no scale: the first of two training steps.
    """

    EPS = 1e-5

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        learned_scale: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)
        self.tau: float | None = None
        self.binary_weights = True
        self.scaling_factor: nn.Parameter | None
        self.register_parameter("scaling_factor", None)
        if learned_scale:
            self.learn_scale()

    @property
    def learned_scale(self) -> bool:
        return self.scaling_factor is not None

    def learn_scale(self) -> None:
        """Gives the layer a learned scale, starting at mean|W| of each output channel."""
        self.scaling_factor = nn.Parameter(self.weight.detach().abs().mean(dim=(1, 2, 3)))

    @torch.no_grad()
    def derived_scale(self) -> Tensor:
        """mean|w| of each output channel's standardised weight (unbiased variance)."""
        w = self.weight.flatten(1)
        w = w - w.mean(dim=1, keepdim=True)
        w = w / torch.sqrt(w.var(dim=1, keepdim=True) + self.EPS)
        return w.abs().mean(dim=1)

    def scale(self) -> Tensor:
        """The scale in force, one value per output channel."""
        return self.derived_scale() if self.scaling_factor is None else self.scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        done = native.unit(self, x)
        if done is not None:
            return done
        if self.training:
            x = x / _deviation(x, self.EPS)
        return self.convolve(x, self.latent())

    def plan(self) -> native.Plan | None:
        if not self.binary_weights:
            return None
        scale = native.derived_scale(self.weight, self.EPS) if self.scaling_factor is None else self.scaling_factor
        return native.Plan(self.latent(), scale, divides=True, eps=self.EPS)

    def latent(self) -> Tensor:
        """The weight whose sign is taken."""
        return recu(self.weight, self.tau) if self.training and self.tau is not None else self.weight

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """The signs of x with those of `weight`, scaled."""
        a = ActivationSign.apply(x, self.zero)  # type: ignore[no-untyped-call]
        if not self.binary_weights:
            return F.conv2d(a, weight, None, self.stride, self.padding)
        b = WeightSign.apply(weight, self.zero)  # type: ignore[no-untyped-call]
        return F.conv2d(a, b, None, self.stride, self.padding) * self.scale().view(1, -1, 1, 1)


def with_scale(conv: Layer, learned_scale: bool) -> Layer:
    """The same layers, with learned scales if asked for."""
    return functools.partial(conv, learned_scale=True) if learned_scale else conv


def binary_unit(
    conv: BinaryLayer, norm: nn.BatchNorm2d, act: nn.Hardtanh | None, x: Tensor, residual: Tensor | None = None
) -> Tensor:
    """act(norm(conv(x)) + residual), which the native kernels compute in one call."""
    done = native.unit(conv, x, norm, act, residual)
    if done is not None:
        return done
    y = norm(conv(x))
    y = y if residual is None else y + residual
    return y if act is None else act(y)


def norm_act(norm: nn.BatchNorm2d, act: nn.Hardtanh, x: Tensor) -> Tensor:
    """act(norm(x)), which the native kernels compute in one call."""
    done = native.norm_act(norm, act, x)
    return act(norm(x)) if done is None else done


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    """The binary convolutions of a model by name, in the order of its modules."""
    return {name: m for name, m in model.named_modules() if isinstance(m, BinaryLayer)}
