"""MaxPool and AvgPool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ovsw.export.ops.affine import sink_through
from ovsw.export.ops.constants import LIMIT, Line
from ovsw.export.ops.node import Node, Pair, Window, window_notes

if TYPE_CHECKING:
    from ovsw.export.ops.types import Fused, Lowered, Quantizer, Sinking, Tensor, Writer, bnn


class _Pool(Window):
    family = "pool"
    dilation: Pair
    ceil: bool

    def onnx_options(self) -> dict[str, Any]:
        """How many windows there are: torch leaves out a last one that would begin in the padding, ONNX's ceil mode
        does not. Without it there are as many as fit, if need be into more padding at the end.
        """
        options = self.geometry()
        covered = [(k - 1) * d + 1 for k, d in zip(self.window, self.dilation)]
        axes = list(zip(self.inputs[0].shape[1:], self.shape[1:], covered, self.stride, self.pad))
        if self.ceil and all(out == -(-(n + 2 * p - k) // s) + 1 for n, out, k, s, p in axes):
            return {**options, "ceil_mode": 1}
        after = (max(p, (out - 1) * s + k - n - p) for n, out, k, s, p in axes)
        return {**options, "ceil_mode": 0, "pads": [*self.pad, *after]}

    @classmethod
    def about(cls, model: bnn.Model, op: bnn.Op) -> Iterable[str]:
        yield from window_notes(op.window, op.stride, op.pad, op.dilation)
        yield from _pool_notes(op.ceil, op.exclude_pad)


@dataclass(eq=False, repr=False)
class MaxPool(_Pool):
    """`ceil`: the last windows may reach over the padded map, as with torch's ceil_mode."""

    dilation: Pair = (1, 1)
    ceil: bool = False

    op = "maxpool"
    copies_input = keeps_bound = True

    def compute(self, *inputs: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.max_pool2d(inputs[0], self.window, self.stride, self.pad, self.dilation, self.ceil)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        (x,) = sinking.affines(self, inputs)
        if x is None or (x.scale < 0).any():
            return None
        return sink_through(self, inputs, sinking)

    def record(self, op: bnn.Op) -> None:
        super().record(op)
        op.dilation, op.ceil = self.dilation, self.ceil

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        options = {"dilations": self.dilation, **self.onnx_options()}
        return writer.op("MaxPool", self.name, writer.read(self.inputs[0]), **options)

    def notes(self) -> list[str]:
        return window_notes(self.window, self.stride, self.pad, self.dilation) + _pool_notes(self.ceil)


@dataclass(eq=False, repr=False)
class AvgPool(_Pool):
    """`exclude_pad`: divides by the number of taps inside the map, as with torch's count_include_pad=False."""

    ceil: bool = False
    exclude_pad: bool = False

    op = "avgpool"
    takes_affine = averages = True
    dilation = (1, 1)

    def compute(self, *inputs: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.avg_pool2d(inputs[0], self.window, self.stride, self.pad, self.ceil, not self.exclude_pad)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        (x,) = sinking.affines(self, inputs)
        if x is None or (any(self.pad) and not self.exclude_pad and x.offset.any()):
            return None
        return sink_through(self, inputs, sinking)

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        source, taps = quantizer.source(op), self.window[0] * self.window[1]
        if taps > 65535:
            quantizer.refuse(op.name, f"averages {taps} pixels, an integer file allows at most 65535")
        a, b = op.scale_and_offset()
        peak = float((np.abs(a) * (source.peak / source.steps) + np.abs(b)).max())
        steps = quantizer.for_classifier(op, peak) or quantizer.scales.before(op)
        a = a * (steps / source.steps)
        added = b * steps + a * source.centre + quantizer.residual(op).centre + (0.5 - quantizer.centre(op))
        line = Line(a / taps, added, source.peak * taps)
        quantizer.cut(op, line, steps / source.steps)
        largest = (source.limit if source.kind == "i32" else LIMIT) * taps
        return quantizer.scaled(op, line, largest, steps, min(LIMIT, peak * steps + 1))

    def pads_with_zeros(self) -> bool:
        return any(self.pad) and not self.exclude_pad

    def record(self, op: bnn.Op) -> None:
        super().record(op)
        op.ceil, op.exclude_pad = self.ceil, self.exclude_pad

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        x, options = writer.read(self.inputs[0]), self.onnx_options()
        counts = not self.exclude_pad
        if counts and options["pads"] != [*self.pad, *self.pad]:  # what lies beyond the padding does not count
            around = writer.whole(f"{self.name}.pads", [0, 0, *self.pad, 0, 0, *self.pad])
            x = writer.op("Pad", f"{self.name}.padded", x, around)
            options["pads"] = [0, 0, *(after - p for after, p in zip(options["pads"][2:], self.pad))]
            counts = False
        return writer.op("AveragePool", self.name, x, count_include_pad=int(counts), **options)

    def notes(self) -> list[str]:
        return window_notes(self.window, self.stride, self.pad, (1, 1)) + _pool_notes(self.ceil, self.exclude_pad)


def _pool_notes(ceil: bool, exclude_pad: bool = False) -> list[str]:
    return ["ceil"] * ceil + ["padding not counted"] * exclude_pad
