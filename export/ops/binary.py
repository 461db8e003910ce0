"""BinaryConv as front ends make it; folded, it is a Sign, which gives bits, a Dot, which counts them, and a scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ovsw.export.ops.affine import Affine
from ovsw.export.ops.constants import INT32, Line, channels_last, integers, largest_shift, rounded, shifted
from ovsw.export.ops.convolution import Convolution
from ovsw.export.ops.node import Node, Pair, column, group_notes, window_notes

if TYPE_CHECKING:
    from ovsw.export.ops.types import Folding, Fused, Lowered, Quantizer, Sinking, Tensor, Tensors, Writer, bnn

ALWAYS = float(np.finfo(np.float32).min)  # a threshold that every number reaches
_CHANCE = 1e-6  # of a random weight to be exactly 0, at most


class _Binary(Convolution):
    family = "binary"
    pad_value: float
    window_scale: np.ndarray | None

    def notes(self) -> list[str]:
        notes = window_notes(self.window, self.stride, self.pad, self.dilation, self.pad_value)
        notes += group_notes(self.groups, self.inputs[0].shape[0])
        return notes + (["two levels of weights"] if self.window_scale is not None else [])


@dataclass(eq=False, repr=False)
class BinaryConv(_Binary):
    """s = sign(input) convolved with sign(weight), times scale; plus `window_scale` times the sum of s in the window.

    A tap outside the map counts as an s of `pad_value` in every channel. `strict`: sign(0) is -1 instead of +1.
    """

    weight: np.ndarray
    scale: np.ndarray
    dilation: Pair = (1, 1)
    pad_value: float = 0.0
    window_scale: np.ndarray | None = None
    strict: bool = False

    @property
    def filters(self) -> np.ndarray:
        return self.weight

    def fold(self, inputs: list[Node], folding: Folding) -> Node:
        scale, ratio = self.scale, None
        if self.window_scale is not None:
            scale = np.where(scale == 0, np.where(self.window_scale == 0, 0.0, 1e-30), scale)
            ratio = np.divide(self.window_scale, scale, out=np.zeros_like(scale), where=scale != 0)
        dot = Dot(
            self.name,
            [folding.sign(inputs[0], self.strict)],
            self.shape,
            self.window,
            self.stride,
            self.pad,
            self.weight >= 0,
            self.dilation,
            self.pad_value,
            ratio,
        )
        return Affine(self.name, [dot], self.shape, scale, np.zeros_like(scale))

    def to_onnx(self, writer: Writer, flat: bool) -> str:
        """Conv over +-1, then its scale; plus the same over weights of 1, if the window's sum counts."""
        x, geometry = writer.sign(self.inputs[0], self.strict), self.geometry()
        if self.pad_value and any(self.pad):
            pads = writer.whole(f"{self.name}.pads", [0, 0, *self.pad, 0, 0, *self.pad])
            x = writer.op("Pad", f"{self.name}.padded", x, pads, writer.real(f"{self.name}.pad_value", self.pad_value))
            geometry["pads"] = [0, 0, 0, 0]
        geometry = {**geometry, "dilations": self.dilation, "group": self.groups}
        signs = np.where(self.weight >= 0, np.float32(1), np.float32(-1))
        y = writer.op("Conv", self.name, x, writer.tensor(f"{self.name}.weight", signs), **geometry)
        if (self.scale != 1).any() or self.window_scale is not None:
            y = writer.op("Mul", f"{self.name}.scaled", y, writer.per_channel(f"{self.name}.scale", self.scale, False))
        if self.window_scale is None:
            return y
        ones = writer.tensor(f"{self.name}.ones", np.ones_like(signs))
        window = writer.op("Conv", f"{self.name}.window", x, ones, **geometry)
        scale = writer.per_channel(f"{self.name}.window_scale", self.window_scale, False)
        return writer.op("Add", f"{self.name}.sum", y, writer.op("Mul", f"{self.name}.window.scaled", window, scale))

    def notes(self) -> list[str]:
        return super().notes() + (["0 counts as negative"] if self.strict else [])

    def problems(self, users: list[Node], zero_weights: str) -> list[str]:
        zeros, size = int((self.weight == 0).sum()), self.weight.size
        if not zeros or zero_weights != "refuse":
            return []
        if zeros <= 1 + _CHANCE * size:
            advice = ", which is harmless here: so few come from a random initialisation"
        elif zeros > size // 20:
            advice = f", which is wrong if they are meant: {zeros / size:.0%} of zeros look like a ternary layer"
        else:
            advice = ", which images= or verify= should confirm"
        return [
            f"{self.name}: {zeros} of {size} binary weights are exactly 0, whose sign is +1 in the paper and 0 in "
            f'its released code; zero_weights="plus" takes them as +1{advice}'
        ]


@dataclass(eq=False, repr=False)
class Sign(Node):
    """Bits of a map: +1 where x >= threshold[c], or x > threshold[c] if strict[c], else -1.

    A threshold of None is 0 in every channel; `strict` of None is False in every channel.
    """

    threshold: np.ndarray | None = None
    strict: np.ndarray | None = None

    family = "binary"

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """The threshold of every channel, and whether it is strict there."""
        c = self.shape[0]
        return (
            np.zeros(c) if self.threshold is None else self.threshold,
            np.zeros(c, bool) if self.strict is None else self.strict,
        )

    def compute(self, *inputs: Tensor) -> Tensor:
        import torch

        threshold, strict = self.levels()
        at = column(threshold)
        above = torch.from_numpy(np.array(strict)).view(1, -1, 1, 1)
        return torch.where(above, inputs[0] > at, inputs[0] >= at)

    def tensors(self) -> Tensors:
        """The smallest float32 that is not below the threshold, or, where strict, that is above it."""
        if self.threshold is None and self.strict is None:
            return {}
        threshold, strict = self.levels()
        with np.errstate(over="ignore"):
            near = np.clip(threshold.astype(np.float32), np.finfo(np.float32).min, np.finfo(np.float32).max)
        short = (near < threshold) | (strict & (near == threshold))
        return {"threshold": ("f32", np.where(short, np.nextafter(near, np.float32(np.inf)), near))}

    def notes(self) -> list[str]:
        return [threshold_note(self.threshold)]


def threshold_note(values: np.ndarray | None) -> str:
    if values is None:
        return "at 0"
    return f"at {values[0]:.3g}" if (values == values[0]).all() else "threshold per channel"


@dataclass(eq=False, repr=False)
class Dot(_Binary):
    """The integer part of a binary convolution: bits in, dots out. `positive` is True where the weight is +1.

    `window_scale` times the sum of the bits in the window is added to the dot.
    """

    positive: np.ndarray
    dilation: Pair = (1, 1)
    pad_value: float = 0.0
    window_scale: np.ndarray | None = None

    op = "bconv"
    takes_affine = has_weight = True

    @property
    def filters(self) -> np.ndarray:
        return self.positive

    def compute(self, *inputs: Tensor) -> Tensor:
        """Sums of whole numbers are exact in float32; a tap outside counts as `pad_value`."""
        import torch
        from torch.nn import functional as F

        (bits,), taps = inputs, self.positive[0].size
        exact = taps * max(1, abs(self.pad_value)) < 1 << 24 and self.pad_value == round(self.pad_value)
        kind = torch.float32 if exact else torch.float64
        (ph, pw), s = self.pad, bits.to(kind).mul_(2).sub_(1)
        padded = F.pad(s, (pw, pw, ph, ph), value=self.pad_value) if self.pad_value else s
        pad = (0, 0) if self.pad_value else self.pad

        def sums(weight: Tensor) -> Tensor:
            return F.conv2d(padded, weight, None, self.stride, pad, self.dilation, self.groups).double()

        weight = torch.from_numpy(np.where(self.positive, 1.0, -1.0)).to(kind)
        dots = sums(weight)
        return dots if self.window_scale is None else dots + sums(torch.ones_like(weight)) * column(self.window_scale)

    def sink(self, inputs: list[Node], sinking: Sinking) -> Node | None:
        """The sign of an affine as that of what it reads: bits of channels with a negative scale come inverted, and so
        do the weights that read them.
        """
        sign = inputs[0]
        assert isinstance(sign, Sign)
        affine = sign.inputs[0]
        if not sinking.is_floating(self.inputs[0].inputs[0]) or not isinstance(affine, Affine):
            return None
        level, strict = sign.levels()
        constant, below = affine.scale == 0, (affine.offset < level) | (strict & (affine.offset == level))
        inverted = np.where(constant, below, affine.scale < 0)
        if inverted.any() and (self.pad_value != 0 or self.window_scale is not None):
            return None
        at = (level - affine.offset) / np.where(constant, 1.0, affine.scale)
        threshold, strict = np.where(constant, ALWAYS, at), ~constant & (strict ^ inverted)
        bits = sinking.sign(sign.name, affine.inputs[0], threshold, strict)
        flipped = inverted[self.channels_of_weights()][:, :, None, None]
        return replace(self, inputs=[bits], positive=self.positive ^ flipped)

    def tensors(self) -> Tensors:
        return {"weight": ("bits", channels_last(self.positive))}

    def scaling(self, affine: Affine | None) -> Tensors:
        if self.window_scale is None:
            return super().scaling(affine)
        scale = np.ones_like(self.window_scale) if affine is None else affine.scale
        offset = np.zeros_like(self.window_scale) if affine is None else affine.offset
        return {"scale": ("f64", np.stack([scale, scale * self.window_scale])), "offset": ("f64", offset)}

    @property
    def largest(self) -> float:
        """The largest dot there can be."""
        return self.positive[0].size * max(1, abs(self.pad_value))

    def quantize(self, quantizer: Quantizer, op: Fused) -> Lowered:
        channels, taps = len(self.positive), self.positive[0].size
        positive = channels_last(self.positive)
        outside = max(1, int(np.ceil(abs(self.pad_value))))
        fraction = int(self.pad_value != round(self.pad_value))
        if quantizer.scales.before(op) == 1.0 and op.affine is None and op.residual is None and op.act is None:
            ones, zeros = np.ones(channels, np.int64), np.zeros(channels, np.int64)
            constants = integers(zeros, zeros, weight=("bits", positive), scale=("i16", ones))
            return quantizer.stored(op, constants, steps=1.0, peak=taps * outside, centre=np.zeros(channels))
        a, b = op.scale_and_offset()
        free = quantizer.for_classifier(op, op.scaled(taps)) if op.act is not None else None
        steps = quantizer.scales.before(op) if free is None else free
        negative, residual = a < 0, quantizer.residual(op)
        line = Line(np.abs(a) * steps, b * steps + residual.centre + (0.5 - quantizer.centre(op)), taps)
        window = np.zeros(channels) if self.window_scale is None else a * self.window_scale * steps
        wide = quantizer.scales.stored_wide(op)
        room = (INT32 >> wide) - residual.limit  # PReLU takes a bit less
        kind, widest = ("i32", INT32) if wide else ("i16", 32767)
        if not wide:
            quantizer.cut(op, line, steps)

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            n = np.abs(rounded(window * 2.0**s))
            small = (m <= widest) & (n <= widest)
            sums = np.where(small, np.minimum(m + n, 1 << 32), 0) * (taps * outside) + np.abs(o) + fraction
            return m, o, small & (sums <= INT32) & (shifted(sums, s) <= room)

        best = largest_shift(31, at)
        second = np.clip(rounded(window * 2.0**best.shift), -widest, widest)
        if not best.fits.all():  # an offset of more than 2^16: the clamp cuts it off wherever it is cut off here
            most = room - fraction - (best.weight + np.abs(second)) * taps * outside
            if (most < 0).any():
                quantizer.refuse(op.name, f"sums over {taps} taps, which is too many for 32 bits")
            best.offset = np.where(best.fits, best.offset, np.clip(best.offset, -most, most))
        coarse = int(((best.weight < 1 << 14) & (a != 0) & (best.shift < 31) & (taps >= 1 << best.shift)).sum())
        if coarse and not wide:
            quantizer.warnings.append(
                f"{op.name}: {coarse} of {channels} channels have an offset so large that their multiplier keeps "
                "fewer than 15 bits"
            )
        signs = positive ^ negative[:, None, None, None]
        scale = best.weight if self.window_scale is None else np.stack([best.weight, second])
        offset = quantizer.below(op, best.offset)
        constants = integers(offset, best.shift, weight=("bits", signs), scale=(kind, scale))
        sums = (best.weight + np.abs(second)) * taps * outside + np.abs(offset) + fraction
        return quantizer.stored(op, constants, steps, most=int(shifted(sums, best.shift).max()))

    def record(self, op: bnn.Op) -> None:
        super().record(op)
        op.pad_value = self.pad_value
