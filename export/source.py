"""`Source`: the result of a front end. Nothing after it depends on checkpoints or torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.export import ir
from ovsw.networks import InputSpec


def plain_input(channels: int, height: int, width: int) -> InputSpec:
    """An image of this shape, whose pixels are only scaled to 0..1."""
    return InputSpec(channels, height, width, (0.0,) * channels, (1.0,) * channels, max(height, width))


@dataclass
class Source:
    """A network to be exported.

    Attributes:
        name: the network's name, for the file's metadata and the report.
        graph: its computation, in nodes that front ends may make (see `ir`).
        reference: its logits (n, classes) for normalised images (n, channels, height, width), computed in the
            precision of these: proofs give float64, a measured accuracy float32. Maps are (n, channels, height, width),
            several outputs a tuple.
        input: the image that it takes, and how images are prepared.
        parameters: their number, for a comparison of sizes.
        learned_scale: whether the binary layers' scales were trained.
        path: the file that it was read from, if any.
        origin: the name of the file that it comes from, if that is not `path` itself.
        deployed: the widths of `weights` and `stem` in whose arithmetic it was trained, if any.
        asks_normalisation: whether the user has to say how images are normalised, because the source does not.
        warnings: of the front end.
    """

    name: str
    graph: ir.Graph
    reference: Callable[[np.ndarray], Any]
    input: InputSpec
    parameters: int
    learned_scale: bool = False
    path: Path | None = None
    origin: str | None = None
    deployed: dict[str, str] = field(default_factory=dict)
    asks_normalisation: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def num_classes(self) -> int:
        return self.graph.output.shape[0]

    @property
    def file_name(self) -> str | None:
        """Of the file that the network comes from; for an ONNX file of ours, of the one that it was made of."""
        return self.origin or (None if self.path is None else self.path.name)
