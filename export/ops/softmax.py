"""Softmax over the channels of each pixel, always in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ovsw.export.ops.fused import Fused, Lowered
from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Quantizer, Tensor, Writer, bnn


@dataclass(eq=False, repr=False)
class Softmax(Node):
    """`log`: its logarithm."""

    log: bool = False

    op = "softmax"
    in_float = on_vectors = True
    has_epilogue = False

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0].log_softmax(1) if self.log else inputs[0].softmax(1)

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        return Lowered(op)

    def record(self, op: bnn.Op) -> None:
        op.kind = "log_softmax" if self.log else "softmax"

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        kind = "LogSoftmax" if self.log else "Softmax"
        return writer.op(kind, self.name, writer.read(self.inputs[0], flat), axis=1)

    def notes(self) -> list[str]:
        return ["logarithm"] if self.log else []
