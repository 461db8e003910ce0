"""Convolutions and products with matrices, binary where both sides are.

A convolution is binary if its input has two levels (`Functions.step`) and its weights two values per output channel
(`binary`). Levels of mid + amp * s are part of its scale, its offset, and of what taps outside the map count as.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ovsw.export import ir
from ovsw.export.frontend.binary import TwoValues, two_values
from ovsw.export.frontend.builder import GraphBuilder, RefusedError, handles
from ovsw.export.frontend.functions import Step, one
from ovsw.export.frontend.values import Arranged, Call, Value, array, frame, is_value

Pair = tuple[int, int]
_MOST_PAD = 1024.0  # what a tap outside may count as, in units of half the distance of the levels


@dataclass(frozen=True)
class Geometry:
    """Of a convolution; `pad` is above, below, left, right, filled with `fill`."""

    window: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    fill: float = 0.0

    @property
    def extent(self) -> Pair:
        (kh, kw), (dh, dw) = self.window, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def symmetric(self) -> bool:
        return self.pad[0] == self.pad[1] and self.pad[2] == self.pad[3]

    @property
    def plain(self) -> bool:
        """Whether a node can have this padding: the same on both sides, and smaller than the window."""
        return self.symmetric and self.pad[0] < self.extent[0] and self.pad[2] < self.extent[1]

    @property
    def of_node(self) -> dict[str, Any]:
        """What a node takes of it."""
        pad = (self.pad[0], self.pad[2])
        return {"window": self.window, "stride": self.stride, "pad": pad, "dilation": self.dilation}

    def taken(self, x: ir.Shape) -> Pair:
        """Height and width of the result."""
        sizes = zip(x[1:], (self.pad[:2], self.pad[2:]), self.extent, self.stride)
        h, w = ((n + sum(p) - e) // s + 1 for n, p, e, s in sizes)
        return h, w


def pair(x: Any, default: int | None = None) -> Pair:
    values = [x] if isinstance(x, int) else list(x)
    if not values and default is not None:
        return default, default
    return int(values[0]), int(values[-1])


# Convolutions.


@handles("convolution", "_convolution")
def _convolution(builder: GraphBuilder, call: Call) -> ir.Node:
    x, weight, bias, stride, padding, dilation, transposed = call.args[:7]
    if is_value(weight) or is_value(bias):
        raise RefusedError("convolutions with weights that depend on the image are not supported")
    if transposed:
        raise RefusedError("transposed convolutions are not supported; use F.interpolate followed by a convolution")
    weight = array(weight)
    if weight.ndim == 3:  # over rows of a map
        weight = weight[:, :, None]
        stride, padding, dilation = ([first, n[0]] for first, n in ((1, stride), (0, padding), (1, dilation)))
    if weight.ndim != 4:
        raise RefusedError(f"convolutions in {weight.ndim - 2} dimensions are not supported; use two dimensions")
    (top, left), window = pair(padding), (weight.shape[2], weight.shape[3])
    geometry = Geometry(window, pair(stride), pair(dilation), (top, top, left, left))
    return _convolved(builder, call, x, weight, None if bias is None else array(bias), geometry)


@handles("pointwise")
def _pointwise(builder: GraphBuilder, call: Call) -> ir.Node:
    x, weight, bias = call.args
    weight, bias = array(weight)[:, :, None, None], None if bias is None else array(bias)
    return _convolved(builder, call, x, weight, bias, Geometry((1, 1)))


def _convolved(
    builder: GraphBuilder, call: Call, x: Value, weight: np.ndarray, bias: np.ndarray | None, geometry: Geometry
) -> ir.Node:
    inner, whole = _unpadded(builder, x, geometry)
    binary = _binary(builder, call, inner, weight, whole) or _binary(builder, call, x, weight, geometry)
    if binary is not None:
        return binary if bias is None else builder.affine(f"{call.where.name}.bias", binary, 1.0, bias)
    if whole.fill == 0 and whole.plain:
        x, geometry = inner, whole
    return _real(builder, call, x, weight, bias, geometry)


def _real(
    builder: GraphBuilder, call: Call, x: Value, weight: np.ndarray, bias: np.ndarray | None, geometry: Geometry
) -> ir.Node:
    node = builder.node(x)
    if not geometry.plain:  # wider than the window
        node = _padded(f"{call.where.name}.pad", node, geometry.pad)
        geometry = replace(geometry, pad=(0, 0, 0, 0))
    shape = (len(weight), *geometry.taken(node.shape))
    return ir.Conv(call.where.name, [node], shape, weight=weight, bias=bias, **geometry.of_node)


def _padded(name: str, x: ir.Node, pad: tuple[int, int, int, int]) -> ir.Node:
    """With zeros above, below, left and right."""
    c, h, w = x.shape
    rows, columns = (
        np.concatenate([np.full(before, -1), np.arange(n), np.full(after, -1)])
        for n, before, after in ((h, *pad[:2]), (w, *pad[2:]))
    )
    return ir.Gather(name, [x], (c, len(rows), len(columns)), np.arange(c), rows, columns)


def _unpadded(builder: GraphBuilder, x: Value, geometry: Geometry) -> tuple[Value, Geometry]:
    """Takes the padding off a map and adds it to that of the convolution, if both pad with the same value."""
    if not isinstance(x, Arranged) or x.index.ndim < 3:
        return x, geometry
    c, h, w = frame(x.shape)
    constants = [s for s in x.sources if s.op == "constant"]
    if not constants or len(constants) == len(x.sources):
        return x, geometry
    which, place = (a.reshape(c, h, w) for a in x.located())
    outside = np.isin(which, [x.sources.index(s) for s in constants])
    rows, columns = (np.flatnonzero(~outside.all(axis=axes)) for axes in ((0, 2), (0, 1)))
    (top, bottom), (left, right) = ((r[0], n - 1 - r[-1]) for r, n in ((rows, h), (columns, w)))
    border = np.ones((h, w), bool)
    border[top : h - bottom, left : w - right] = False
    values = {
        float(v)
        for s in constants
        for v in np.unique(array(s.args[0]).reshape(-1)[place[:, border][which[:, border] == x.sources.index(s)]])
    }
    if not border.any() or len(values) != 1 or outside[:, ~border].any():
        return x, geometry
    fill = values.pop()
    if any(geometry.pad) and fill != geometry.fill:
        return x, geometry
    index = x.index.reshape(c, h, w)[:, top : h - bottom, left : w - right]
    inner = builder.value(index.reshape(1, *index.shape), x)
    pad = tuple(a + int(b) for a, b in zip(geometry.pad, (top, bottom, left, right)))
    return inner, replace(geometry, pad=pad, fill=fill)  # type: ignore[arg-type]


def _binary(builder: GraphBuilder, call: Call, x: Value, weight: np.ndarray, geometry: Geometry) -> ir.Node | None:
    """The convolution as a binary one, if it is."""
    step = builder.functions.step(x)
    if step is None or (geometry.fill and not any(geometry.pad)):
        return None
    values = two_values(weight)
    if values is None:
        return None
    amp, mid = one((step.hi - step.lo) / 2), (step.hi + step.lo) / 2
    padded = any(geometry.pad)
    if amp.size > 1 or (mid.size > 1 and padded):
        return None
    outside = float((geometry.fill - mid[0]) / amp[0]) if padded else 0.0
    if abs(outside) > _MOST_PAD:
        return None
    cropped = _symmetric(builder.node(step.of).shape, geometry)
    if cropped is None:
        return None
    symmetric, first = cropped
    node = _dots(builder, call, step, values, float(amp[0]), symmetric, _snapped(outside))
    per_input = np.broadcast_to(mid, (builder.node(step.of).shape[0],))
    groups = len(per_input) // weight.shape[1]
    blocks = weight.reshape(groups, -1, *weight.shape[1:]).sum(axis=(3, 4))
    constant = np.einsum("goi,gi->go", blocks, per_input.reshape(groups, -1)).reshape(-1)
    node = builder.affine(f"{call.where.name}.level", node, 1.0, constant)
    h, w = geometry.taken(builder.node(step.of).shape)
    if node.shape[1:] == (h, w):
        return node
    rows, columns = (np.arange(n) + f for n, f in zip((h, w), first))
    return ir.Gather(f"{call.where.name}.crop", [node], (len(weight), h, w), np.arange(len(weight)), rows, columns)


def _snapped(x: float) -> float:
    return float(round(x)) if abs(x - round(x)) < 1e-12 else x


def _symmetric(x: ir.Shape, geometry: Geometry) -> tuple[Geometry, Pair] | None:
    """The geometry with equal padding on both sides, and the row and column where the result that is needed begins."""
    pads, first = [], []
    for before, after, stride, extent in zip(geometry.pad[::2], geometry.pad[1::2], geometry.stride, geometry.extent):
        more = 0 if before >= after else -(-(after - before) // stride)
        pad = before + more * stride
        if pad >= extent:
            return None
        pads.append(pad)
        first.append(more)
    return replace(geometry, pad=(pads[0], pads[0], pads[1], pads[1])), (first[0], first[1])


def _dots(
    builder: GraphBuilder, call: Call, step: Step, values: TwoValues, amp: float, geometry: Geometry, outside: float
) -> ir.Node:
    x = builder.node(step.of)
    window = values.centre * amp
    shape = (len(values.signs), *geometry.taken(x.shape))

    def dots(share: float, strict: bool) -> ir.BinaryConv:
        scale, window_scale = values.scale * amp * share, window * share if window.any() else None
        more = {**geometry.of_node, "pad_value": outside, "window_scale": window_scale, "strict": strict}
        return ir.BinaryConv(call.where.name, [x], shape, weight=values.signs, scale=scale, **more)

    between = step.zero.size == 1 and step.zero[0] not in (step.lo[0], step.hi[0])
    if between and _is_often_zero(builder.node(step.of)):  # torch.sign: 0 is halfway between both readings
        return ir.Add(f"{call.where.name}.both", [dots(0.5, False), dots(0.5, True)], shape)
    return dots(1.0, step.strict)


def _is_often_zero(node: ir.Node) -> bool:
    """Whether a value is often exactly 0: a sum of signs, padding, or values at the end of a clamp."""
    inputs = node.inputs
    if isinstance(node, ir.BinaryConv):
        return node.weight[0].size % 2 == 0 or any(node.pad)
    if isinstance(node, ir.Act) and node.kind in ("clamp", "step") and 0.0 in (node.lo, node.hi):
        return True
    if isinstance(node, ir.Gather) and node.value == 0 and min(a.min() for a in (node.rows, node.columns)) < 0:
        return True
    if isinstance(node, ir.Affine) and node.offset.any():
        return False
    if node.averages:
        return all(map(_has_equals, inputs)) or all(map(_is_often_zero, inputs))
    if isinstance(node, (ir.MaxPool, ir.Gather, ir.Affine, ir.Act, ir.ChannelPad, ir.Concat, ir.Mul)):
        return any(map(_is_often_zero, inputs))
    return False


def _has_equals(node: ir.Node) -> bool:
    """Whether many values are equal in size, such as those at the ends of a clamp or the levels of a step."""
    if isinstance(node, ir.Act):
        return node.kind in ("clamp", "step") and bool(np.isfinite([node.lo, node.hi]).any())
    moved = isinstance(node, (ir.MaxPool, ir.Gather, ir.Concat)) or (
        isinstance(node, ir.Affine) and not node.offset.any() and len(set(np.abs(node.scale))) == 1
    )
    return moved and all(map(_has_equals, node.inputs))


# Matrices.


@handles("linear")
def _linear(builder: GraphBuilder, call: Call) -> ir.Node:
    x, weight, bias = call.args
    weight, bias = array(weight), None if bias is None else array(bias)
    binary = _binary_linear(builder, call, x, weight)
    if binary is not None:
        return binary if bias is None else builder.affine(f"{call.where.name}.bias", binary, 1.0, bias)
    if not isinstance(x, Arranged) or all(frame(s.shape)[1:] == (1, 1) for s in x.sources):
        return _matrix(builder, call.where.name, builder.node(x), weight, bias)
    which, place = (a.reshape(-1) for a in x.located())
    terms: list[ir.Node] = []
    offset = np.zeros(len(weight)) if bias is None else bias
    for i, source in enumerate(x.sources):
        here = which == i
        columns = np.zeros((len(weight), source.size))
        np.add.at(columns.T, place[here], weight[:, here].T)
        if source.op == "constant":
            offset = offset + columns @ array(source.args[0]).reshape(-1)
            continue
        terms.append(_matrix(builder, call.where.name, builder.node(source), columns, None))
    first = terms[0]
    assert isinstance(first, ir.Linear)
    if bias is not None or offset.any():
        first.bias = offset
    total: ir.Node = first
    for term in terms[1:]:
        total = ir.Add(f"{call.where.name}.sum", [total, term], term.shape)
    return total


def _matrix(builder: GraphBuilder, name: str, x: ir.Node, weight: np.ndarray, bias: np.ndarray | None) -> ir.Node:
    if x.shape[1:] != (1, 1):
        x = ir.Flatten(f"{name}.flatten", [x], (math.prod(x.shape), 1, 1))
    return ir.Linear(name, [x], (len(weight), 1, 1), weight, bias)


def _binary_linear(builder: GraphBuilder, call: Call, x: Value, weight: np.ndarray) -> ir.Node | None:
    """A binary linear layer over a whole map; its weights are put into the order of the map's elements."""
    step = builder.functions.step(x)
    if step is None:
        return None
    source = step.of
    order = source.order() if isinstance(source, Arranged) else None
    if not step.uniform:
        return None
    if isinstance(source, Arranged) and order is not None:
        source, weight = source.sources[0], weight[:, np.argsort(order)]
    shape = frame(source.shape)
    seen = builder.functions.call("seen", (), source, call)
    builder.functions.steps[seen] = replace(step, of=source)
    geometry = Geometry(shape[1:])
    return _binary(builder, call, seen, weight.reshape(len(weight), *shape), geometry)
