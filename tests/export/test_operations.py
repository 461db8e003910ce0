"""Every operation that the front end knows: the graph of it, evaluated naively, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.frontend.torch_module import trace

from support.comparing import assert_same, kinds, outputs_of, unsupported
from support.interpret import interpret

pytestmark = pytest.mark.usefixtures("one_torch_thread")

_random = torch.Generator().manual_seed(0)


def constant(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_random, dtype=torch.float64)


W84, WG, WD, WL = constant(8, 4, 3, 3), constant(8, 2, 3, 3), constant(4, 1, 3, 3), constant(5, 144)
W1, B5, B8, C4 = constant(5, 4), constant(5), constant(8), constant(1, 4, 1, 1)


def like(x: Tensor, *constants: Tensor) -> Any:
    """Constants in the type of x."""
    found = [c.to(x.dtype) for c in constants]
    return found[0] if len(found) == 1 else found


def conv(x: Tensor, weight: Tensor = W84, **options: Any) -> Tensor:
    return F.conv2d(x, like(x, weight), **options)


def norm_by_hand(x: Tensor) -> Tensor:
    c = like(x, C4)
    return (x - c) / torch.sqrt(c**2 + 1e-3) * -c + 0.1


def written_into(x: Tensor) -> Tensor:
    y = x.relu()
    y[:, :2] = x[:, 2:]
    y[:, 2:4, 1:3] = 0.0
    y[:, :, :, 5:] += 1
    return y


def changed_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    y[:, :2].mul_(2)
    z = y[:, 2:].relu_()
    return y + torch.cat([z, z], 1)


def filled(x: Tensor) -> Tensor:
    y = torch.zeros(1, 8, 6, 6, dtype=x.dtype)
    y[:, 2:6] = x
    y[:, 7:] = 3.0
    return y


def last_channels(x: Tensor) -> Tensor:
    """Layers on the last dimension, as transformers have them."""
    y = F.relu(F.linear(x.permute(0, 2, 3, 1), *like(x, W1, B5)) * like(x, B5))
    return F.linear(y, like(x, W1.t())).permute(0, 3, 1, 2)


def by_parts(x: Tensor) -> Tensor:
    return torch.cat([x[:, :, i::2, j::2] for i in range(2) for j in range(2)], 1)


def features(x: Tensor) -> Tensor:
    flat = torch.cat([x.flatten(1)[:, :100], x.mul(2).flatten(1)[:, 100:]], 1)
    return F.linear(flat, *like(x, WL, B5))


CASES: dict[str, Callable[[Tensor], Any]] = {
    # convolutions
    "conv": lambda x: conv(x, bias=like(x, B8), stride=2, padding=1),
    "conv, dilated": lambda x: conv(x, dilation=2, padding=2),
    "conv, groups": lambda x: conv(x, WG, groups=2, padding=1),
    "conv, depthwise": lambda x: conv(x, WD, groups=4, padding=1, stride=(1, 2)),
    "conv, same": lambda x: conv(x, padding="same"),
    "conv, padding wider than it": lambda x: conv(x, W84[:, :, :1, :1], padding=2),
    "conv, reflect": lambda x: conv(F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "conv, replicate": lambda x: conv(F.pad(x, (1, 2, 1, 0), mode="replicate")),
    "conv, circular": lambda x: conv(F.pad(x, (1, 1, 1, 1), mode="circular")),
    "conv, padded with 0.5": lambda x: conv(F.pad(x, (1, 1, 1, 1), value=0.5)),
    "conv, padded apart": lambda x: conv(F.pad(x, (1, 1, 1, 1))),
    "conv, padded twice": lambda x: conv(F.pad(x, (1, 1, 1, 1)), padding=1),
    "conv, one side": lambda x: conv(F.pad(x, (0, 1, 0, 1)), stride=2),
    # matrices
    "linear": lambda x: F.linear(x.flatten(1), *like(x, WL, B5)),
    "linear, other order": lambda x: F.linear(x.permute(0, 2, 3, 1).flatten(1), *like(x, WL, B5)),
    "linear of a ReLU": lambda x: F.linear(F.relu(x.flatten(1)), like(x, WL)),
    "linear of scaled pixels": lambda x: F.linear(x.flatten(1) * like(x, WL[0]) + 1, like(x, WL)),
    "linear of joined parts": features,
    "linear of means": lambda x: F.linear(x.mean((2, 3)), like(x, W1)),
    "matmul": lambda x: x.flatten(1) @ like(x, WL).t(),
    "matmul, vector": lambda x: like(x, W1) @ x.mean((0, 2, 3)),
    "einsum": lambda x: torch.einsum("bchw,oc->bohw", x, like(x, W1)),
    "einsum, ReLU, einsum": lambda x: torch.einsum(
        "bohw,oc->bchw", F.relu(torch.einsum("bchw,oc->bohw", x, like(x, W1))), like(x, W1)
    ),
    "linear over the last dimension": last_channels,
    # arithmetic
    "add": lambda x: F.relu(x) + x.sigmoid(),
    "add, alpha": lambda x: torch.add(F.relu(x), x.sigmoid(), alpha=-3),
    "sub": lambda x: F.relu(x) - 2 * x.sigmoid(),
    "rsub": lambda x: 1 - x,
    "rsub of maps": lambda x: torch.rsub(x.sigmoid(), x.relu(), alpha=2),
    "mul": lambda x: x * x.sigmoid(),
    "neg": lambda x: -x,
    "square": lambda x: x.square(),
    "cube": lambda x: x**3,
    "fourth power": lambda x: x**4,
    "div": lambda x: x / 3,
    "div per channel": lambda x: x / like(x, C4),
    "norm by hand": norm_by_hand,
    "gate": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "gate, expanded": lambda x: x * torch.sigmoid(x.mean((2, 3)).view(1, 4, 1, 1).expand_as(x)),
    "gate per pixel": lambda x: x * x.abs().mean(1, keepdim=True),
    "channel and pixel": lambda x: x.mean((2, 3), keepdim=True) * x.mean(1, keepdim=True),
    "mean of the image": lambda x: x - x.mean((1, 2, 3), keepdim=True),
    "mean of the image, by view": lambda x: x - x.view(x.size(0), -1).mean(1).view(-1, 1, 1, 1),
    "mean of everything": lambda x: x - x.mean(),
    "maximum": lambda x: torch.maximum(x, x.flip(3)),
    "minimum": lambda x: torch.minimum(x, x.flip(1)),
    "maximum with a number": lambda x: torch.maximum(x, torch.full((), 0.3, dtype=x.dtype)),
    "cancelling": lambda x: (x + x.flip(3)) - x.flip(3) + x.sigmoid(),
    # activations
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "prelu": lambda x: F.prelu(x, like(x, C4).reshape(-1)),
    "prelu by relus": lambda x: like(x, C4) * F.relu(x) - 0.25 * F.relu(-x),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "clamp": lambda x: x.clamp(-0.5, 2),
    "clamp, min": lambda x: x.clamp(min=-0.5),
    "clamp, max": lambda x: x.clamp(max=0.5),
    "clamp per channel": lambda x: torch.clamp(x, -like(x, C4).abs(), like(x, C4).abs()),
    "clamp by min and max": lambda x: torch.max(torch.min(x, like(x, C4).abs()), -like(x, C4).abs()),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "glu": lambda x: F.glu(x, 1),
    "abs": torch.abs,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, -1.0),
    "four levels": lambda x: torch.round(x.clamp(0, 1) * 3) / 3,
    "where": lambda x: torch.where(x > 0.3, x, 0.1 * x),
    "mask": lambda x: (x > 0).to(x.dtype) * x,
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax of a vector": lambda x: F.log_softmax(x.mean((2, 3)), -1),
    # pools and reductions
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool, ceil": lambda x: F.max_pool2d(x, 4, 3, ceil_mode=True),
    "max_pool, dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "avg_pool, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool, taps inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool, ceil": lambda x: F.avg_pool2d(x, 4, 3, ceil_mode=True),
    "avg_pool, ceil, taps inside": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool, divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive to 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive to 3": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive, uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive max, uneven": lambda x: F.adaptive_max_pool2d(x, 4),
    "mean then mean": lambda x: x.mean(3).mean(2),
    "mean of pixels in a row": lambda x: x.flatten(2).mean(2),
    "mean of channels": lambda x: x.mean(1, keepdim=True),
    "sum of pixels": lambda x: x.sum((2, 3)),
    "sum of channels": lambda x: x.sum(1, keepdim=True),
    "amax": lambda x: x.amax((2, 3)),
    "amin": lambda x: x.amin((2, 3)),
    "max then max": lambda x: x.max(3)[0].max(2)[0],
    "max of channels": lambda x: x.max(1, keepdim=True)[0],
    "maxout": lambda x: x.view(1, 2, 2, 6, 6).max(2)[0],
    "mean of groups": lambda x: x.view(1, 2, 2, 6, 6).mean(1),
    # moving
    "cat": lambda x: torch.cat([x.relu(), x, x.relu(), x[:, :1]], 1),
    "cat of rows": lambda x: torch.cat([x, x.relu()], 2),
    "cat with constants": lambda x: torch.cat([x, torch.ones_like(x), x.relu()], 1),
    "stack": lambda x: torch.stack([x, x.relu()], 2).flatten(1, 2),
    "slice": lambda x: x[:, 1:3, 1:5, ::2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "chunk": lambda x: (lambda a, b: a * b)(*x.chunk(2, 1)),
    "split": lambda x: sum(part.relu() for part in x.split(1, 1)),
    "unbind": lambda x: x.unbind(1)[2].unsqueeze(1),
    "index": lambda x: x[:, [3, 0, 0]],
    "index_select": lambda x: x.index_select(2, torch.tensor([5, 0, 3])),
    "flip and roll": lambda x: x.flip(2).flip(1).roll(1, 3),
    "shuffle": lambda x: x.view(1, 2, 2, 6, 6).transpose(1, 2).reshape(1, 4, 6, 6),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "space to depth": by_parts,
    "pad of channels": lambda x: F.pad(x, (0, 0, 0, 0, 2, 3)),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=-1.5),
    "pad of all": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1)),
    "crop": lambda x: F.pad(x, (-1, -1, -2, 0)),
    "repeat": lambda x: x.repeat(1, 2, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "flatten": lambda x: x.flatten(1),
    "squeeze": lambda x: x.mean((2, 3)).unsqueeze(2).unsqueeze(3).squeeze(),
    "ReLU of a permuted map": lambda x: x.permute(0, 2, 3, 1).contiguous().relu().permute(0, 3, 1, 2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last).relu() + x,
    "written into": written_into,
    "changed in place": changed_in_place,
    "filled": filled,
    # resizing
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, size": lambda x: F.interpolate(x, size=(9, 4)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(9, 13), mode="bilinear", align_corners=True),
    "bilinear, size": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear"),
    "bilinear, 1.7": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    # rounding
    "round": lambda x: (4 * x).round().clamp(-3, 5) / 4 + x,
    "round, decimals": lambda x: x.round(decimals=1) + (x + 0.5).round(),
    # results
    "two results": lambda x: (x.relu(), x.mean((2, 3))),
}


@pytest.mark.parametrize("case", CASES)
def test_operation(case: str) -> None:
    assert_same(CASES[case])


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "gelu": (F.gelu, "gelu is not supported; use ReLU"),
    "elu": (F.elu, "use PReLU"),
    "transposed": (lambda x: F.conv_transpose2d(x, like(x, W84.transpose(0, 1))), "use F.interpolate"),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), "layer_norm is not supported; use batch norm"),
    "group norm": (lambda x: F.group_norm(x, 2), "group_norm is not supported; use batch norm"),
    "instance norm": (F.instance_norm, "instance norm"),
    "attention": (lambda x: (x.flatten(2).transpose(1, 2) @ x.flatten(2)).mean((1, 2)), "constant matrices are"),
    "weights of the image": (lambda x: F.conv2d(x, x.expand(2, 4, 6, 6)), "depend on the image"),
    "constants per pixel": (lambda x: x + torch.arange(6.0).to(x.dtype), "differ from pixel to pixel"),
    "division": (lambda x: x / (1 + x.sigmoid()), "division by a map is not supported; divide by a constant"),
    "softmax over rows": (lambda x: F.softmax(x, 2), "use the channel dimension"),
    "argmax": (lambda x: x.mean((2, 3)).argmax(1), "return the logits"),
    "positions": (lambda x: x.max(1)[1].to(x.dtype), "positions"),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), "use bilinear upsampling"),
    "deviation": (lambda x: x.std((2, 3)), "right before a sign is"),
    "3d": (lambda x: F.conv3d(x[:, None], like(x, W84[None, :1, :3])), "in 3 dimensions"),
    "rows as a vector": (lambda x: F.conv1d(x.flatten(2), like(x, W84[:, :, 0])), "moved between channels and pixels"),
}


@pytest.mark.parametrize("compare", [torch.gt, torch.ge, torch.lt, torch.le])
def test_a_jump_of_a_rising_function(compare: Callable[[Tensor, float], Tensor]) -> None:
    """At the jump itself, and beside it."""

    def jumps(x: Tensor) -> Tensor:
        return torch.where(compare(x, 1.5), 2 * x + 3, 0.5 * x)

    graph = trace(jumps, (3, 1, 1))
    images = np.array([1.5, np.nextafter(1.5, 0), np.nextafter(1.5, 2)]).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(interpret(graph, images)[0].ravel(), outputs_of(jumps, images)[0].ravel(), atol=1e-9)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    """With the operation, the line of the user's code, and what works instead."""
    operation, words = REFUSED[case]
    reasons = " ".join(unsupported(trace(operation, (4, 6, 6))))
    assert words in reasons
    assert "test_operations.py:" in reasons or case in ("gelu", "elu", "instance norm", "rows as a vector")


class Layers(nn.Module):
    """Modules, one in another; the same one twice; a norm on a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.PReLU(8))
        self.block = nn.ModuleDict({"a": nn.Conv2d(8, 8, 3, padding=1), "act": nn.Hardtanh()})
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        for m in self.modules():
            if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
                nn.init.normal_(m.weight)
                nn.init.normal_(m.bias)
                assert m.running_mean is not None
                m.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.block["act"](self.block["a"](x) + x)
        x = self.block["act"](self.block["a"](x) + x)
        return self.head(self.norm(F.adaptive_avg_pool2d(x, 1).flatten(1)))


def test_nodes_are_called_as_the_modules() -> None:
    torch.manual_seed(0)
    graph = assert_same(Layers().eval())
    names = [node.name for node in graph.nodes]
    assert names[:4] == ["x", "stem.0", "stem.1", "stem.2"]
    assert names.count("block.a") == names.count("block.act") == 2
    assert [n for n in names if n.startswith("add")] == ["add", "add_1"]
    assert names[-2:] == ["norm", "head"]
    assert {type(n) for n in kinds(graph, ir.Affine)} == set()


def test_a_computed_norm_needs_no_names() -> None:
    graph = assert_same(lambda x: conv(norm_by_hand(x)))
    assert unsupported(graph) == []
    assert len(graph.nodes) <= 7


def test_a_clamp_that_leaves_one_value_in_some_channels() -> None:
    lo, hi = (torch.tensor([-1.0, v, 0.5, -0.25]).view(1, 4, 1, 1) for v in (-2.0, 1.0))
    lo[0, 0], hi[0, 0] = -1.0, 1.0
    assert_same(lambda x: torch.minimum(torch.maximum(x, like(x, lo)), like(x, hi)))
