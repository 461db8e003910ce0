"""Mul: the product of two maps, such as a map and its gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.add import OfTwoMaps
from ovsw.export.ops.affine import behind
from ovsw.export.ops.constants import LIMIT, Line
from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Fused, Lowered, Quantizer, Sinking, Tensor


class Mul(OfTwoMaps):
    """The product of two maps."""

    op = "mul"
    takes_affine = has_second_input = True
    onnx = "Mul"

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * inputs[1]

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """Factors per channel go through; an offset does not."""
        factors, scale = list(inputs), np.ones(self.shape[0])
        for i, x in enumerate(sinking.affines(self, inputs)):
            if x is not None and not x.offset.any():
                factors[i], scale = x.inputs[0], scale * x.scale
        return None if factors == inputs else behind(self, factors, scale, np.zeros_like(scale))

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        assert op.other is not None
        source, other, steps = quantizer.source(op), quantizer.maps[op.other], quantizer.scales.before(op)
        a, b = op.scale_and_offset()
        a = a * (steps / source.steps / other.steps)
        added = b * steps + a * source.centre * other.centre + (0.5 - quantizer.centre(op))
        line = Line(a, added, source.peak * other.peak)
        largest = (source.limit if source.kind == "i32" else LIMIT) * LIMIT
        return quantizer.scaled(op, line, largest, steps)
