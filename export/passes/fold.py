"""Fold: batch norms, scales and biases become one multiplier and one offset per channel.

Afterwards all arithmetic per channel is an `Affine` in float64, never two in a row, a binary convolution is `Sign`,
`Dot`, `Affine`, nothing is flattened, concatenations join two maps, and of two maps of different size the second one is
the pixel that counts for all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovsw.export import ir


def fold(graph: ir.Graph) -> ir.Graph:
    return ir.rewrite(graph, _Fold().node)


class _Fold:
    def __init__(self) -> None:
        self.signs: dict[tuple[ir.Node, bool], ir.Sign] = {}  # of each node once, whoever reads it

    def node(self, node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        if isinstance(node, ir.BinaryConv):
            return self.binary(node, inputs[0])
        if isinstance(node, ir.Norm):
            scale = node.weight / np.sqrt(node.running_var + node.eps)
            return ir.affine(node.name, inputs[0], scale, node.bias - scale * node.running_mean)
        if isinstance(node, ir.Affine):
            apart = ir.is_compared(node, users)
            new = _shifted_sum(node, inputs[0], users)
            return new or ir.affine(node.name, inputs[0], node.scale, node.offset, apart)
        if isinstance(node, ir.Linear):
            return _biased(_unflattened(replace(node, inputs=inputs, bias=None)), node.bias)
        if isinstance(node, ir.Conv):
            return _biased(replace(node, inputs=inputs, bias=None), node.bias)
        if isinstance(node, ir.Concat):
            return _joined(node, inputs)
        if isinstance(node, (ir.Add, ir.Mul)) and inputs[0].shape != node.shape:
            return replace(node, inputs=inputs[::-1])
        if isinstance(node, ir.Act) and node.strict:  # x > 0 is what -x >= 0 is not
            ones = np.ones(node.shape[0])
            negated = ir.affine(f"{node.name}.negated", inputs[0], -ones, 0 * ones)
            return replace(node, inputs=[negated], lo=node.hi, hi=node.lo, strict=False)
        return replace(node, inputs=inputs)

    def binary(self, node: ir.BinaryConv, x: ir.Node) -> ir.Node:
        scale, ratio = node.scale, None
        if node.window_scale is not None:
            scale = np.where(scale == 0, np.where(node.window_scale == 0, 0.0, 1e-30), scale)
            ratio = np.divide(node.window_scale, scale, out=np.zeros_like(scale), where=scale != 0)
        dot = ir.Dot(
            node.name,
            [self.sign(x, node.strict)],
            node.shape,
            node.window,
            node.stride,
            node.pad,
            node.weight >= 0,
            node.dilation,
            node.pad_value,
            ratio,
        )
        return ir.Affine(node.name, [dot], node.shape, scale, np.zeros_like(scale))

    def sign(self, x: ir.Node, strict: bool) -> ir.Sign:
        if (x, strict) not in self.signs:
            everywhere = np.ones(x.shape[0], bool) if strict else None
            self.signs[x, strict] = ir.Sign(f"{x.name}.sign", [x], x.shape, strict=everywhere)
        return self.signs[x, strict]


def _shifted_sum(node: ir.Affine, x: ir.Node, users: ir.Users) -> ir.Node | None:
    """(scale * x + offset + residual) + shift, with the shift moved into the offset: one op instead of two."""
    add = node.inputs[0]
    if not isinstance(x, ir.Add) or len(users[add]) != 1 or (node.scale != 1).any():
        return None
    before = add.inputs if add.inputs[0].shape == add.shape else add.inputs[::-1]
    for i, term in enumerate(x.inputs):
        if isinstance(term, ir.Affine) and _is_private(before[i], users):
            terms = list(x.inputs)
            terms[i] = ir.affine(term.name, term, node.scale, node.offset)
            return replace(x, name=node.name, inputs=terms)
    return None


def _is_private(node: ir.Node, users: ir.Users) -> bool:
    """Whether a node's value, and what it is computed from by scaling, has one reader only."""
    while len(users[node]) == 1 and isinstance(node, ir.Norm):
        node = node.inputs[0]
    return len(users[node]) == 1


def _biased(x: ir.Node, bias: np.ndarray | None) -> ir.Node:
    return x if bias is None else ir.affine(x.name, x, np.ones_like(bias), bias)


def _joined(concat: ir.Concat, inputs: list[ir.Node]) -> ir.Node:
    """The same channels by concatenations of two maps."""
    joined, (_, h, w) = inputs[0], concat.shape
    for i, x in enumerate(inputs[1:], 2):
        name = concat.name if i == len(inputs) else f"{concat.name}.{i}"
        joined = ir.Concat(name, [joined, x], (joined.shape[0] + x.shape[0], h, w))
    return joined


def _unflattened(linear: ir.Linear) -> ir.Linear:
    """Reads the map itself, with its columns in the order of the engine's maps: row, column, channel."""
    source = linear.inputs[0]
    if not isinstance(source, ir.Flatten):
        return linear
    c, h, w = source.inputs[0].shape
    weight = linear.weight.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(linear.weight), -1)
    return replace(linear, inputs=source.inputs, weight=np.ascontiguousarray(weight))
