"""How people spell a sign: each is found as the input of one binary convolution, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.frontend.piecewise import Piecewise

from support.comparing import assert_same, kinds

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WEIGHT = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0)).sign() * torch.linspace(0.1, 2, 6).view(
    -1, 1, 1, 1
)
SHIFT = torch.tensor([0.3, -0.2, 0.0, 1.1]).view(1, 4, 1, 1)


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float) -> Tensor:
        ctx.save_for_backward(x)
        out = x.new(x.size())
        out[x > 0] = 1
        out[x <= 0] = low
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


def of(x: Tensor, condition: Tensor) -> Tensor:
    return condition.to(x.dtype)


def polynomial(x: Tensor) -> Tensor:
    """Bi-Real's, by masks."""
    below, negative, inside = (of(x, x < t) for t in (-1, 0, 1))
    first = -1 * below + (x * x + 2 * x) * (1 - below)
    second = first * negative + (-x * x + 2 * x) * (1 - negative)
    third = second * inside + 1 * (1 - inside)
    return torch.sign(x).detach() - third.detach() + third


def polynomial_by_where(x: Tensor) -> Tensor:
    inner = torch.where(x < 0, x.pow(2) + 2 * x, -(x**2) + 2 * x)
    surrogate = torch.where(x.abs() < 1, inner, x.sign())
    return (2 * of(x, x >= 0) - 1 - surrogate).detach() + surrogate


def filled_by_masks(x: Tensor) -> Tensor:
    y = x.new_empty(x.size())
    y[x >= 0] = 1
    y[x < 0] = -1
    return y


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[x >= 0] = 1
    y[x < 0] = -1
    return y


def assigned_to_itself(x: Tensor) -> Tensor:
    y = x.clone()
    y[y >= 0] = 1.0
    y[y < 0] = -1.0
    return y


def ones_and_mask(x: Tensor) -> Tensor:
    y = torch.ones_like(x)
    y.masked_fill_(x < 0, -1)
    return y


def zeros_and_mask(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[x > 0] = 1
    return y * 2 - 1


def through_data(x: Tensor) -> Tensor:
    y = x.clone()
    y.data = y.data.sign()
    return y


def clamped_data(x: Tensor) -> Tensor:
    y = x.clone()
    y.data = y.data.clamp(-1, 1)
    return torch.sign(y)


def in_place(x: Tensor) -> Tensor:
    return x.clone().add_(0.1).sign_()


def standardised(x: Tensor) -> Tensor:
    """RBNN: by mean and deviation of the image."""
    return torch.sign((x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True))


SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.sign": torch.sign,
    "sgn": torch.sgn,
    "autograd.Function": lambda x: Surrogate.apply(x, -1.0),
    "autograd.Function, {0, 1}": lambda x: Surrogate.apply(x, 0.0),
    "polynomial": polynomial,
    "polynomial by where": polynomial_by_where,
    "where of a map of zeros": lambda x: torch.where(torch.zeros_like(x) <= x, torch.ones_like(x), -torch.ones_like(x)),
    "where": lambda x: torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x)),
    "where of numbers": lambda x: torch.where(x < 0, -1.0, 1.0).to(x.dtype),
    "2 * (x >= 0) - 1": lambda x: 2 * of(x, x >= 0) - 1,
    "(x > 0) * 2 - 1": lambda x: of(x, x > 0) * 2 - 1,
    "1 - 2 * (x < 0)": lambda x: 1 - 2 * of(x, x < 0),
    "ge.mul.sub": lambda x: x.ge(0).to(x.dtype).mul(2).sub(1),
    "int": lambda x: (x > 0).int().to(x.dtype) * 2 - 1,
    "long": lambda x: (2 * (x > 0).long() - 1).to(x.dtype),
    "x[mask] = 1": assigned,
    "y[y >= 0] = 1": assigned_to_itself,
    "masked_fill": lambda x: torch.ones_like(x).masked_fill(x < 0, -1),
    "masked_fill_": ones_and_mask,
    "masked_fill_ twice": lambda x: x.detach().clone().masked_fill_(~(x < 0), 1).masked_fill_(x < 0, -1),
    "new_empty": filled_by_masks,
    "logical_not": lambda x: of(x, torch.logical_not(x < 0)) * 2.0 + -1.0,
    "zeros_like": zeros_and_mask,
    ".data": through_data,
    ".data.clamp": clamped_data,
    "sign_": in_place,
    "(sign - x).detach() + x": lambda x: (torch.sign(x) - x).detach() + x,
    "x + (sign - x).detach()": lambda x: x + (torch.sign(x) - x).detach(),
    "sign.detach() - x.detach() + x": lambda x: torch.sign(x).detach() - x.detach() + x,
    "x - (x - sign).detach()": lambda x: x - (x - torch.sign(x)).detach(),
    "tanh surrogate": lambda x: (torch.sign(x) - torch.tanh(x)).detach() + torch.tanh(x),
    "clamp surrogate": lambda x: torch.clamp(x, -1, 1) + (torch.sign(x) - torch.clamp(x, -1, 1)).detach(),
    "surrogate cancels first": lambda x: F.hardtanh(x) - F.hardtanh(x).detach() + x.sign().detach(),
    "scaled surrogate": lambda x: 0.5 * (torch.sign(x) - x).detach() + 0.5 * x,
    "sign of tanh": lambda x: torch.sign(torch.tanh(3 * x)),
    "sign of hardtanh": lambda x: torch.sign(F.hardtanh(x)),
    "sign of softsign": lambda x: torch.sign(F.softsign(x)),
    "sign of silu": lambda x: torch.sign(F.silu(x)),
    "round": lambda x: torch.round((x.clamp(-1, 1) + 1) / 2) * 2 - 1,
    "DoReFa": lambda x: torch.round(torch.clamp(x, 0, 1)),
    "round of sigmoid": lambda x: torch.round(torch.sigmoid(x)),
    "sigmoid > 0.5": lambda x: of(x, torch.sigmoid(x) > 0.5) * 2 - 1,
    "floor": lambda x: torch.floor(x.clamp(-1, 0.999)) * 2 + 1,
    "ceil": lambda x: 2 * torch.ceil(x.clamp(-0.999, 1)) - 1,
    "heaviside(1)": lambda x: torch.heaviside(x, torch.ones((), dtype=x.dtype)) * 2 - 1,
    "heaviside(0)": lambda x: torch.heaviside(x, torch.zeros((), dtype=x.dtype)),
    "copysign": lambda x: torch.copysign(torch.ones_like(x), x),
    "x / |x|": lambda x: x / x.abs(),
    "sign of a sign": lambda x: torch.sign(torch.sign(x) + 0.1),
    "0 made 1": lambda x: torch.where(torch.sign(x) == 0, torch.ones_like(x), torch.sign(x)),
    "power": lambda x: torch.sign(x) ** 3,
    "after ReLU": lambda x: torch.sign(F.relu(x)),
    "after ReLU and max-pool": lambda x: torch.sign(F.max_pool2d(F.relu(x), 3, 1, 1)),
    "levels": lambda x: 0.7 * torch.sign(x),
    "{0, 1}": lambda x: (torch.sign(x) + 1) / 2,
    "AdaBin": lambda x: 0.7 * (torch.sign((x - 0.2) / 0.7) + 0.3),
    "AdaBin, negative": lambda x: -0.7 * (torch.sign((x - 0.2) / -0.7) + 0.3),
    "RSign": lambda x: torch.sign(x + SHIFT.to(x.dtype)),
    "threshold per channel": lambda x: of(x, x > SHIFT.to(x.dtype)),
    "standardised": standardised,
    "by variance": lambda x: torch.sign(x / (x.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()),
    "falling": lambda x: -torch.sign(x),
    "falling {0, 1}": lambda x: of(x, x <= 0),
    "not": lambda x: of(x, ~(x > 0)),
    "logical_or": lambda x: of(x, torch.logical_or(x > 0, x > 1)),
    "&": lambda x: of(x, (x > 0) & (x > -1)),
    "two masks": lambda x: of(x, x > 0) - of(x, x <= 0),
    "clamped after": lambda x: torch.clamp(torch.sign(x) * 5, -1, 1),
    "min after": lambda x: torch.sign(x).clamp(min=0) * 2 - 1,
    "of two maps": lambda x: of(x, x > x.flip(3)) * 2 - 1,
    "then max-pool": lambda x: F.max_pool2d(torch.sign(x), 3, 1, 1),
    "falling, then max-pool": lambda x: F.max_pool2d(-torch.sign(x), 3, 1, 1),
    "then shuffle": lambda x: torch.sign(x).view(1, 2, 2, 6, 6).transpose(1, 2).reshape(1, 4, 6, 6),
    "then cat": lambda x: torch.cat([torch.sign(x[:, :2]), torch.sign(x[:, 2:] - 0.5)], 1),
    "then flip": lambda x: torch.sign(x).flip(3),
    "then upsampling": lambda x: F.interpolate(torch.sign(x[:, :, ::2, ::2]), scale_factor=2),
    "then slice": lambda x: torch.sign(x.repeat(1, 2, 1, 1))[:, 2:6],
    "then expand": lambda x: torch.sign(x.mean((2, 3), keepdim=True)).expand(1, 4, 6, 6),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spelling(spelling: str) -> None:
    binarised = SPELLINGS[spelling]
    for padding in (0, 1):
        graph = assert_same(lambda x, p=padding: F.conv2d(binarised(x), WEIGHT.to(x.dtype), padding=p))
        assert len(kinds(graph, ir.BinaryConv)) == 1
        assert kinds(graph, ir.Conv) == [] or spelling == "standardised"  # which takes the mean of all channels


@pytest.mark.parametrize("side", [2, 3])
def test_an_expanded_gate_is_one_pixel(side: int) -> None:
    """However small the map is, nothing is gathered: the product itself takes one pixel for all."""

    def gated(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True)).expand(1, 4, side, side)

    graph = assert_same(gated, (4, side, side))
    assert kinds(graph, ir.Gather) == []


def level_of(binarised: Callable[[Tensor], Tensor], value: float) -> bool:
    """Whether the graph reads an exact value as the upper level."""
    graph = assert_same(lambda x: F.conv2d(binarised(x), WEIGHT.to(x.dtype)))
    (conv,) = kinds(graph, ir.BinaryConv)
    shift = conv.inputs[0].offset[0] if isinstance(conv.inputs[0], ir.Affine) else 0.0
    return bool(value + shift > 0 or (value + shift == 0 and not conv.strict))


@pytest.mark.parametrize(
    ("binarised", "value", "upper"),
    [
        (lambda x: of(x, x >= 0), 0.0, True),
        (lambda x: of(x, x > 0), 0.0, False),
        (lambda x: torch.sign(x), 0.0, True),  # 0 in torch, +1 as everywhere here
        (lambda x: torch.sign(F.relu(x)), 0.0, False),
        (lambda x: of(x, x > 0.25), 0.25, False),
        (lambda x: of(x, x >= 0.25), 0.25, True),
        (lambda x: torch.round(x.clamp(0, 1)), 0.5, False),  # to even
    ],
)
def test_what_happens_at_the_threshold(binarised: Callable[[Tensor], Tensor], value: float, upper: bool) -> None:
    assert level_of(binarised, value) == upper


@pytest.mark.parametrize("seed", range(40))
def test_random_functions(seed: int) -> None:
    """Chains of operations on piecewise linear functions, against numpy on single numbers."""
    rng = np.random.default_rng(seed)
    f, g = Piecewise.line(1.0, 0.0), lambda x: x
    for _ in range(rng.integers(1, 7)):
        a, b = rng.normal(size=3).round(1), rng.normal(size=3).round(1)
        lo = np.minimum(a, b) - 0.1
        step = rng.integers(8)
        made: Piecewise | None
        if step == 0:
            made, h = f.scaled(a, b), lambda v, a=a, b=b: a * v + b
        elif step == 1:
            made, h = f.clamped(lo, lo + 1), lambda v, lo=lo: np.clip(v, lo, lo + 1)
        elif step == 2:
            made, h = f.bent(a, b), lambda v, a=a, b=b: np.where(v < 0, a * v, b * v)
        elif step == 3:
            made, h = f.sign(), np.sign
        elif step == 4:
            op = ("gt", "ge", "lt", "le", "eq", "ne")[rng.integers(6)]
            made, h = f.compared(op, a), lambda v, op=op, a=a: getattr(np, NAMES[op])(v, a).astype(float)
        elif step == 5:
            inner = f
            made = Piecewise.choice(inner.compared("gt", a), inner.scaled(b), inner.bent(0.0))
            h = lambda v, a=a, b=b: np.where(v > a, b * v, np.maximum(v, 0))  # noqa: E731
        elif step == 6:
            made, h = f.clamped(-1, 2).rounded("floor"), lambda v: np.floor(np.clip(v, -1, 2))
        else:
            made, h = f + f.bent(-1.0), lambda v: v + np.abs(v)
        assert made is not None
        f, g = made, (lambda x, g=g, h=h: h(g(x)))
    breaks = f.breaks[np.isfinite(f.breaks)]
    for x in [*np.linspace(-4, 4, 57) + 0.0137, *(breaks + 1e-3), *(breaks - 1e-3)]:
        np.testing.assert_allclose(
            np.broadcast_to(f(np.full(3, x)), 3), np.broadcast_to(g(np.full(3, x)), 3), atol=1e-9
        )


NAMES = {"gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal"}
