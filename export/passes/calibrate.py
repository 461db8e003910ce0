"""Calibrate: the largest numbers of a network's maps on images, measured with the engine.

The graph runs in float with one op per node, so that sums before an activation are maps too, and every requested node
is an output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ovsw import format as bnn
from ovsw.engine import NO_LIMIT, Engine
from ovsw.export import ir
from ovsw.export.passes.fuse import fuse
from ovsw.export.passes.lower import lower
from ovsw.export.passes.pack import pack


def measured(graph: ir.Graph, images: np.ndarray, nodes: Sequence[ir.Node]) -> dict[ir.Node, float]:
    """The largest |x| of these nodes on normalised images (n, channels, height, width)."""
    largest = dict.fromkeys(nodes, 0.0)
    for start in range(0, len(nodes), bnn.MAX_OUTPUTS):
        part = list(nodes[start : start + bnn.MAX_OUTPUTS])
        ops = lower(fuse(ir.Graph(ir.reachable(*part), graph.became, part), apart=True))
        channels = images.shape[1]
        model = pack(ops, part, (0.0,) * channels, (1.0,) * channels, {})
        engine = Engine(bnn.to_bytes(model), memory_limit=NO_LIMIT, work_limit=NO_LIMIT)
        ends = np.cumsum([np.prod(node.shape) for node in part])[:-1]
        for image in images:
            outputs = engine.run(image)
            flat = np.concatenate(
                [np.ravel(values) for values in (outputs if isinstance(outputs, tuple) else (outputs,))]
            )
            for node, values in zip(part, np.split(flat, ends)):
                largest[node] = max(largest[node], float(np.abs(values).max()))
    return largest
