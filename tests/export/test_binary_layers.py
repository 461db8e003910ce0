"""Which layers are binary, and that these compute what torch does: levels, weights, padding, groups, matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ExportError, ir
from ovsw.export.frontend.binary import two_values
from ovsw.export.frontend.torch_module import trace
from ovsw.export.validate import validate

from support.comparing import assert_same, kinds

pytestmark = pytest.mark.usefixtures("one_torch_thread")

_random = torch.Generator().manual_seed(0)
sign = torch.sign


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_random, dtype=torch.float64)


def binary(*shape: int) -> Tensor:
    """+-a, with an a per output channel."""
    return normal(*shape).sign() * torch.linspace(0.1, 1.5, shape[0]).double().view(-1, *(1,) * (len(shape) - 1))


W, W1, WG, WD, W5, W2 = (
    binary(*s) for s in ((6, 4, 3, 3), (6, 4, 1, 1), (8, 2, 3, 3), (4, 1, 3, 3), (6, 4, 5, 5), (6, 4, 2, 2))
)
WL, WV, REAL = binary(5, 144), binary(5, 4), normal(6, 4, 3, 3)
TWO = W + normal(6, 1, 1, 1)
ZERO_ONE = (normal(6, 4, 3, 3) > 0).double()
DEAD = W.clone()
DEAD[2] = 0
SLOPES = torch.tensor([1.0, 0.0, -2.0, 0.5]).view(1, 4, 1, 1)
SHIFTS = torch.tensor([0.1, 0.2, 0.3, -0.4]).view(1, 4, 1, 1)
COUNT = torch.arange(1.0, 5.0).view(1, 4, 1, 1)


def conv(s: Tensor, weight: Tensor = W, **options: Any) -> Tensor:
    options = {k: v.to(s.dtype) if isinstance(v, Tensor) else v for k, v in options.items()}
    return F.conv2d(s, weight.to(s.dtype), **options)


def linear(s: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    return F.linear(s, weight.to(s.dtype), *(b.to(s.dtype) for b in bias))


def bits(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def scaled(x: Tensor, factor: Tensor, term: Tensor | float = 0.0) -> Tensor:
    return x * factor.to(x.dtype) + (term.to(x.dtype) if isinstance(term, Tensor) else term)


def xnor(x: Tensor) -> Tensor:
    """XNOR-Net's scale per pixel."""
    box = torch.ones(1, 1, 3, 3, dtype=x.dtype) / 9
    return conv(sign(x), padding=1) * F.conv2d(x.abs().mean(1, keepdim=True), box, padding=1)


# What is computed, and how many binary convolutions that is.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "plain": (lambda x: conv(sign(x)), 1),
    "padded, strided": (lambda x: conv(sign(x), padding=1, stride=2), 1),
    "dilated": (lambda x: conv(sign(x), padding=2, dilation=2), 1),
    "groups": (lambda x: conv(sign(x), WG, padding=1, groups=2), 1),
    "depthwise": (lambda x: conv(sign(x), WD, padding=1, groups=4), 1),
    "bias": (lambda x: conv(sign(x), bias=W[:, 0, 0, 0], padding=1), 1),
    "a filter of zeros": (lambda x: conv(sign(x), DEAD, padding=1), 1),
    # two values that are not +-a, levels that are not +-1
    "two values": (lambda x: conv(sign(x), TWO, padding=1), 1),
    "two values on bits": (lambda x: conv(bits(x), TWO, padding=1), 1),
    "{0, 1} on {0, 1}": (lambda x: conv(bits(x), ZERO_ONE, padding=1), 1),
    "two values, groups": (lambda x: conv(bits(x), WG + 0.3, padding=1, groups=2), 1),
    "AdaBin": (lambda x: conv(0.8 * (sign((x - 0.1) / 0.8) + 0.2), TWO, padding=1, stride=2), 1),
    "levels per channel": (lambda x: conv(scaled(sign(x), COUNT), padding=1), 0),
    "middle per channel": (lambda x: conv(scaled(sign(x), COUNT / COUNT, COUNT)), 1),
    "middle per channel, padded": (lambda x: conv(scaled(sign(x), COUNT / COUNT, COUNT), padding=1), 0),
    # padding
    "-1 before": (lambda x: conv(sign(F.pad(x, (1, 1, 1, 1), value=-1))), 1),
    "0 before": (lambda x: conv(sign(F.pad(x, (1, 1, 1, 1)))), 1),
    "+1 after": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1), value=1)), 1),
    "-1 after": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1), value=-1)), 1),
    "0.5 after": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1), value=0.5)), 1),
    "+1 and then 0": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1), value=1), W5, padding=1), 1),
    "0 and then 0": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1)), W5, padding=1), 1),
    "0 on one side": (lambda x: conv(F.pad(sign(x), (0, 1, 0, 1))), 1),
    "0 on one side, strided": (lambda x: conv(F.pad(sign(x), (0, 1, 0, 1)), stride=2), 1),
    "0, different sides": (lambda x: conv(F.pad(sign(x), (1, 0, 2, 1)), stride=2), 1),
    "+1 on one side": (lambda x: conv(F.pad(sign(x), (0, 1, 0, 1), value=1.0)), 1),
    "even kernel": (lambda x: conv(F.pad(sign(x), (0, 1, 0, 1)), W2), 1),
    "reflect": (lambda x: conv(F.pad(sign(x), (1, 1, 1, 1), mode="reflect")), 1),
    "circular, before": (lambda x: conv(sign(F.pad(x, (1, 1, 1, 1), mode="circular"))), 1),
    "wider than the window": (lambda x: conv(sign(x), W1, padding=1), 0),
    # not binary
    "real weights": (lambda x: conv(sign(x), REAL, padding=1), 0),
    "real input": (lambda x: conv(x, padding=1), 0),
    # matrices
    "linear": (lambda x: linear(sign(x).flatten(1), WL), 1),
    "linear, sign after": (lambda x: linear(sign(x.flatten(1)), WL), 1),
    "linear, other order": (lambda x: linear(sign(x.permute(0, 2, 3, 1).flatten(1)), WL), 1),
    "linear, bias": (lambda x: linear(sign(x.mean((2, 3))), WV, WL[:, 0]), 1),
    "linear, {0, 1}": (lambda x: linear(bits(x.flatten(1)), WL), 1),
    "linear, scaled pixels": (lambda x: linear(sign(x.flatten(1) * WL[0].to(x.dtype) + 0.1), WL), 1),
    "linear over the last dimension": (lambda x: linear(sign(x).permute(0, 2, 3, 1), WV).permute(0, 3, 1, 2), 1),
    # signs of sums of signs, which are often 0 in torch: both readings of it, averaged
    "chain": (lambda x: conv(sign(conv(sign(x), W[:4], padding=1)), padding=1), 3),
    "chain over a max-pool": (lambda x: conv(sign(F.max_pool2d(conv(sign(x), W[:4].sign(), padding=1), 2)), W1), 3),
    # levels as a map
    "added": (lambda x: sign(x) + x, 0),
    "pooled and added": (lambda x: F.max_pool2d(sign(x), 2) + F.avg_pool2d(sign(x), 2), 0),
    "multiplied": (lambda x: sign(x) * x.flip(3), 0),
    "joined": (lambda x: torch.cat([sign(x), x], 1), 0),
    # scales around it
    "XNOR-Net": (xnor, 1),
    "norm by hand": (lambda x: conv(sign(scaled(x - 0.1, -SLOPES + 0.25, SHIFTS)), padding=1), 1),
    "norm with a slope of 0": (lambda x: conv(sign(scaled(x, SLOPES, SHIFTS)), padding=1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_layer(case: str) -> None:
    network, count = CASES[case]
    graph = assert_same(network)
    assert len(kinds(graph, ir.BinaryConv)) == count


def test_padding_costs_nothing() -> None:
    for value, fill in ((0.0, 0.0), (1.0, 1.0), (-1.0, -1.0)):
        graph = assert_same(lambda x, v=value: conv(F.pad(sign(x), (1, 1, 1, 1), value=v)))
        assert [type(node) for node in graph.nodes] == [ir.Input, ir.BinaryConv]
        assert (graph.nodes[1].pad, graph.nodes[1].pad_value) == ((1, 1), fill)  # type: ignore[attr-defined]


# Two values.


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([1, -1, 1], (1, 0)),
        ([0.5, 0.5, 0.5], (0.5, 0)),
        ([-0.3, 0.7, 0.7], (0.5, 0.2)),
        ([0, 2, 2], (1, 1)),
        ([0, 0, 0], (0, 0)),
        ([1, 1 + 1e-6, -1], (1, 0)),
        ([1, 1 + 1e-4, -1], None),
        ([1, -1 + 2e-4, 1], (1 - 1e-4, 1e-4)),  # as near to +-a as AdaBin's come
        ([1, 0.2, -1], None),
        ([1, 0, -1], (1, 0)),
    ],
)
def test_two_values(row: list[float], found: tuple[float, float] | None) -> None:
    values = two_values(np.array([row], np.float64))
    assert (values is None) == (found is None)
    if values is not None and found is not None:
        assert (values.scale[0], values.centre[0]) == pytest.approx(found, abs=1e-6)
        rebuilt = values.signs[0] * values.scale[0] + values.centre[0]
        assert rebuilt == pytest.approx(np.array(row), abs=2e-6)


class Zeros(nn.Module):
    def __init__(self, zeros: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.float().clone())
        with torch.no_grad():
            self.weight.view(-1)[:: 216 // zeros][:zeros] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(torch.sign(x), torch.sign(self.weight))


@pytest.mark.parametrize(
    ("zeros", "words"), [(1, "a random initialisation"), (9, "images= or verify="), (60, "28% of zeros look like")]
)
def test_weights_that_are_exactly_zero(zeros: int, words: str) -> None:
    graph = trace(Zeros(zeros).eval(), (4, 6, 6))
    with pytest.raises(ExportError, match='zero_weights="plus"') as caught:
        validate(graph)
    assert f"{zeros} of 216 binary weights are exactly 0" in str(caught.value)
    assert words in str(caught.value)
    assert validate(graph, "plus") == []


def test_what_is_found_instead_of_a_binary_layer() -> None:
    def network(x: Tensor) -> Tensor:
        y = conv(conv(x, REAL, padding=1), REAL[:, :, :1, :1].transpose(0, 1))
        return linear(conv(sign(y), REAL).flatten(1), torch.ones(3, 96))

    with pytest.raises(ExportError, match="the network is not binary") as caught:
        validate(trace(network, (4, 6, 6)))
    for found in (
        "2 convolutions with real weights and a real input",
        "1 convolutions with a binary input but real weights",
        "1 linear layers with binary weights but a real input",
    ):
        assert found in str(caught.value)
