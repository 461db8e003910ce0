"""A folded graph computed in float64 with torch, node by node: what the files made of it are compared with.

Nothing here is shared with the engine, with `ovsw.numerics` or with the passes that choose a file's constants. Signs
and steps jump, so a rounding error in front of one of them may change everything behind it. `values` therefore lets its
caller decide them: with the decisions of the engine, every later value is comparable again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.export import ir

Decide = Callable[[ir.Node, Tensor, Tensor], Optional[Tensor]]  # node, input, result -> the result to go on with


def jumps(node: ir.Node) -> bool:
    """Whether the node's result changes abruptly with its input."""
    return isinstance(node, ir.Sign) or (isinstance(node, ir.Act) and node.kind == "step")


def values(graph: ir.Graph, images: np.ndarray, decide: Decide | None = None) -> dict[ir.Node, Tensor]:
    """The values (n, channels, height, width) of all nodes for normalised images; a sign has bool, True for +1."""
    found: dict[ir.Node, Tensor] = {}
    for node in graph.nodes:
        if isinstance(node, ir.Input):
            found[node] = torch.from_numpy(np.asarray(images, np.float64))
            continue
        inputs = [found[source] for source in node.inputs]
        result = compute(node, *inputs)
        if decide is not None and jumps(node):
            decided = decide(node, inputs[0], result)
            result = result if decided is None else decided
        found[node] = result
    return found


def compute(node: ir.Node, *inputs: Tensor) -> Tensor:
    """The value of one node of a folded graph."""
    return _KINDS[type(node)](node, *inputs)


def threshold_of(node: ir.Node) -> Tensor:
    """Where a node that jumps does so, per channel."""
    return _column(node.levels()[0]) if isinstance(node, ir.Sign) else torch.zeros(1, 1, 1, 1, dtype=torch.float64)


def _wide(a: Any) -> Tensor:
    return torch.from_numpy(np.array(a, np.float64))


def _column(a: Any) -> Tensor:
    return _wide(a).view(1, -1, 1, 1)


def _sign(node: ir.Sign, x: Tensor) -> Tensor:
    threshold, strict = node.levels()
    at = _column(threshold)
    return torch.where(torch.from_numpy(np.array(strict)).view(1, -1, 1, 1), x > at, x >= at)


def _dot(node: ir.Dot, bits: Tensor) -> Tensor:
    """Sums of whole numbers are exact in float32; a tap outside counts as `pad_value`."""
    exact = node.positive[0].size * max(1, abs(node.pad_value)) < 1 << 24 and node.pad_value == round(node.pad_value)
    kind = torch.float32 if exact else torch.float64
    (ph, pw), s = node.pad, bits.to(kind).mul_(2).sub_(1)
    padded = F.pad(s, (pw, pw, ph, ph), value=node.pad_value) if node.pad_value else s
    pad = (0, 0) if node.pad_value else node.pad

    def sums(weight: Tensor) -> Tensor:
        return F.conv2d(padded, weight, None, node.stride, pad, node.dilation, node.groups).double()

    weight = torch.from_numpy(np.where(node.positive, 1.0, -1.0)).to(kind)
    dots = sums(weight)
    return dots if node.window_scale is None else dots + sums(torch.ones_like(weight)) * _column(node.window_scale)


def _conv(node: ir.Conv, x: Tensor) -> Tensor:
    return F.conv2d(x, _wide(node.weight), None, node.stride, node.pad, node.dilation, node.groups)


def _linear(node: ir.Linear, x: Tensor) -> Tensor:
    """Its weights are in the order of the engine's maps: row, column, channel."""
    return F.linear(x.permute(0, 2, 3, 1).flatten(1), _wide(node.weight))[:, :, None, None]


def _act(node: ir.Act, x: Tensor) -> Tensor:
    if node.kind == "clamp":
        return x.clamp(node.lo, node.hi)
    if node.kind == "prelu":
        above = x if node.positive is None else x * _column(node.positive)
        return torch.where(x < 0, x * _column(node.slope), above)
    if node.kind == "step":
        return torch.where(x > 0 if node.strict else x >= 0, node.hi, node.lo).double()
    return torch.sigmoid(x)


def _gather(node: ir.Gather, x: Tensor) -> Tensor:
    for dim, index in ((1, node.channels), (2, node.rows), (3, node.columns)):
        places = torch.from_numpy(np.array(index, np.int64))
        x = x.index_select(dim, places.clamp(min=0))
        x = x.index_fill(dim, torch.nonzero(places < 0).flatten(), node.value)
    return x


def _bilinear(node: ir.Bilinear, x: Tensor) -> Tensor:
    for dim, index, fraction in ((2, node.rows, node.row_fractions), (3, node.columns, node.column_fractions)):
        first, share = torch.from_numpy(np.array(index, np.int64)), _wide(fraction)
        second = torch.where(share > 0, first + 1, first)
        share = share.view(-1, 1) if dim == 2 else share
        x = x.index_select(dim, first) * (1 - share) + x.index_select(dim, second) * share
    return x


_KINDS: Mapping[type[ir.Node], Any] = {
    ir.Sign: _sign,
    ir.Dot: _dot,
    ir.Conv: _conv,
    ir.Linear: _linear,
    ir.Act: _act,
    ir.Gather: _gather,
    ir.Bilinear: _bilinear,
    ir.Affine: lambda node, x: x * _column(node.scale) + _column(node.offset),
    ir.Add: lambda node, x, y: x + y,
    ir.Mul: lambda node, x, y: x * y,
    ir.Concat: lambda node, x, y: torch.cat([x, y], dim=1),
    ir.ChannelPad: lambda node, x: F.pad(x, (0, 0, 0, 0, node.before, node.after)),
    ir.MaxPool: lambda node, x: F.max_pool2d(x, node.window, node.stride, node.pad, node.dilation, node.ceil),
    ir.AvgPool: lambda node, x: F.avg_pool2d(x, node.window, node.stride, node.pad, node.ceil, not node.exclude_pad),
    ir.Softmax: lambda node, x: x.log_softmax(1) if node.log else x.softmax(1),
    ir.ToFloat: lambda node, x: x,
}
