"""ChannelPad: channels of zeros before and after those of a map, as in the shortcuts of CIFAR networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import behind
from ovsw.export.ops.node import Node

if TYPE_CHECKING:
    from ovsw.export.ops.types import Fused, Quantizer, Sinking, Tensor, Writer, bnn


@dataclass(eq=False, repr=False)
class ChannelPad(Node):
    before: int
    after: int

    op = "channel_pad"
    family = "move"
    copies_input = keeps_bound = True

    def compute(self, *inputs: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.pad(inputs[0], (0, 0, 0, 0, self.before, self.after))

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        (x,) = sinking.affines(self, inputs)
        if x is None:
            return None
        ends = (self.before, self.after)
        return behind(self, x.inputs, np.pad(x.scale, ends, constant_values=1.0), np.pad(x.offset, ends))

    def moved_centre(self, quantizer: Quantizer, op: Fused) -> tuple[np.ndarray, int]:
        return np.pad(quantizer.source(op).centre, (self.before, self.after)), 0

    def channels_read(self, channels: np.ndarray, count: int, first: bool) -> np.ndarray:
        return channels[self.before : self.before + count]

    def record(self, op: bnn.Op) -> None:
        op.channels = (self.before, self.after)

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        pads = writer.whole(f"{self.name}.pads", [0, self.before, 0, 0, 0, self.after, 0, 0])
        return writer.op("Pad", self.name, writer.read(self.inputs[0]), pads)

    def notes(self) -> list[str]:
        return [f"{self.before} before, {self.after} after"]

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        yield f"{op.channels[0]} + {model.values[op.input].c} + {op.channels[1]}"
