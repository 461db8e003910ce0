"""`Node`: inputs, shape, traits, and the methods that the passes call.

Arrays are numpy: weights in float32 as trained (out, in, height, width), everything per channel in float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ovsw.util import text

if TYPE_CHECKING:
    from ovsw.export.ops.types import Affine, Folding, Fused, Lowered, Quantizer, Sinking, Tensor, Tensors, Writer, bnn

Shape = tuple[int, int, int]  # channels, height, width
Pair = tuple[int, int]


@dataclass(eq=False, repr=False)
class Node:
    """A value of the network: what it is computed from, and its shape."""

    name: str
    inputs: list[Node]
    shape: Shape

    # Traits.
    op: ClassVar[str] = ""  # its op in a file; empty if another op takes it in, or other nodes replace it
    family: ClassVar[str] = "each"  # its colour in a drawing: binary, real, pool, move, each or end
    takes_affine: ClassVar[bool] = False  # the op has a multiplier and an offset in any numerics
    copies_input: ClassVar[bool] = False  # the op does not scale: integers keep their steps
    keeps_bound: ClassVar[bool] = False  # no result is larger than the largest input
    averages: ClassVar[bool] = False  # each result is a mean or a sum of inputs
    has_second_input: ClassVar[bool] = False  # the op reads two maps, so it has no residual
    has_epilogue: ClassVar[bool] = True  # the op can scale, add, activate and take signs after its own work
    has_weight: ClassVar[bool] = False  # the op has a weight tensor, so it has no table
    in_float: ClassVar[bool] = False  # its result is f32 in integer files too
    on_vectors: ClassVar[bool] = False  # ONNX has it for maps and for vectors

    def __repr__(self) -> str:
        """Without its inputs: graphs share nodes, so the full text could have any length."""
        return f"<{type(self).__name__} {self.name} {self.shape}>"

    # What it computes.

    def compute(self, *inputs: Tensor) -> Tensor:
        """Its value in float64, computed by torch; a sign gives bool, True for +1. Only for nodes of a folded graph."""
        raise TypeError(f"{type(self).__name__} has no place in a folded graph")

    # Passes.

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        """The node without batch norms, biases and the like, which become an `Affine` behind it."""
        return replace(self, inputs=inputs)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """The same value, with affine inputs moved behind it or into its constants; None if none can be moved."""
        return None

    def tensors(self) -> Tensors:
        """The op's own tensors in a float file."""
        return {}

    def scaling(self, affine: Affine | None) -> Tensors:
        """The tensors of the affine that follows, in a float file."""
        return {} if affine is None else {"scale": ("f64", affine.scale), "offset": ("f64", affine.offset)}

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        """The op in integers."""
        return quantizer.moved(op)

    @property
    def filling(self) -> float:
        """The value of elements that it does not read from its input."""
        return 0.0

    def moved_centre(self, quantizer: Quantizer, op: Fused) -> tuple[np.ndarray, int]:
        """The centres of the integers that an op without a shift copies, and the integer that fills other elements."""
        return quantizer.source(op).centre, 0

    def pads_with_zeros(self) -> bool:
        """Whether the op reads padding zeros beside the integers of its input: no offset can correct their centre."""
        return False

    def channels_read(self, channels: np.ndarray, count: int, first: bool) -> np.ndarray:
        """Which of an input's `count` channels end up in these channels of the result; `first`: the first input's."""
        return channels

    # Files and people.

    def record(self, op: bnn.Op) -> None:
        """Sets the fields that the op has in a file."""

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        """Writes its operations; returns the name of its value, which is a vector if `flat`."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Short descriptions for `--explain`."""
        return []

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        """The same for an op of a file: its window and its channels."""
        return ()

    # Checks of a front end's nodes.

    def array_shape(self, what: str) -> tuple[int, ...]:
        """The shape that a constant should have: usually one number per channel."""
        return self.shape[:1]

    def problems(self, users: list[Node], zero_weights: str) -> list[str]:
        """Reasons why it cannot be exported."""
        return []

    def warnings(self, users: list[Node]) -> list[str]:
        """Facts worth knowing about a node that can be exported."""
        return []


class Input(Node):
    """The image."""

    family = "end"


@dataclass(eq=False, repr=False)
class Unsupported(Node):
    """An operation that a front end does not support; `validate` reports all of them together."""

    reason: str

    def notes(self) -> list[str]:
        return [self.reason]

    def problems(self, users: list[Node], zero_weights: str) -> list[str]:
        return [f"{self.name}: {self.reason}"]


@dataclass(eq=False, repr=False)
class Window(Node):
    """An op with a window that slides over the map."""

    window: Pair
    stride: Pair
    pad: Pair

    def record(self, op: bnn.Op) -> None:
        op.window, op.stride, op.pad = self.window, self.stride, self.pad

    def geometry(self) -> dict[str, Any]:
        """As ONNX has it."""
        return {"kernel_shape": self.window, "strides": self.stride, "pads": [*self.pad, *self.pad]}


def window_notes(window: Pair, stride: Pair, pad: Pair, dilation: Pair, pad_value: float | None = None) -> list[str]:
    def pair(sizes: Pair) -> str:
        return str(sizes[0]) if sizes[0] == sizes[1] else text.dims(sizes)

    parts = [text.dims(window) + (f"/{pair(stride)}" if stride != (1, 1) else "")]
    if any(pad):
        parts.append(f"pads {pair(pad)}" + ("" if pad_value is None else f" with {pad_value:g}"))
    return parts + ([f"dilation {pair(dilation)}"] if dilation != (1, 1) else [])


def group_notes(groups: int, channels: int) -> list[str]:
    return [] if groups == 1 else ["depthwise" if groups == channels else f"{groups} groups"]


def column(values: Any) -> Tensor:
    """Numbers per channel for a map (n, channels, height, width), in float64."""
    return double(values).view(1, -1, 1, 1)


def double(values: Any) -> Tensor:
    import torch

    return torch.from_numpy(np.array(values, np.float64))
