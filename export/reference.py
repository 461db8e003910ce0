"""The reference for exported files: a folded graph computed in float64 with torch, node by node.

The formulas are the nodes' own `compute`, in torch. They share nothing with the engine, with `ovsw.numerics` or with
the choice of a file's constants. Signs and steps jump, so a rounding error before one of them may change everything
after it. `values` therefore lets its caller decide them: with the engine's decisions, all later values are comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import numpy as np
import torch
from torch import Tensor

from ovsw.export import ir
from ovsw.export.ops.node import column

Decide = Callable[[ir.Node, Tensor, Tensor], Optional[Tensor]]  # node, input, result -> the result to go on with


def jumps(node: ir.Node) -> bool:
    """Whether the node's result changes abruptly with its input."""
    return isinstance(node, ir.Sign) or (isinstance(node, ir.Act) and node.kind == "step")


def values(graph: ir.Graph, images: np.ndarray, decide: Decide | None = None) -> dict[ir.Node, Tensor]:
    """The values (n, channels, height, width) of all nodes for normalised images; a sign has bool, True for +1."""
    computed: dict[ir.Node, Tensor] = {}
    for node in graph.nodes:
        if isinstance(node, ir.Input):
            computed[node] = torch.from_numpy(np.asarray(images, np.float64))
            continue
        inputs = [computed[source] for source in node.inputs]
        result = node.compute(*inputs)
        if decide is not None and jumps(node):
            decided = decide(node, inputs[0], result)
            result = result if decided is None else decided
        computed[node] = result
    return computed


def threshold_of(node: ir.Node) -> Tensor:
    """Where a node that jumps does so, per channel."""
    return column(node.levels()[0]) if isinstance(node, ir.Sign) else torch.zeros(1, 1, 1, 1, dtype=torch.float64)
