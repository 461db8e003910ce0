"""Fold: batch norms, scales and biases become one multiplier and one offset per channel.

Afterwards all arithmetic per channel is an `Affine` in float64, never two in a row, a binary convolution is `Sign`,
`Dot`, `Affine`, and nothing is flattened.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovsw.export import ir


def fold(graph: ir.Graph) -> ir.Graph:
    return ir.rewrite(graph, _Fold().node)


class _Fold:
    def __init__(self) -> None:
        self.signs: dict[ir.Node, ir.Sign] = {}  # of each node once, whoever reads it

    def node(self, node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        if isinstance(node, ir.BinaryConv):
            geometry = (node.window, node.stride, node.pad)
            dot = ir.Dot(node.name, [self.sign(inputs[0])], node.shape, *geometry, positive=node.weight >= 0)
            return ir.Affine(node.name, [dot], node.shape, node.scale, np.zeros_like(node.scale))
        if isinstance(node, ir.Norm):
            scale = node.weight / np.sqrt(node.running_var + node.eps)
            return ir.affine(node.name, inputs[0], scale, node.bias - scale * node.running_mean)
        if isinstance(node, ir.Affine):
            return _shifted_sum(node, inputs[0], users) or ir.affine(node.name, inputs[0], node.scale, node.offset)
        if isinstance(node, ir.Linear):
            return _biased(_unflattened(replace(node, inputs=inputs, bias=None)), node.bias)
        if isinstance(node, ir.Conv):
            return _biased(replace(node, inputs=inputs, bias=None), node.bias)
        return replace(node, inputs=inputs)

    def sign(self, x: ir.Node) -> ir.Sign:
        if x not in self.signs:
            self.signs[x] = ir.Sign(f"{x.name}.sign", [x], x.shape)
        return self.signs[x]


def _shifted_sum(node: ir.Affine, x: ir.Node, users: ir.Users) -> ir.Node | None:
    """(scale * x + offset + residual) + shift, with the shift moved into the offset: one op instead of two."""
    add = node.inputs[0]
    if not isinstance(x, ir.Add) or len(users[add]) != 1 or (node.scale != 1).any():
        return None
    for i, term in enumerate(x.inputs):
        if isinstance(term, ir.Affine) and _is_private(add.inputs[i], users):
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


def _unflattened(linear: ir.Linear) -> ir.Linear:
    """Reads the map itself, with its columns in the order of the engine's maps: row, column, channel."""
    source = linear.inputs[0]
    if not isinstance(source, ir.Flatten):
        return linear
    c, h, w = source.inputs[0].shape
    weight = linear.weight.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(linear.weight), -1)
    return replace(linear, inputs=source.inputs, weight=np.ascontiguousarray(weight))
