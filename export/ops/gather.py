"""Gather: picks channels, rows and columns of a map, in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import behind
from ovsw.export.ops.node import Node
from ovsw.util import text

if TYPE_CHECKING:
    from ovsw.export.ops.types import Fused, Quantizer, Sinking, Tensor, Tensors, Writer, bnn


@dataclass(eq=False, repr=False)
class Gather(Node):
    """out[c, y, x] = in[channels[c], rows[y], columns[x]], or `value` where one of the three is -1.

    Slices, flips, strides, channel shuffles, padding of any kind, nearest upsampling, expansion of single pixels.
    """

    channels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    value: float = 0.0

    op = "gather"
    family = "move"
    copies_input = keeps_bound = has_weight = True

    @property
    def fills(self) -> bool:
        """Whether some pixels, or whole channels, are `value`."""
        return any((index < 0).any() for index in (self.channels, self.rows, self.columns))

    def compute(self, *inputs: Tensor) -> Tensor:
        import torch

        (x,) = inputs
        for dim, index in ((1, self.channels), (2, self.rows), (3, self.columns)):
            places = torch.from_numpy(np.array(index, np.int64))
            x = x.index_select(dim, places.clamp(min=0))
            x = x.index_fill(dim, torch.nonzero(places < 0).flatten(), self.value)
        return x

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        (x,) = sinking.affines(self, inputs)
        if x is None or (self.rows < 0).any() or (self.columns < 0).any():
            return None
        absent = self.channels < 0
        scale, offset = np.where(absent, 1.0, x.scale[self.channels]), np.where(absent, 0.0, x.offset[self.channels])
        return behind(self, x.inputs, scale, offset)

    def tensors(self) -> Tensors:
        return {"weight": ("i32", np.concatenate([self.channels, self.rows, self.columns]))}

    @property
    def filling(self) -> float:
        return self.value

    def moved_centre(self, quantizer: Quantizer, op: Fused) -> tuple[np.ndarray, int]:
        source, absent = quantizer.source(op), self.channels < 0
        at = self.value * source.steps - (0 if absent.any() else source.centre[0])
        half = np.ceil(at - 0.5) if quantizer.zeros.strict(op).any() else np.floor(at + 0.5)
        wide = source.kind == "i32"  # the file has it as an f32
        empty = int(np.float32(np.clip(half, -(2.0**30), 2.0**30)) if wide else np.clip(half, -32768, 32767))
        return np.where(absent, self.value * source.steps - empty, source.centre[self.channels]), empty

    def pads_with_zeros(self) -> bool:
        return self.value == 0 and bool((self.rows < 0).any() or (self.columns < 0).any())

    def channels_read(self, channels: np.ndarray, count: int, first: bool) -> np.ndarray:
        return np.isin(np.arange(count), self.channels[channels & (self.channels >= 0)])

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        """An operation per axis that is not taken as it is: Pad where only the ends are filled, else Gather."""
        x, source = writer.read(self.inputs[0]), self.inputs[0]
        indices = (self.channels, self.rows, self.columns)
        chosen = [
            (axis, what, np.asarray(index))
            for axis, what, index in zip((1, 2, 3), ("channels", "rows", "columns"), indices)
            if not np.array_equal(index, np.arange(source.shape[axis - 1]))
        ]
        value = writer.real(f"{self.name}.value", self.value) if any((c[2] < 0).any() for c in chosen) else ""
        pads = {axis: ends for axis, _, index in chosen if (ends := _ends(index, source.shape[axis - 1]))}
        left = [c for c in chosen if c[0] not in pads]
        if pads:
            around = [pads.get(axis, (0, 0)) for axis in range(4)]
            numbers = writer.whole(f"{self.name}.pads", [b for b, _ in around] + [a for _, a in around])
            x = writer.op("Pad", self.name if not left else f"{self.name}.padded", x, numbers, value)
        for i, (axis, what, index) in enumerate(left):
            length = source.shape[axis - 1]
            if (index < 0).any():  # one more, which is the filling
                after = writer.whole(f"{self.name}.{what}_pads", [0] * 4 + [int(a == axis) for a in range(4)])
                x = writer.op("Pad", f"{self.name}.{what}_filled", x, after, value)
            name = self.name if i == len(left) - 1 else f"{self.name}.of_{what}"
            numbers = writer.whole(f"{self.name}.{what}", np.where(index < 0, length, index))
            x = writer.op("Gather", name, x, numbers, axis=axis)
        return x if chosen else writer.op("Identity", self.name, x)

    def notes(self) -> list[str]:
        return [f"from {text.dims(self.inputs[0].shape)}", *([f"fills with {self.value:g}"] if self.fills else [])]

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        yield f"from {text.dims(model.values[op.input].shape)}"

    def array_shape(self, what: str) -> tuple[int, ...]:
        axis = ("channels", "rows", "columns").index(what)
        return self.shape[axis : axis + 1]


def _ends(index: np.ndarray, length: int) -> tuple[int, int] | None:
    """How many -1 are before and after, if all `length` places are in between, in order."""
    inside = np.flatnonzero(index >= 0)
    if len(inside) != length or not np.array_equal(index[inside[0] : inside[0] + length], np.arange(length)):
        return None
    return int(inside[0]), len(index) - int(inside[0]) - length
