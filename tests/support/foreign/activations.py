"""Habits of taking a sign: one small body, some thirty spellings of what it does to its activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.foreign.common import Body, Forward, Network, habit

HABITS: dict[str, Network] = {}


def spelled(function: Forward) -> None:
    """Registers a body with this sign, under the function's name."""

    def make() -> nn.Module:
        return Body(lambda _: function)

    make.__name__ = function.__name__
    habit(HABITS)(make)


@spelled
def torch_sign(x: Tensor) -> Tensor:
    return torch.sign(x)


@spelled
def where_numbers(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0)


@spelled
def where_likes(x: Tensor) -> Tensor:
    return torch.where(torch.zeros_like(x) <= x, torch.ones_like(x), -torch.ones_like(x))


@spelled
def twice_a_mask_minus_one(x: Tensor) -> Tensor:
    return 2 * (x > 0).float() - 1


@spelled
def difference_of_masks(x: Tensor) -> Tensor:
    return x.ge(0).type(x.dtype) - x.lt(0).type(x.dtype)


@spelled
def integers_in_between(x: Tensor) -> Tensor:
    return ((x > 0).int() * 2 - 1).to(x)


@spelled
def filled_by_masks(x: Tensor) -> Tensor:
    out = x.new_empty(x.size())
    out[x >= 0] = 1
    out[x < 0] = -1
    return out


@spelled
def written_over_a_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y[y >= 0] = 1
    y[y < 0] = -1
    return y


@spelled
def masked_fill(x: Tensor) -> Tensor:
    return torch.ones_like(x).masked_fill(x < 0, -1.0)


@spelled
def masked_fill_inplace_twice(x: Tensor) -> Tensor:
    low = x < 0
    return x.detach().clone().masked_fill_(~low, 1).masked_fill_(low, -1)


@spelled
def heaviside(x: Tensor) -> Tensor:
    return torch.heaviside(x, torch.tensor(1.0)).mul(2).sub(1)


@spelled
def copysign(x: Tensor) -> Tensor:
    return torch.copysign(torch.ones_like(x), x)


@spelled
def sign_bit(x: Tensor) -> Tensor:
    return 1 - 2 * torch.signbit(x).float()


@spelled
def sign_of_sign_and_a_half(x: Tensor) -> Tensor:
    return torch.sign(x.sign() + 0.5)


@spelled
def rounded_hard_sigmoid(x: Tensor) -> Tensor:
    return torch.round(torch.clamp((x + 1) / 2, 0, 1)) * 2 - 1


@spelled
def ceil_of_a_clamp(x: Tensor) -> Tensor:
    return x.clamp(0, 1).ceil().mul(2).add(-1)


@spelled
def logical_not(x: Tensor) -> Tensor:
    return torch.logical_not(x < 0).to(torch.float32) * 2.0 + -1.0


@spelled
def over_its_magnitude(x: Tensor) -> Tensor:
    return x / x.abs()


@spelled
def sigmoid_against_a_half(x: Tensor) -> Tensor:
    return (torch.sigmoid(x) > 0.5).float() * 2 - 1


@spelled
def sign_of_tanh_of_more(x: Tensor) -> Tensor:
    return torch.sign(torch.tanh(3.0 * F.hardtanh(x)))


@spelled
def halves_apart(x: Tensor) -> Tensor:
    a, b = x.split(x.shape[1] // 2, dim=1)
    return torch.cat([a.sign(), torch.where(b > 0, 1.0, -1.0)], 1)


@spelled
def ste_difference_first(x: Tensor) -> Tensor:
    return (torch.sign(x) - x).detach() + x


@spelled
def ste_value_first(x: Tensor) -> Tensor:
    return x + (x.sign() - x).detach()


@spelled
def ste_minus_the_difference(x: Tensor) -> Tensor:
    return x - (x - x.sign()).detach()


@spelled
def ste_clipped(x: Tensor) -> Tensor:
    clipped = torch.clamp(x, -1.0, 1.0)
    return torch.sign(x).detach() - clipped.detach() + clipped


@spelled
def ste_clipped_cancels_first(x: Tensor) -> Tensor:
    clipped = F.hardtanh(x)
    return clipped - clipped.detach() + x.sign().detach()


@spelled
def ste_by_data(x: Tensor) -> Tensor:
    y = x.clamp(-1, 1)
    y.data = torch.where(x.data >= 0, 1.0, -1.0)
    return y


@spelled
def polynomial(x: Tensor) -> Tensor:
    """A surrogate of three pieces, whose value cancels."""
    below, negative, small = (x < -1).float(), (x < 0).float(), (x < 1).float()
    left = -below + (1 - below) * (x * x + 2 * x)
    middle = left * negative + (1 - negative) * (2 * x - x * x)
    surrogate = middle * small + (1 - small)
    return x.sign().detach() + surrogate - surrogate.detach()


@spelled
def polynomial_by_where(x: Tensor) -> Tensor:
    inner = torch.where(x < 0, x.pow(2) + 2 * x, -(x**2) + 2 * x)
    surrogate = torch.where(x.abs() < 1, inner, x.sign())
    return (binary_like(x) - surrogate).detach() + surrogate


def binary_like(x: Tensor) -> Tensor:
    return (x >= 0).to(x.dtype) * 2 - 1


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float) -> Tensor:
        ctx.save_for_backward(x)
        out = x.new(x.size())
        out[x > 0] = 1
        out[x <= 0] = low
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1), None


@spelled
def autograd_function(x: Tensor) -> Tensor:
    return Surrogate.apply(x, -1.0)


@spelled
def zeros_and_ones(x: Tensor) -> Tensor:
    return (x > 0).float()


@spelled
def zeros_and_ones_by_function(x: Tensor) -> Tensor:
    return Surrogate.apply(x, 0.0)


@spelled
def sign_after_relu(x: Tensor) -> Tensor:
    return torch.sign(F.relu(x))


class TanhSurrogate(nn.Module):
    """A temperature that is asked for in Python, as in annealed training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor([4.0]))

    def forward(self, x: Tensor) -> Tensor:
        soft = torch.tanh(x * self.temperature) if self.temperature > 1 else F.hardtanh(x)
        return (x.sign() - soft).detach() + soft


@habit(HABITS)
def tanh_surrogate() -> nn.Module:
    return Body(lambda _: TanhSurrogate())


class Threshold(nn.Module):
    """Per channel and learned, of a shape that is expanded by hand."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > self.threshold.expand_as(x), 1.0, -1.0)


@habit(HABITS)
def learned_thresholds() -> nn.Module:
    return Body(Threshold)


class Levels(nn.Module):
    """Two levels, a centre and a distance, both learned numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.distance = nn.Parameter(torch.tensor(0.7))
        self.centre = nn.Parameter(torch.tensor(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign((x - self.centre) / self.distance) * self.distance + self.centre


@habit(HABITS)
def two_learned_levels() -> nn.Module:
    return Body(lambda _: Levels())


class PerImage(nn.Module):
    """Centred and divided by the deviation of the whole image before the sign."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean([1, 2, 3], keepdim=True)
        return torch.sign(x / x.std([1, 2, 3], keepdim=True))


@habit(HABITS)
def per_image_mean() -> nn.Module:
    return Body(lambda _: PerImage())


@habit(HABITS)
def per_image_and_channel_mean() -> nn.Module:
    return Body(lambda _: lambda x: torch.where(x > F.adaptive_avg_pool2d(x, 1), 1.0, -1.0))


@habit(HABITS)
def per_pixel_mean() -> nn.Module:
    return Body(lambda _: lambda x: torch.sign(x - x.mean(1, keepdim=True)))
