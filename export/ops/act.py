"""Act: an activation, the last part of an op."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import affine
from ovsw.export.ops.node import Node, column

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Tensor, Writer


@dataclass(eq=False, repr=False)
class Act(Node):
    """`kind` is "clamp" (lo, hi), "prelu" (slope per channel below 0, `positive` above, 1 if None), "sigmoid", or
    "step": hi where x >= 0, or x > 0 if `strict`, and lo elsewhere.
    """

    kind: str
    lo: float = 0.0
    hi: float = 0.0
    slope: np.ndarray | None = None
    positive: np.ndarray | None = None
    strict: bool = False

    on_vectors = True

    def compute(self, *inputs: Tensor) -> Tensor:
        import torch

        (x,) = inputs
        if self.kind == "clamp":
            return x.clamp(self.lo, self.hi)
        if self.kind == "prelu":
            above = x if self.positive is None else x * column(self.positive)
            return torch.where(x < 0, x * column(self.slope), above)
        if self.kind == "step":
            return torch.where(x > 0 if self.strict else x >= 0, self.hi, self.lo).double()
        return torch.sigmoid(x)

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        if not self.strict:
            return replace(self, inputs=inputs)
        ones = np.ones(self.shape[0])  # x > 0 is what -x >= 0 is not
        negated = affine(f"{self.name}.negated", inputs[0], -ones, 0 * ones)
        return replace(self, inputs=[negated], lo=self.hi, hi=self.lo, strict=False)

    @property
    def bound(self) -> float:
        """The largest |x| of a clamp's or step's result."""
        return max(abs(self.lo), abs(self.hi))

    def slopes(self) -> np.ndarray:
        """Those below zero, and in a second row, if they are not 1, those above."""
        assert self.slope is not None
        return self.slope if self.positive is None else np.stack([self.slope, self.positive])

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        x = writer.read(self.inputs[0], flat)
        if self.kind == "sigmoid":
            return writer.op("Sigmoid", self.name, x)
        if self.kind == "step":
            return writer.step(self.name, x, self.hi, self.lo, self.strict)
        if self.kind == "prelu":
            return self._prelu_to_onnx(writer, x, flat)
        if (self.lo, self.hi) == (0.0, np.inf):
            return writer.op("Relu", self.name, x)
        bounds = [
            writer.real(f"{self.name}.{what}", value) if np.isfinite(value) else ""
            for what, value in (("lowest", self.lo), ("highest", self.hi))
        ]
        while bounds and not bounds[-1]:
            bounds.pop()
        return writer.op("Clip", self.name, x, *bounds)

    def _prelu_to_onnx(self, writer: Writer, x: str, flat: bool) -> str:
        assert self.slope is not None
        slope = writer.per_channel(f"{self.name}.slope", self.slope, flat)
        if self.positive is None:
            return writer.op("PRelu", self.name, x, slope)
        positive = writer.per_channel(f"{self.name}.positive", self.positive, flat)
        above = writer.op("GreaterOrEqual", f"{self.name}.above", x, writer.real(f"{self.name}.threshold", 0.0))
        branches = [
            writer.op("Mul", f"{self.name}.{branch}", x, factor)
            for branch, factor in (("above_0", positive), ("below_0", slope))
        ]
        return writer.op("Where", self.name, above, *branches)

    def notes(self) -> list[str]:
        strict = ["0 counts as negative"] if self.strict else []
        return [act_note(self.kind, self.lo, self.hi, self.positive is not None), *strict]


def act_note(kind: str, lo: float, hi: float, two_slopes: bool = False) -> str:
    if kind == "clamp":
        return "ReLU" if (lo, hi) == (0, math.inf) else f"clamp {lo:g}..{hi:g}"
    if kind == "prelu":
        return "PReLU with two slopes" if two_slopes else "PReLU"
    return f"step {lo:g} | {hi:g}" if kind == "step" else kind
