"""Graphs of the exporter evaluated naively, in float64: the judge of front ends and passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.export import ir


def interpret(graph: ir.Graph, images: np.ndarray, noise: float = 0.0, seed: int = 0) -> list[np.ndarray]:
    """The outputs (n, channels, height, width) of a graph of first-group nodes for images (n, c, h, w).

    With `noise` every value of every node is off by about that share of it, or of 1 if it is smaller, but what is 0
    stays so: what then jumps hangs on a rounding error.
    """
    values: dict[ir.Node, Tensor] = {}
    drawn = torch.Generator().manual_seed(seed)
    for node in graph.nodes:
        inputs = [values[source] for source in node.inputs]
        if isinstance(node, ir.Input):
            values[node] = torch.tensor(images, dtype=torch.float64)
        else:
            values[node] = _KINDS[type(node)](node, *inputs)
        if noise:
            off = torch.randn(values[node].shape, generator=drawn, dtype=torch.float64)
            values[node] = values[node] + noise * off * values[node].abs().clamp(min=1) * (values[node] != 0)
        assert values[node].shape[1:] == node.shape, f"{node.name}: {tuple(values[node].shape)}, not {node.shape}"
    return [values[node].numpy() for node in graph.outputs]


def _t(a: np.ndarray) -> Tensor:
    return torch.tensor(np.asarray(a), dtype=torch.float64)


def _c(a: np.ndarray) -> Tensor:
    return _t(a).view(1, -1, 1, 1)


def _sign(x: Tensor, strict: bool) -> Tensor:
    positive = x > 0 if strict else x >= 0
    return positive.double() * 2 - 1


def _binary_conv(node: ir.BinaryConv, x: Tensor) -> Tensor:
    (ph, pw), groups = node.pad, node.groups
    s = F.pad(_sign(x, node.strict), (pw, pw, ph, ph), value=node.pad_value)
    weight = torch.where(_t(node.weight) >= 0, 1.0, -1.0).double()
    options: dict[str, Any] = {"stride": node.stride, "dilation": node.dilation, "groups": groups}
    y = F.conv2d(s, weight, **options) * _c(node.scale)
    if node.window_scale is not None:
        y = y + F.conv2d(s, torch.ones_like(weight), **options) * _c(node.window_scale)
    return y


def _conv(node: ir.Conv, x: Tensor) -> Tensor:
    bias = None if node.bias is None else _t(node.bias)
    return F.conv2d(x, _t(node.weight), bias, node.stride, node.pad, node.dilation, node.groups)


def _linear(node: ir.Linear, x: Tensor) -> Tensor:
    bias = None if node.bias is None else _t(node.bias)
    return F.linear(x.flatten(1), _t(node.weight), bias)[:, :, None, None]


def _norm(node: ir.Norm, x: Tensor) -> Tensor:
    y = (x - _c(node.running_mean)) / (_c(node.running_var) + node.eps).sqrt()
    return y * _c(node.weight) + _c(node.bias)


def _act(node: ir.Act, x: Tensor) -> Tensor:
    if node.kind == "clamp":
        return x.clamp(node.lo, node.hi)
    if node.kind == "prelu":
        assert node.slope is not None
        positive = torch.ones(1, 1, 1, 1).double() if node.positive is None else _c(node.positive)
        return torch.where(x < 0, x * _c(node.slope), x * positive)
    if node.kind == "step":
        return torch.where(x > 0 if node.strict else x >= 0, _t(np.array(node.hi)), _t(np.array(node.lo)))
    assert node.kind == "sigmoid"
    return torch.sigmoid(x)


def _gather(node: ir.Gather, x: Tensor) -> Tensor:
    for dim, index in ((1, node.channels), (2, node.rows), (3, node.columns)):
        i = torch.tensor(np.asarray(index), dtype=torch.int64)
        shape = [1, 1, 1, 1]
        shape[dim] = -1
        x = x.index_select(dim, i.clamp(min=0))
        outside = (i < 0).view(shape)
        x = torch.where(outside, torch.nan, x)
    return torch.where(x.isnan(), node.value, x)


def _bilinear(node: ir.Bilinear, x: Tensor) -> Tensor:
    for dim, index, fraction in ((2, node.rows, node.row_fractions), (3, node.columns, node.column_fractions)):
        shape = [1, 1, 1, 1]
        shape[dim] = -1
        i, f = torch.tensor(np.asarray(index)).long(), _t(fraction).view(shape)
        after = torch.where(f.view(-1) > 0, i + 1, i)
        assert int(after.max()) < x.shape[dim]
        x = x.index_select(dim, i) * (1 - f) + x.index_select(dim, after) * f
    return x


_KINDS: dict[type[ir.Node], Any] = {
    ir.BinaryConv: _binary_conv,
    ir.Conv: _conv,
    ir.Linear: _linear,
    ir.Norm: _norm,
    ir.Affine: lambda node, x: x * _c(node.scale) + _c(node.offset),
    ir.Act: _act,
    ir.Add: lambda node, a, b: a + b,
    ir.Mul: lambda node, a, b: a * b,
    ir.Concat: lambda node, *parts: torch.cat(parts, 1),
    ir.Gather: _gather,
    ir.Bilinear: _bilinear,
    ir.Round: lambda node, x: torch.where(x - x.floor() == 0.5, 2 * ((x + 0.5) / 2).floor(), (x + 0.5).floor()),
    ir.Softmax: lambda node, x: x.log_softmax(1) if node.log else x.softmax(1),
    ir.ChannelPad: lambda node, x: F.pad(x, (0, 0, 0, 0, node.before, node.after)),
    ir.Flatten: lambda node, x: x.reshape(len(x), math.prod(node.shape), 1, 1),
    ir.MaxPool: lambda node, x: F.max_pool2d(x, node.window, node.stride, node.pad, node.dilation, node.ceil),
    ir.AvgPool: lambda node, x: F.avg_pool2d(x, node.window, node.stride, node.pad, node.ceil, not node.exclude_pad),
}
