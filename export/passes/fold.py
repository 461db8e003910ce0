"""Fold: batch norms, scales and biases become one multiplier and one offset per channel.

Afterwards all arithmetic per channel is an `Affine` in float64, never two in a row. A binary convolution is `Sign`,
`Dot`, `Affine`; nothing is flattened; concatenations join two maps; and where two maps differ in size, the second one
is a single pixel that applies to all.
"""

from __future__ import annotations

import numpy as np

from ovsw.export import ir


def fold(graph: ir.Graph) -> ir.Graph:
    folding = Folding(graph)
    return ir.rewrite(graph, lambda node, inputs, users: node.fold(inputs, folding))


class Folding:
    """The graph as nodes need it while they are folded."""

    def __init__(self, graph: ir.Graph) -> None:
        self.users = graph.users()
        self.signs: dict[tuple[ir.Node, bool], ir.Sign] = {}

    def sign(self, x: ir.Node, strict: bool) -> ir.Sign:
        """The bits of a node, once for all that read them."""
        if (x, strict) not in self.signs:
            everywhere = np.ones(x.shape[0], bool) if strict else None
            self.signs[x, strict] = ir.Sign(f"{x.name}.sign", [x], x.shape, strict=everywhere)
        return self.signs[x, strict]

    def is_compared(self, node: ir.Node) -> bool:
        return ir.is_compared(node, self.users)
