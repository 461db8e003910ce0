"""Add: the sum of two maps. Binary convolutions and others take it into their op as a residual."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Sinking, Tensor, Writer


class OfTwoMaps(Node):
    """Either map may be (channels, 1, 1) and then counts for every pixel; once folded that is the second one."""

    on_vectors = True
    onnx = ""

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        return replace(self, inputs=inputs if inputs[0].shape == self.shape else inputs[::-1])

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        return writer.op(self.onnx, self.name, *(writer.read(source, flat) for source in self.inputs))

    def notes(self) -> list[str]:
        return [f"{x.name} per channel" for x in self.inputs if x.shape != self.shape]


class Add(OfTwoMaps):
    """The sum of two maps."""

    averages = True
    onnx = "Add"

    def compute(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """Offsets go into the other term if its op adds an offset anyway, else behind the sum."""
        from ovsw.export.ops.affine import Affine, affine

        terms, offset, ones = list(inputs), np.zeros(self.shape[0]), np.ones(self.shape[0])
        for i, x in enumerate(sinking.affines(self, inputs)):
            if x is not None and (x.scale == 1).all():
                terms[i], offset = x.inputs[0], offset + x.offset
        if terms == inputs:
            return None
        for i, old in enumerate(self.inputs):
            if sinking.is_taken(old) and len(sinking.users[old]) == 1:
                terms[i] = affine(terms[i].name, terms[i], ones, offset)
                return replace(self, inputs=terms)
        return Affine(self.name, [replace(self, inputs=terms)], self.shape, ones, offset)
