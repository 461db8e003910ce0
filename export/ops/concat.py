"""Concat: the channels of several maps, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import behind
from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Fused, Quantizer, Sinking, Tensor, Writer, bnn


class Concat(Node):
    """The channels of all inputs, one after the other; once folded, of two."""

    op = "concat"
    family = "move"
    copies_input = keeps_bound = has_second_input = on_vectors = True

    def compute(self, *inputs: Tensor) -> Tensor:
        import torch

        return torch.cat(inputs, dim=1)

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        """The same channels by concatenations of two maps."""
        joined, (_, h, w) = inputs[0], self.shape
        for i, x in enumerate(inputs[1:], 2):
            name = self.name if i == len(inputs) else f"{self.name}.{i}"
            joined = Concat(name, [joined, x], (joined.shape[0] + x.shape[0], h, w))
        return joined

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        affines = sinking.affines(self, inputs)
        if not any(affines):
            return None
        sources, scales, offsets = [], [], []
        for x, affine in zip(inputs, affines):
            sources.append(x if affine is None else affine.inputs[0])
            scales.append(np.ones(x.shape[0]) if affine is None else affine.scale)
            offsets.append(np.zeros(x.shape[0]) if affine is None else affine.offset)
        return behind(self, sources, np.concatenate(scales), np.concatenate(offsets))

    def moved_centre(self, quantizer: Quantizer, op: Fused) -> tuple[np.ndarray, int]:
        assert op.other is not None
        return np.concatenate([quantizer.source(op).centre, quantizer.maps[op.other].centre]), 0

    def channels_read(self, channels: np.ndarray, count: int, first: bool) -> np.ndarray:
        return channels[:count] if first else channels[-count:]

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        return writer.op("Concat", self.name, *(writer.read(source, flat) for source in self.inputs), axis=1)

    def notes(self) -> list[str]:
        return [" + ".join(str(x.shape[0]) for x in self.inputs)]

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        assert op.residual is not None
        yield f"{model.values[op.input].c} + {model.values[op.residual].c}"
