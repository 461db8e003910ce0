"""Bilinear: a map in another size, each pixel between four others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import sink_through
from ovsw.export.ops.node import Node, double
from ovsw.util import text

if TYPE_CHECKING:
    from ovsw.export.ops.types import Sinking, Tensor, Tensors, Writer, bnn


@dataclass(eq=False, repr=False)
class Bilinear(Node):
    """Output row y lies between rows `rows[y]` and `rows[y] + 1`, `row_fractions[y]` (0 <= f < 1) past the first.

    Where the fraction is 0, the second row is not read. The same holds for columns.
    """

    rows: np.ndarray
    row_fractions: np.ndarray
    columns: np.ndarray
    column_fractions: np.ndarray

    op = "bilinear"
    family = "move"
    copies_input = averages = has_weight = True

    def compute(self, *inputs: Tensor) -> Tensor:
        import torch

        (x,) = inputs
        for dim, index, fraction in ((2, self.rows, self.row_fractions), (3, self.columns, self.column_fractions)):
            first, share = torch.from_numpy(np.array(index, np.int64)), double(fraction)
            second = torch.where(share > 0, first + 1, first)
            share = share.view(-1, 1) if dim == 2 else share
            x = x.index_select(dim, first) * (1 - share) + x.index_select(dim, second) * share
        return x

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        return sink_through(self, inputs, sinking)

    def tensors(self) -> Tensors:
        """For each row, then each column, the first place and 2^30ths of the way to the next."""
        parts = []
        for index, fraction in ((self.rows, self.row_fractions), (self.columns, self.column_fractions)):
            steps = np.rint(np.asarray(fraction, np.float64) * (1 << 30)).astype(np.int64)
            parts.append(np.stack([index + (steps >> 30), steps & ((1 << 30) - 1)], axis=1).reshape(-1))
        return {"weight": ("i32", np.concatenate(parts))}

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        """Resize where that is what it is, else a product with a matrix of fractions on either side."""
        (_, h, w), (_, high, wide) = self.inputs[0].shape, self.shape
        x = writer.read(self.inputs[0])
        places = (self.rows + self.row_fractions, self.columns + self.column_fractions)
        for how in ("half_pixel", "align_corners"):
            if np.allclose(places[0], _places(h, high, how)) and np.allclose(places[1], _places(w, wide, how)):
                sizes = writer.whole(f"{self.name}.sizes", [high, wide])
                kind = {"mode": "linear", "coordinate_transformation_mode": how}
                return writer.op("Resize", self.name, x, "", "", sizes, axes=[2, 3], **kind)
        rows = writer.real(f"{self.name}.rows", _fractions(places[0], h), high, h)
        columns = writer.real(f"{self.name}.columns", _fractions(places[1], w).T, w, wide)
        return writer.op("MatMul", self.name, writer.op("MatMul", f"{self.name}.of_rows", rows, x), columns)

    def notes(self) -> list[str]:
        return [f"from {text.dims(self.inputs[0].shape)}"]

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        yield f"from {text.dims(model.values[op.input].shape)}"

    def array_shape(self, what: str) -> tuple[int, ...]:
        return self.shape[1:2] if what in ("rows", "row_fractions") else self.shape[2:]


def _places(old: int, new: int, how: str) -> np.ndarray:
    """Where Resize finds each of `new` places among `old` ones."""
    if how == "align_corners":
        return np.arange(new) * ((old - 1) / max(1, new - 1))
    return np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)


def _fractions(places: np.ndarray, length: int) -> np.ndarray:
    """The matrix that interpolates between neighbours."""
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(length)))
