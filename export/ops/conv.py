"""Conv: a convolution with real weights, over pixels or maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import Affine, biased
from ovsw.export.ops.constants import (
    INT32,
    KIND,
    PEAK,
    channels_last,
    floored,
    integers,
    largest_shift_of_weights,
    like_pixels,
    rounded,
    rounded_together,
)
from ovsw.export.ops.convolution import Convolution
from ovsw.export.ops.fused import Fused, Lowered, Tensors
from ovsw.export.ops.node import Input, Node, Pair, double, group_notes, window_notes

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Quantizer, Sinking, Tensor, Writer


@dataclass(eq=False, repr=False)
class Conv(Convolution):
    """Padded with zeros."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    dilation: Pair = (1, 1)

    op = "conv"
    family = "real"
    takes_affine = has_weight = True

    @property
    def filters(self) -> np.ndarray:
        return self.weight

    def compute(self, *inputs: Tensor) -> Tensor:
        from torch.nn import functional as F

        weight = double(self.weight)
        return F.conv2d(inputs[0], weight, None, self.stride, self.pad, self.dilation, self.groups)

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        return biased(replace(self, inputs=inputs, bias=None), self.bias)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """w * (a * x + b) = (w * a) * x + w * b, except for taps outside the map, where there is no b."""
        (x,) = sinking.affines(self, inputs)
        if x is None or (any(self.pad) and x.offset.any()):
            return None
        weight, channels = self.weight.astype(np.float64), self.channels_of_weights()
        scale, offset = (values[channels][:, :, None, None] for values in (x.scale, x.offset))
        new = self.weight if (x.scale == 1).all() else weight * scale
        core = replace(self, inputs=x.inputs, weight=new)
        return Affine(self.name, [core], self.shape, np.ones(len(weight)), (weight * offset).sum(axis=(1, 2, 3)))

    def tensors(self) -> Tensors:
        return {"weight": ("f32", channels_last(self.weight))}

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        a, b = op.scale_and_offset()
        w = channels_last(self.weight.astype(np.float64)) * a[:, None, None, None]
        whole: Callable[[np.ndarray], np.ndarray] = rounded
        steps = quantizer.scales.before(op)
        pixels = isinstance(op.source, Input)
        wide = quantizer.scales.is_wide(op) and not quantizer.scales.stored_wide(op)
        read = self.channels_of_weights()[:, None, None, :]
        if pixels:
            mean, std = (values.astype(np.float64) for values in (quantizer.mean, quantizer.std))
            w *= steps / (255.0 * std[read])
            centre = -255.0 * mean[read]
            zeros = np.floor(mean * 65280 + 0.5)[read]
            largest, width = 255, quantizer.stem_width
            if self.groups == 1:
                whole = partial(rounded_together, r=like_pixels(self.window, std))
        else:
            source = quantizer.source(op)
            w *= steps / source.steps
            centre, zeros = source.centre[read], np.zeros(1)
            largest, width = source.limit, quantizer.width
        residual = quantizer.residual(op)
        room = INT32 // 2 if wide else INT32 - residual.limit
        unit = 256 if pixels and width == 8 else 1  # what a weight of 1 counts

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weight = whole(w * (2.0**s / unit))
            counts = weight * float(unit)  # exact as long as it matters
            taken = np.floor((counts * zeros).sum(axis=(1, 2, 3)) / 256 + 0.5)  # off by the op, inside the image
            added = b * steps + residual.centre + (0.5 - quantizer.centre(op))
            o = floored(added * 2.0**s + (counts * centre).sum(axis=(1, 2, 3)) + taken)
            most, small = sums(weight, o), np.abs(weight).max(axis=(1, 2, 3)) <= PEAK[width]
            return weight, o, small & (most <= INT32) & (most / 2**s + 1 <= room)

        def sums(weight: np.ndarray, offset: np.ndarray) -> np.ndarray:
            size = np.abs(weight) * float(unit)
            zero = np.ceil((size * np.abs(zeros)).sum(axis=(1, 2, 3)) / 256) + 1
            return largest * size.sum(axis=(1, 2, 3)) + np.abs(offset).astype(np.float64) + zero

        best = largest_shift_of_weights(31, at)
        if not best.fits.all():
            count = int((~best.fits).sum())
            quantizer.refuse(op.name, f"{count} channels have weights or offsets too large for {width} bits")
        constants = integers(quantizer.below(op, best.offset), best.shift, weight=(KIND[width], best.weight))
        if wide:
            return quantizer.stored_wide(op, constants, steps, room)
        most = int((sums(best.weight, best.offset) / 2.0**best.shift).max()) + 1
        return quantizer.stored(op, constants, steps, most=most)

    def pads_with_zeros(self) -> bool:
        return any(self.pad)

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        inputs = [writer.read(self.inputs[0]), writer.tensor(f"{self.name}.weight", self.weight.astype(np.float32))]
        if self.bias is not None:
            inputs.append(writer.real(f"{self.name}.bias", self.bias, -1))
        return writer.op("Conv", self.name, *inputs, **self.geometry(), dilations=self.dilation, group=self.groups)

    def notes(self) -> list[str]:
        notes = window_notes(self.window, self.stride, self.pad, self.dilation)
        notes += group_notes(self.groups, self.inputs[0].shape[0])
        return notes + (["bias"] if self.bias is not None else [])
