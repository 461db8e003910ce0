"""ToFloat: the numbers that the integers of a map stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.fused import Fused, Lowered
from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Quantizer, Tensor


class ToFloat(Node):
    """Integer files only: the numbers that a map stands for, as f32."""

    op = "to_float"
    in_float = True
    has_epilogue = False

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0]

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        source = quantizer.source(op)
        scale = np.full(op.value.shape[0], 1 / source.steps)
        return Lowered(op, "f32", {"scale": ("f64", scale), "offset": ("f64", source.centre)})
