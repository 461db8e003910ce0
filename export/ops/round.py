"""Round: the nearest whole numbers, as quantised activations of several bits need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Fused, Lowered, Quantizer, Tensor, Writer


class Round(Node):
    """Halves go to the even number. Steps other than 1 are scales before and after it, bounds a clamp."""

    op = "round"
    on_vectors = True

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0].round()

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        quantizer.refuse(self.name, "rounding to whole numbers is supported in float files only")

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        return writer.op("Round", self.name, writer.read(self.inputs[0], flat))
