"""Sink: an `Affine` that the op before it cannot take in moves behind its reader, to where it costs nothing.

Before a sign it becomes a threshold per channel; before a convolution or a linear layer, new weights; in a sum, an
offset of the other term. Pools, concatenations and the like let it through. So a shifted sign (RSign), a batch norm
between a stream and a sign, or a bias after an activation (RPReLU) do not need an op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from ovsw.export import ir
from ovsw.export.ops.affine import affine


def sink(graph: ir.Graph) -> ir.Graph:
    while True:
        sinking = Sinking(graph)
        graph = ir.rewrite(graph, sinking.node)
        if not sinking.moved:
            return graph


class Sinking:
    """One walk over the graph, and what nodes ask about it."""

    def __init__(self, graph: ir.Graph) -> None:
        self.users = graph.users()
        self.moved = False
        self.signs: dict[tuple[ir.Node, bytes, bytes], ir.Sign] = {}

    def node(self, node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        if isinstance(node, ir.Affine):
            return affine(node.name, inputs[0], node.scale, node.offset, ir.is_compared(node, users))
        new = node.sink(inputs, self)
        self.moved |= new is not None
        return new or replace(node, inputs=inputs)

    def affines(self, node: ir.Node, inputs: list[ir.Node]) -> list[ir.Affine | None]:
        """A node's new inputs where they are affines that can move behind the node; None for the others."""
        return [
            new if self.is_floating(old) and isinstance(new, ir.Affine) else None
            for old, new in zip(node.inputs, inputs)
        ]

    def is_taken(self, node: ir.Node) -> TypeGuard[ir.Affine]:
        """Whether the node is an affine that the op before it can absorb."""
        return isinstance(node, ir.Affine) and node.inputs[0].takes_affine and len(self.users[node.inputs[0]]) == 1

    def is_floating(self, node: ir.Node) -> bool:
        """Whether the node is an affine that the op before it cannot absorb."""
        return isinstance(node, ir.Affine) and not self.is_taken(node)

    def sign(self, name: str, x: ir.Node, threshold: np.ndarray, strict: np.ndarray) -> ir.Sign:
        """A sign, which all readers of the same bits share."""
        key = (x, threshold.tobytes(), strict.tobytes())
        if key not in self.signs:
            self.signs[key] = ir.Sign(name, [x], x.shape, threshold, strict)
        return self.signs[key]
