"""Linear: a fully connected layer. Flatten, before one, becomes an order of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import Affine, biased
from ovsw.export.ops.constants import INT32, KIND, LIMIT, PEAK, integers, rounded
from ovsw.export.ops.fused import Fused, Lowered, Tensors
from ovsw.export.ops.node import Node, double

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Quantizer, Sinking, Tensor, Writer, bnn


@dataclass(eq=False, repr=False)
class Linear(Node):
    """Weights are (out, in); once folded, inputs are in the order of the engine's maps: row, column, channel."""

    weight: np.ndarray
    bias: np.ndarray | None = None

    op = "linear"
    family = "real"
    takes_affine = has_weight = in_float = True

    def compute(self, *inputs: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.linear(inputs[0].permute(0, 2, 3, 1).flatten(1), double(self.weight))[:, :, None, None]

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        source, weight = inputs[0], self.weight
        if isinstance(source, Flatten):
            inputs, (c, h, w) = source.inputs, source.inputs[0].shape
            ordered = weight.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(weight), -1)
            weight = np.ascontiguousarray(ordered)
        return biased(replace(self, inputs=inputs, weight=weight, bias=None), self.bias)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """w * (a * x + b) = (w * a) * x + w * b."""
        (x,) = sinking.affines(self, inputs)
        if x is None:
            return None
        weight = self.weight.astype(np.float64)
        pixels = weight.shape[1] // len(x.scale)
        new = self.weight if (x.scale == 1).all() else weight * np.tile(x.scale, pixels)
        core = replace(self, inputs=x.inputs, weight=new)
        return Affine(self.name, [core], self.shape, np.ones(len(weight)), weight @ np.tile(x.offset, pixels))

    def tensors(self) -> Tensors:
        return {"weight": ("f32", self.weight)}

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        """W = w * 2^e per class, q = logit * 2^g for all; e as large as the width allows, g as the bound allows."""
        source = quantizer.source(op)
        a, b = op.scale_and_offset()
        pixels = self.weight.shape[1] // len(source.centre)
        b = b + a * (self.weight * np.tile(source.centre, pixels)).sum(axis=1) / source.steps
        fraction = round(np.log2(source.steps))
        w = self.weight.astype(np.float64) * a[:, None] * (2.0**fraction / source.steps)
        peak = PEAK[quantizer.width]
        size = np.abs(w).max(axis=1)
        exponent = np.floor(np.log2(peak / np.maximum(size, 1e-30))).astype(np.int64)
        exponent -= np.rint(size * 2.0**exponent) > peak
        exponent = np.minimum(exponent, exponent.min() + 16)  # a unit below 2^-16 of the largest weight gains nothing
        weight = rounded(w * 2.0 ** exponent[:, None])
        sums = LIMIT * np.abs(weight).sum(axis=1)
        lowest = int(exponent.max()) + fraction - 47

        def fits(g: int) -> bool:
            return bool(((sums >> (exponent + fraction - g)) + 1 + np.abs(rounded(b * 2.0**g)) <= INT32).all())

        choices = range(int(exponent.min()) + fraction, lowest - 1, -1)
        g = next((g for g in choices if abs(g) < 120 and fits(g)), None)
        if g is None:
            quantizer.refuse(op.name, "its weights and biases are too far apart in size for 32 bits")
        shift, offset = exponent + fraction - g, rounded(b * 2.0**g)
        scale = ("f32", np.array([2.0**-g]))
        return Lowered(op, "f32", integers(offset, shift, weight=(KIND[quantizer.width], weight), scale=scale))

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        x = writer.read(self.inputs[0], flat=True)
        inputs = [x, writer.tensor(f"{self.name}.weight", self.weight.astype(np.float32))]
        if self.bias is not None:
            inputs.append(writer.real(f"{self.name}.bias", self.bias, -1))
        return writer.op("Gemm", self.name, *inputs, transB=1)

    def notes(self) -> list[str]:
        out, count = self.weight.shape
        return [f"{count}->{out}", *(["bias"] if self.bias is not None else [])]

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        assert op.weight is not None
        out, count = model.tensors[op.weight].shape
        yield f"{count}->{out}"

    def array_shape(self, what: str) -> tuple[int, ...]:
        return (self.shape[0], math.prod(self.inputs[0].shape)) if what == "weight" else self.shape[:1]


class Flatten(Node):
    """A map of more than one pixel as a vector."""

    family = "move"

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        return writer.op("Flatten", self.name, writer.read(self.inputs[0]), axis=1)

    def problems(self, users: list[Node], zero_weights: str) -> list[str]:
        others = [user.name for user in users if not isinstance(user, Linear)]
        if users and not others:
            return []
        return [f"{self.name}: a flattened {self.inputs[0].shape} map is read by {others}, not by a Linear"]
