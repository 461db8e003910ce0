"""From a graph to the model of a file: fold, legalize, fuse, then real or integer constants, then pack.

Needs no torch: `ovsw.bench` makes its networks with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.ops.fused import Lowered
from ovsw.export.passes.calibrate import measured
from ovsw.export.passes.fold import fold
from ovsw.export.passes.fuse import fuse
from ovsw.export.passes.legalize import legalize
from ovsw.export.passes.lower import lower
from ovsw.export.passes.pack import pack
from ovsw.export.passes.quantize import quantize
from ovsw.export.passes.sink import sink


class Built(NamedTuple):
    """A model, warnings, the op that each record of the model was made of, and the graph that these ops compute."""

    model: bnn.Model
    warnings: list[str]
    lowered: list[Lowered]
    graph: ir.Graph

    @property
    def measured(self) -> list[bnn.Op]:
        """The ops whose scale was measured: what they store may saturate."""
        return [record for record, op in zip(self.model.ops, self.lowered) if op.measured]


def build(
    graph: ir.Graph,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    numerics: str = "float",
    weights: str = "int16",
    stem: str | None = None,
    calibration: np.ndarray | None = None,
    stream: str = "auto",
    every_map: bool = False,
) -> Built:
    """The model of a valid graph in these numerics; `weights` and `stem` as in `quantize`.

    `calibration` are normalised images, float32 (n, channels, height, width), for the scales of what is not clamped.
    `every_map` is for integer files: ops of which only bits are read store their maps, too. Raises NotIntegerError.
    """
    legal = legalized(graph, numerics)
    ops = fuse(legal)
    if numerics == "float":
        lowered = lower(ops)
        return Built(pack(lowered, legal.outputs, mean, std, metadata), [], lowered, legal)
    ranges = None if calibration is None else partial(measured, legal, calibration)
    lowered, warnings = quantize(ops, mean, std, weights, stem, ranges, stream)
    return Built(pack(lowered, legal.outputs, mean, std, metadata, numerics, every_map), warnings, lowered, legal)


def legalized(graph: ir.Graph, numerics: str) -> ir.Graph:
    """The graph that the ops of a file with these numerics compute, their constants still real."""
    return legalize(sink(fold(graph)), numerics)
