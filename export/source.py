"""`Source`: what an export starts from. Everything after it knows neither checkpoints nor torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.export import ir
from ovsw.networks import InputSpec


@dataclass
class Source:
    """A network to be exported.

    Attributes:
        name: the network's, for the file's metadata and the report.
        graph: what it computes, with nodes of the first group of `ir`.
        reference: its logits (n, classes) for normalised images (n, channels, height, width), computed in the
            precision of these: proofs give float64, a measured accuracy float32. Maps are (n, channels, height, width),
            several outputs a tuple.
        input: the image it takes, and how that is prepared.
        parameters: how many it has, for a comparison of sizes.
        learned_scale: whether the binary layers' scales were trained.
        path: the file that it was read from, if any.
        origin: the name of the file that it comes from, if that is not `path` itself.
        deployed: the widths of `weights` and `stem` in whose arithmetic it was trained, if any.
        asks_normalisation: whether nothing tells how images are normalised, so that the user has to.
        warnings: what the front end has to say.
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
