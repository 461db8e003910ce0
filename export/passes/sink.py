"""Sink: an `Affine` that the op before cannot take in moves behind what reads it, to where it costs nothing.

Before a sign it becomes a threshold per channel, before a convolution or a linear layer new weights, in a sum an offset
of the other term; pools, concatenations and the like let it through. So a shifted sign (RSign), a batch norm between a
stream and a sign, or a bias after an activation (RPReLU) are no ops of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ovsw.export import ir

TAKES = (ir.Dot, ir.Conv, ir.Linear, ir.AvgPool, ir.Mul)  # whose ops have a multiplier and an offset in any numerics
ALWAYS = float(np.finfo(np.float32).min)  # a threshold that every number reaches


def sink(graph: ir.Graph) -> ir.Graph:
    while True:
        sinker = _Sinker()
        graph = ir.rewrite(graph, sinker.node)
        if not sinker.moved:
            return graph


def is_floating(node: ir.Node, users: ir.Users) -> bool:
    """Whether it is an affine that no op before it takes in."""
    return isinstance(node, ir.Affine) and not _is_taken(node, users)


def _is_taken(affine: ir.Node, users: ir.Users) -> bool:
    return isinstance(affine.inputs[0], TAKES) and len(users[affine.inputs[0]]) == 1


class _Sinker:
    def __init__(self) -> None:
        self.moved = False
        self.signs: dict[tuple[ir.Node, bytes, bytes], ir.Sign] = {}  # one for all that want the same bits

    def node(self, node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        new: ir.Node | None = None
        if isinstance(node, ir.Affine):
            return ir.affine(node.name, inputs[0], node.scale, node.offset, ir.is_compared(node, users))
        if isinstance(node, ir.Dot) and is_floating(node.inputs[0].inputs[0], users):
            new = self.threshold(node, inputs[0])
        elif isinstance(node, ir.Add):
            new = _sum(node, inputs, users)
        elif rule := _RULES.get(type(node)):
            floats = [is_floating(x, users) and isinstance(y, ir.Affine) for x, y in zip(node.inputs, inputs)]
            new = rule(node, inputs, floats) if any(floats) else None
        self.moved |= new is not None
        return new or replace(node, inputs=inputs)

    def threshold(self, dot: ir.Dot, sign: ir.Node) -> ir.Node | None:
        """The sign of an affine as that of what it reads: bits of channels with a negative scale come inverted, and so
        do the weights that read them.
        """
        affine = sign.inputs[0]
        assert isinstance(sign, ir.Sign)
        if not isinstance(affine, ir.Affine):
            return None
        wanted, strict = sign.levels()
        constant, below = affine.scale == 0, (affine.offset < wanted) | (strict & (affine.offset == wanted))
        inverted = np.where(constant, below, affine.scale < 0)
        if inverted.any() and (dot.pad_value != 0 or dot.window_scale is not None):
            return None
        at = (wanted - affine.offset) / np.where(constant, 1.0, affine.scale)
        threshold, strict = np.where(constant, ALWAYS, at), ~constant & (strict ^ inverted)
        x = affine.inputs[0]
        key = (x, threshold.tobytes(), strict.tobytes())
        if key not in self.signs:
            self.signs[key] = ir.Sign(sign.name, [x], x.shape, threshold, strict)
        size = dot.positive.shape[1]
        group = np.arange(len(dot.positive)) // (len(dot.positive) // dot.groups)
        channels = group[:, None] * size + np.arange(size)  # which each weight of an output channel reads
        return replace(dot, inputs=[self.signs[key]], positive=dot.positive ^ inverted[channels][:, :, None, None])


def _sum(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node | None:
    """Offsets go into the other term where that has an offset of its own, else behind the sum."""
    terms, offset, ones = list(inputs), np.zeros(node.shape[0]), np.ones(node.shape[0])
    for i, (old, new) in enumerate(zip(node.inputs, inputs)):
        if is_floating(old, users) and isinstance(new, ir.Affine) and (new.scale == 1).all():
            terms[i], offset = new.inputs[0], offset + new.offset
    if terms == inputs:
        return None
    for i, old in enumerate(node.inputs):
        if isinstance(old, ir.Affine) and _is_taken(old, users) and len(users[old]) == 1:
            terms[i] = ir.affine(terms[i].name, terms[i], ones, offset)
            return replace(node, inputs=terms)
    return ir.Affine(node.name, [replace(node, inputs=terms)], node.shape, ones, offset)


def _through(node: ir.Node, inputs: list[ir.Node], scale: np.ndarray, offset: np.ndarray) -> ir.Node:
    return ir.Affine(node.name, [replace(node, inputs=inputs)], node.shape, scale, offset)


def _pool(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    x = inputs[0]
    assert isinstance(x, ir.Affine)
    if isinstance(node, ir.MaxPool) and (x.scale < 0).any():
        return None
    if isinstance(node, ir.AvgPool) and any(node.pad) and not node.exclude_pad and x.offset.any():
        return None
    return _through(node, x.inputs, x.scale, x.offset)


def _weights(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    """w * (a * x + b) = (w * a) * x + w * b, but for taps outside, where there is no b."""
    x = inputs[0]
    assert isinstance(x, ir.Affine)
    assert isinstance(node, (ir.Conv, ir.Linear))
    if isinstance(node, ir.Conv) and any(node.pad) and x.offset.any():
        return None
    weight = node.weight.astype(np.float64)
    if isinstance(node, ir.Linear):
        pixels = weight.shape[1] // len(x.scale)
        scale, offset = np.tile(x.scale, pixels), np.tile(x.offset, pixels)
        added = weight @ offset
    else:
        size = weight.shape[1]
        channels = np.arange(len(weight))[:, None] // (len(weight) // node.groups) * size + np.arange(size)
        scale, offset = (values[channels][:, :, None, None] for values in (x.scale, x.offset))
        added = (weight * offset).sum(axis=(1, 2, 3))
    new = node.weight if (x.scale == 1).all() else weight * scale
    core = replace(node, inputs=x.inputs, weight=new)
    return ir.Affine(node.name, [core], node.shape, np.ones(len(weight)), added)


def _pad(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    x = inputs[0]
    assert isinstance(x, ir.Affine)
    assert isinstance(node, ir.ChannelPad)
    ends = (node.before, node.after)
    return _through(node, x.inputs, np.pad(x.scale, ends, constant_values=1.0), np.pad(x.offset, ends))


def _concat(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    sources, scales, offsets = [], [], []
    for x, floating in zip(inputs, floats):
        moves = floating and isinstance(x, ir.Affine)
        sources.append(x.inputs[0] if moves else x)
        scales.append(x.scale if moves else np.ones(x.shape[0]))  # type: ignore[attr-defined]
        offsets.append(x.offset if moves else np.zeros(x.shape[0]))  # type: ignore[attr-defined]
    return _through(node, sources, np.concatenate(scales), np.concatenate(offsets))


def _gather(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    x = inputs[0]
    assert isinstance(x, ir.Affine)
    assert isinstance(node, ir.Gather)
    if (node.rows < 0).any() or (node.columns < 0).any():
        return None
    absent = node.channels < 0
    scale, offset = np.where(absent, 1.0, x.scale[node.channels]), np.where(absent, 0.0, x.offset[node.channels])
    return _through(node, x.inputs, scale, offset)


def _bilinear(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    x = inputs[0]
    assert isinstance(x, ir.Affine)
    return _through(node, x.inputs, x.scale, x.offset)


def _product(node: ir.Node, inputs: list[ir.Node], floats: list[bool]) -> ir.Node | None:
    """Factors per channel go through; an offset does not."""
    factors, scale = list(inputs), np.ones(node.shape[0])
    for i, (x, floating) in enumerate(zip(inputs, floats)):
        if floating and isinstance(x, ir.Affine) and not x.offset.any():
            factors[i], scale = x.inputs[0], scale * x.scale
    return None if factors == inputs else _through(node, factors, scale, np.zeros_like(scale))


_RULES: dict[type[ir.Node], Callable[[ir.Node, list[ir.Node], list[bool]], ir.Node | None]] = {
    ir.MaxPool: _pool,
    ir.AvgPool: _pool,
    ir.Conv: _weights,
    ir.Linear: _weights,
    ir.ChannelPad: _pad,
    ir.Concat: _concat,
    ir.Gather: _gather,
    ir.Bilinear: _bilinear,
    ir.Mul: _product,
}
