"""From a graph to the model of a file: fold, legalize, fuse, then real or integer constants, then pack.

Needs no torch: `ovsw.bench` makes its networks with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.passes.fold import fold
from ovsw.export.passes.fuse import Fused, fuse
from ovsw.export.passes.legalize import legalize
from ovsw.export.passes.lower import lower
from ovsw.export.passes.pack import pack
from ovsw.export.passes.quantize import quantize


def build(
    graph: ir.Graph,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    numerics: str = "float",
    weights: str = "int16",
    stem: str | None = None,
) -> tuple[bnn.Model, list[str]]:
    """The model of a valid graph in these numerics, and warnings; `weights` and `stem` as in `quantize`.

    Raises NotIntegerError.
    """
    ops = fused(graph, numerics)
    lowered, warnings = (lower(ops), []) if numerics == "float" else quantize(ops, mean, std, weights, stem)
    return pack(lowered, mean, std, metadata, numerics), warnings


def fused(graph: ir.Graph, numerics: str) -> list[Fused]:
    """The ops of a file with these numerics, their constants still real."""
    return fuse(legalize(fold(graph), numerics))
