"""Quantize: fused ops get integer constants, as docs/numerics.md says under "What the exporter chooses".

Every map has steps and a centre: an integer n of it stands for (n + centre) / steps. A shift drops fractions, so what
it leaves is centred at 1/2, and has the sign of what was computed, exactly. Where 0 itself matters (`zeros`), sums are
rounded instead, with a centre of 0. `scales` has the steps; raw dots have 1,
what a classifier reads a power of two that fits. Constants are per channel: with a shift s that is as large as the
bounds allow, multipliers and weights keep as many significant bits as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.passes.constants import (
    Line,
    floored,
    largest_shift,
    largest_shift_of_weights,
    like_pixels,
    rounded,
    rounded_together,
    shifted,
)
from ovsw.export.passes.fuse import Fused
from ovsw.export.passes.lower import Lowered, channels_last, positions
from ovsw.export.passes.scales import HANDS_ON, Ranges, Scales, scaled
from ovsw.export.passes.zeros import Zeros, ends_at_zero

INT32 = 2**31 - 1
WIDTHS = {"int16": 16, "int8": 8}
_PEAK = {16: 32767, 8: 127}
_KIND = {16: "i16", 8: "i8"}
_FEW = 5  # fraction bits of what a classifier reads; fewer are reported
_LIMIT = 32768  # the largest |x| of an i16 that is not clamped
_NARROW = (-8192, 8191)  # what is clamped for a convolution that reads it
_KEEPING = (ir.MaxPool, ir.ChannelPad, ir.Gather, ir.Concat)  # cores whose result is bounded as their input is
_SLOPE = 1 << 14  # a slope of 1


@dataclass
class _Map:
    """What is known of a value: |x| <= limit by the rules of the format, |x + centre| <= peak in truth."""

    kind: str
    steps: float
    centre: np.ndarray  # per channel
    limit: int = _LIMIT
    peak: float = _LIMIT


def quantize(
    ops: list[Fused],
    mean: Sequence[float],
    std: Sequence[float],
    weights: str = "int16",
    stem: str | None = None,
    ranges: Ranges | None = None,
) -> tuple[list[Lowered], list[str]]:
    """The ops in integers, and warnings. `weights` is the width of real weights, `stem` that of those on pixels.

    `ranges` measures maps that are not clamped. Raises NotIntegerError.
    """
    mean32, std32 = (np.asarray(values, np.float32) for values in (mean, std))
    scales = Scales(ops, ranges)
    zeros = Zeros(ops, scales.readers)
    quantizer = _Quantizer(scales, zeros, mean32, std32, WIDTHS[weights], WIDTHS[stem or weights])
    return [lowered for op in ops for lowered in quantizer.parts(op)], quantizer.warnings


def _slopes(act: ir.Act, factor: float = 1.0) -> np.ndarray:
    """In steps, below zero and, if those above are not 1, above; `factor` is the ratio of steps after and before."""
    slopes = np.asarray(act.slope, np.float64) * factor
    if act.positive is not None or factor != 1:
        above = np.ones_like(slopes) if act.positive is None else np.asarray(act.positive, np.float64)
        slopes = np.stack([slopes, above * factor])
    steps = rounded(slopes * _SLOPE)
    if (np.abs(steps) >= 2 * _SLOPE).any():
        raise NotIntegerError(f"{act.name}: a slope is {np.abs(slopes).max():g}, integers have less than 2")
    return steps


@dataclass
class _Quantizer:
    scales: Scales
    zeros: Zeros
    mean: np.ndarray
    std: np.ndarray
    width: int
    stem_width: int
    warnings: list[str] = field(default_factory=list)
    maps: dict[ir.Node, _Map] = field(default_factory=dict)

    @staticmethod
    def refuse(name: str, reason: str) -> NoReturn:
        raise NotIntegerError(f"{name}: {reason}")

    def parts(self, op: Fused) -> list[Lowered]:
        """The op, or two ops where its activation needs another centre than the numbers that it moves have."""
        if not isinstance(op.core, HANDS_ON) or not self.needs_centring(op):
            return [self.op(op)]
        assert op.act is not None
        pixel = ((1, 1), (1, 1), (0, 0))  # an average over one
        if op.core is None and (op.residual is None or op.residual.shape == op.value.shape):
            op.core = ir.AvgPool(op.name, [op.source], op.value.shape, *pixel)
            return [self.op(op)]
        (before,) = op.act.inputs
        moved = replace(op, value=before, act=None, sign=None, wants_map=True)
        self.scales.add(moved, like=op)
        self.zeros.add(moved, like=op)
        op.core = ir.AvgPool(f"{op.name}.centred", [before], op.value.shape, *pixel)
        op.source, op.other, op.residual = before, None, None
        return [self.op(moved), self.op(op)]

    def needs_centring(self, op: Fused) -> bool:
        if op.act is None:
            return False
        centre = self.moved_centre(op)[0] + self.residual(op).centre
        if op.act.kind == "step":
            return bool(((centre < 0) | (centre >= 1)).any())
        if op.act.kind == "prelu":
            return bool((centre != 0.5).any())
        return ends_at_zero(op) and bool((centre != np.rint(centre)).any() or (centre != centre[0]).any())

    def op(self, op: Fused) -> Lowered:
        core = op.core
        if isinstance(core, ir.Dot):
            return self.bconv(op, core)
        if isinstance(core, ir.Conv):
            return self.conv(op, core)
        if isinstance(core, ir.Linear):
            return self.linear(op, core)
        if isinstance(core, ir.AvgPool):
            return self.avgpool(op, core)
        if isinstance(core, ir.Mul):
            return self.mul(op)
        if isinstance(core, ir.ToFloat):
            return self.to_float(op)
        if isinstance(core, ir.Softmax):
            return Lowered(op)
        assert isinstance(core, HANDS_ON)
        return self.moved(op)

    # What an op reads and writes.

    def source(self, op: Fused) -> _Map:
        source = self.maps[op.source]
        if source.kind != "i16":
            self.refuse(op.name, f"reads the result of {op.source.name}, which is stored in 32 bits")
        return source

    def residual(self, op: Fused) -> _Map:
        """What is added, in the steps of the sum; zeros where nothing is."""
        if op.residual is None:
            return _Map("i16", self.scales.before(op), np.zeros(op.value.shape[0]), limit=0)
        return self.maps[op.residual]

    def stored(
        self,
        op: Fused,
        constants: dict[str, tuple[str, np.ndarray]],
        steps: float,
        peak: float = _LIMIT,
        centre: np.ndarray | None = None,
    ) -> Lowered:
        """The op with its activation and its threshold; notes what is known of its result.

        The sum that the activation reads has `steps` and, usually a shift's, a `centre`.
        """
        centre = np.full(op.value.shape[0], self.centre(op)) if centre is None else centre
        lowered = Lowered(op, "i16", constants, sum_steps=steps, centre=centre, measured=self.scales.is_measured(op))
        known = _Map("i16", steps, centre, peak=peak)
        if op.act is not None and op.act.kind == "prelu":
            if (centre != 0.5).any():
                self.refuse(op.act.name, "reads numbers that are not centred, a prelu in integers needs a scale before")
            lowered.act = "prelu"
            lowered.constants["slope"] = ("i16", _slopes(op.act))
            known = _Map("i16", steps, centre)
        elif op.act is not None and op.act.kind in ("step", "sigmoid"):
            known = self.beyond(op, op.act, lowered)
        elif op.act is not None:
            middle = float(centre[0]) if (centre == centre[0]).all() else 0.5
            lo, hi = op.act.lo * steps - middle, op.act.hi * steps - middle
            ends = (np.ceil(lo - 0.5), np.floor(hi + 0.5))  # halves away from 0, so that both ends are alike
            lo, hi = (int(np.clip(n, -32768, 32767)) for n in ends)
            lowered.act, lowered.clamp = "clamp", self.narrowed(op, lo, hi)
        elif not isinstance(op.core, _KEEPING) or op.residual is not None:
            lo, hi = self.narrowed(op, -32768, 32767)
            if (lo, hi) == _NARROW:
                lowered.act, lowered.clamp = "clamp", (lo, hi)
        if lowered.act == "clamp":
            lo, hi = (int(n) for n in lowered.clamp)
            known = _Map("i16", steps, centre, max(abs(lo), abs(hi)), max(abs(lo + 0.5), abs(hi + 0.5)))
        lowered.steps, lowered.centre = known.steps, known.centre
        self.maps[op.value] = known
        self.binarised(op, lowered)
        return lowered

    def narrowed(self, op: Fused, lo: int, hi: int) -> tuple[int, int]:
        return (max(lo, _NARROW[0]), min(hi, _NARROW[1])) if op.wants_map and self.scales.narrow(op) else (lo, hi)

    def beyond(self, op: Fused, act: ir.Act, lowered: Lowered) -> _Map:
        """An activation whose result has steps of its own."""
        steps, channels = self.scales.after(op), op.value.shape[0]
        if act.kind == "step":
            low, high = (int(np.clip(np.rint(n * steps), -32768, 32767)) for n in (act.lo, act.hi))
            centre = np.asarray(lowered.centre)
            if (centre < 0).any() or (centre >= 1).any():
                self.refuse(act.name, "reads numbers that are not centred, a step in integers needs a scale before")
            lowered.act, lowered.clamp = "step", (low, high)
            return _Map("i16", steps, np.zeros(channels), max(abs(low), abs(high)), max(abs(low), abs(high)))
        x = (np.arange(-32768, 32769, 256) + float(np.mean(lowered.centre))) / lowered.sum_steps  # type: ignore[arg-type]
        lowered.act = "table"
        lowered.constants["slope"] = ("i16", np.minimum(np.rint(steps / (1 + np.exp(-x))), 32767).astype(np.int64))
        return _Map("i16", steps, np.zeros(channels), _LIMIT, steps)

    def binarised(self, op: Fused, lowered: Lowered) -> None:
        """(n + centre) / steps >= threshold, or > threshold, as n >= an integer."""
        if op.sign is None:
            return
        known, (wanted, strict) = self.maps[op.value], op.sign.levels()
        at = wanted * known.steps - known.centre
        threshold = np.clip(np.where(strict, np.floor(at) + 1, np.ceil(at)), -32768, 32767).astype(np.int64)
        if threshold.any():
            lowered.constants["threshold"] = ("i16", threshold)

    def centre(self, op: Fused) -> float:
        """What an op with a shift adds to its results before the fraction is dropped is 1/2 less this."""
        return 0.0 if self.zeros.exact(op) else 0.5

    def for_classifier(self, op: Fused, peak: float) -> float | None:
        """Steps of a result that is not clamped and that only linear layers read: a power of two that fits."""
        if not self.scales.for_linear(op):
            return None
        if op.act is not None:
            peak *= max(1.0, float(np.abs(_slopes(op.act)).max()) / _SLOPE)
        fraction = int(np.floor(np.log2(32767 / max(peak, 2.0**-16))))
        if fraction < _FEW:
            self.warnings.append(
                f"{op.name}: its results may be as large as {peak:.2g}, which leaves steps of 2^{-fraction}"
            )
        return 2.0**fraction

    # The ops.

    def bconv(self, op: Fused, core: ir.Dot) -> Lowered:
        taps = core.positive[0].size
        channels = len(core.positive)
        positive = channels_last(core.positive)
        outside = max(1, int(np.ceil(abs(core.pad_value))))
        fraction = int(core.pad_value != round(core.pad_value))
        if self.scales.before(op) == 1.0 and op.affine is None and op.residual is None and op.act is None:
            ones, zeros = np.ones(channels, np.int64), np.zeros(channels, np.int64)
            constants = _constants(zeros, zeros, weight=("bits", positive), scale=("i16", ones))
            return self.stored(op, constants, steps=1.0, peak=taps * outside, centre=np.zeros(channels))
        a, b = _scale_and_offset(op, channels)
        free = self.for_classifier(op, scaled(op, taps)) if op.act is not None else None
        negative, residual, steps = a < 0, self.residual(op), self.scales.before(op) if free is None else free
        line = Line(np.abs(a) * steps, b * steps + residual.centre + (0.5 - self.centre(op)), taps)
        window = np.zeros(channels) if core.window_scale is None else a * core.window_scale * steps
        room = INT32 - residual.limit
        self.cut(op, line, steps)

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            n = np.abs(rounded(window * 2.0**s))
            small = (m <= 32767) & (n <= 32767)
            sums = np.where(small, m + n, 0) * (taps * outside) + np.abs(o) + fraction
            return m, o, small & (sums <= INT32) & (shifted(sums, s) <= room)

        best = largest_shift(31, at)
        second = np.clip(rounded(window * 2.0**best.shift), -32767, 32767)
        if not best.fits.all():  # an offset of more than 2^16: the clamp cuts it off wherever it is cut off here
            most = room - fraction - (best.weight + np.abs(second)) * taps * outside
            if (most < 0).any():
                self.refuse(op.name, f"sums over {taps} taps, which is too many for 32 bits")
            best.offset = np.where(best.fits, best.offset, np.clip(best.offset, -most, most))
        coarse = int(((best.weight < 1 << 14) & (a != 0) & (best.shift < 31) & (taps >= 1 << best.shift)).sum())
        if coarse:
            self.warnings.append(
                f"{op.name}: {coarse} of {channels} channels have an offset so large that their multiplier keeps "
                "fewer than 15 bits"
            )
        signs = positive ^ negative[:, None, None, None]
        scale = best.weight if core.window_scale is None else np.stack([best.weight, second])
        constants = _constants(self.below(op, best.offset), best.shift, weight=("bits", signs), scale=("i16", scale))
        return self.stored(op, constants, steps)

    def below(self, op: Fused, offset: np.ndarray) -> np.ndarray:
        """Offsets with which a sum of exactly 0 ends up below 0 where that is to count as negative."""
        return offset - (self.zeros.strict(op) & (self.centre(op) == 0.5))

    def cut(self, op: Fused, line: Line, steps: float) -> None:
        """A scale of more than 16 bits: every sum but one is beyond the clamp, and mostly stays there."""
        steep = np.abs(line.a) > 32767
        if steep.any():
            count = f"{int(steep.sum())} of {len(steep)} channels"
            self.warnings.append(f"{op.name}: {count} have a scale over {32767 / steps:.2g}, cut to that")
            line.a = np.where(steep, np.sign(line.a) * 32767, line.a)
            line.value = np.where(steep, np.clip(line.value, -32766, 32766), line.value)  # right signs beside y

    def conv(self, op: Fused, core: ir.Conv) -> Lowered:
        a, b = _scale_and_offset(op, len(core.weight))
        w = channels_last(core.weight.astype(np.float64)) * a[:, None, None, None]
        whole: Callable[[np.ndarray], np.ndarray] = rounded
        steps = self.scales.before(op)
        pixels, wide = isinstance(op.source, ir.Input), self.scales.is_wide(op)
        group = np.arange(len(w)) // (len(w) // core.groups)
        read = (group[:, None] * w.shape[-1] + np.arange(w.shape[-1]))[:, None, None, :]  # channels of each weight
        if pixels:
            w *= steps / (255.0 * self.std.astype(np.float64)[read])
            centre = -255.0 * self.mean.astype(np.float64)[read]
            zeros = np.floor(self.mean.astype(np.float64) * 65280 + 0.5)[read]
            largest, width = 255, self.stem_width
            if core.groups == 1:
                whole = partial(rounded_together, r=like_pixels(core.window, self.std.astype(np.float64)))
        else:
            source = self.source(op)
            w *= steps / source.steps
            centre, zeros = source.centre[read], np.zeros(1)
            largest, width = source.limit, self.width
        residual = self.residual(op)
        room = INT32 // 2 if wide else INT32 - residual.limit
        unit = 256 if pixels and width == 8 else 1  # what a weight of 1 counts

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weight = whole(w * (2.0**s / unit))
            counts = weight * float(unit)  # exact as long as it matters
            taken = np.floor((counts * zeros).sum(axis=(1, 2, 3)) / 256 + 0.5)  # off by the op, inside the image
            added = b * steps + residual.centre + (0.5 - self.centre(op))
            o = floored(added * 2.0**s + (counts * centre).sum(axis=(1, 2, 3)) + taken)
            size = np.abs(counts)
            sums = largest * size.sum(axis=(1, 2, 3)) + np.abs(o).astype(np.float64)
            sums += np.ceil((size * np.abs(zeros)).sum(axis=(1, 2, 3)) / 256) + 1
            small = size.max(axis=(1, 2, 3)) <= unit * _PEAK[width]
            return weight, o, small & (sums <= INT32) & (sums / 2**s + 1 <= room)

        best = largest_shift_of_weights(31, at)
        if not best.fits.all():
            count = int((~best.fits).sum())
            self.refuse(op.name, f"{count} channels have weights or offsets too large for {width} bits")
        constants = _constants(self.below(op, best.offset), best.shift, weight=(_KIND[width], best.weight))
        if not wide:
            return self.stored(op, constants, steps)
        self.maps[op.value] = _Map("i32", steps, np.full(len(w), self.centre(op)), room)
        return Lowered(op, "i32", constants, steps=steps, sum_steps=steps, centre=self.maps[op.value].centre)

    def avgpool(self, op: Fused, core: ir.AvgPool) -> Lowered:
        source = self.source(op)
        channels, taps = core.shape[0], core.window[0] * core.window[1]
        if taps > 65535:
            self.refuse(op.name, f"averages {taps} pixels, integers go to 65535")
        a, b = _scale_and_offset(op, channels)
        peak = float((np.abs(a) * (source.peak / source.steps) + np.abs(b)).max())
        steps = self.for_classifier(op, peak) or self.scales.before(op)
        a = a * (steps / source.steps)
        added = b * steps + a * source.centre + self.residual(op).centre + (0.5 - self.centre(op))
        line = Line(a / taps, added, source.peak * taps)
        self.cut(op, line, steps / source.steps)
        constants = self.scaled(op, line, _LIMIT * taps)
        return self.stored(op, constants, steps, min(_LIMIT, peak * steps + 1))

    def mul(self, op: Fused) -> Lowered:
        assert op.other is not None
        source, other, steps = self.source(op), self.maps[op.other], self.scales.before(op)
        a, b = _scale_and_offset(op, op.value.shape[0])
        a = a * (steps / source.steps / other.steps)
        added = b * steps + a * source.centre * other.centre + (0.5 - self.centre(op))
        line = Line(a, added, source.peak * other.peak)
        return self.stored(op, self.scaled(op, line, _LIMIT**2), steps)

    def scaled(self, op: Fused, line: Line, largest: int) -> dict[str, tuple[str, np.ndarray]]:
        """Multiplier, offset and shift of sums of at most `largest`, which are formed in 64 bits."""
        room = INT32 - 32768 - self.residual(op).limit

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            size, far = np.minimum(np.abs(m), 32768), np.minimum(np.abs(o), INT32 + 1)
            return m, o, (size <= 32767) & (far <= INT32) & (shifted(largest * size + far, s) <= room)

        best = largest_shift(47, at)
        if not best.fits.all():
            self.refuse(op.name, f"{int((~best.fits).sum())} channels have a scale or offset too large for 16 bits")
        return _constants(self.below(op, best.offset), best.shift, scale=("i16", best.weight))

    def moved_centre(self, op: Fused) -> tuple[np.ndarray, int]:
        """Centres of the numbers that an op without a shift moves, and what it puts where there is none."""
        source, core = self.source(op), op.core
        if isinstance(core, ir.ChannelPad):
            return np.pad(source.centre, (core.before, core.after)), 0
        if isinstance(core, ir.Concat):
            assert op.other is not None
            return np.concatenate([source.centre, self.maps[op.other].centre]), 0
        if not isinstance(core, ir.Gather):
            return source.centre, 0
        absent = core.channels < 0
        at = core.value * source.steps - (0 if absent.any() else source.centre[0])
        half = np.ceil(at - 0.5) if self.zeros.strict(op).any() else np.floor(at + 0.5)
        empty = int(np.clip(half, -32768, 32767))
        return np.where(absent, core.value * source.steps - empty, source.centre[core.channels]), empty

    def moved(self, op: Fused) -> Lowered:
        """maxpool, channel_pad, gather, bilinear, concat and eltwise: the input's numbers as they are."""
        source, core = self.source(op), op.core
        centre, empty = self.moved_centre(op)
        limit, peak = max(source.limit, abs(empty)), max(source.peak, abs(empty))
        constants: dict[str, tuple[str, np.ndarray]] = {}
        if isinstance(core, ir.Concat):
            assert op.other is not None
            other = self.maps[op.other]
            limit, peak = max(limit, other.limit), max(peak, other.peak)
        if isinstance(core, (ir.Gather, ir.Bilinear)):
            constants["weight"] = ("i32", positions(core))
        if op.residual is not None:
            centre, peak = centre + self.residual(op).centre, _LIMIT
        lowered = self.stored(op, constants, source.steps, peak, centre)
        lowered.pad_value = empty
        if op.act is None and op.residual is None and isinstance(core, _KEEPING):
            self.maps[op.value].limit = limit
        return lowered

    def to_float(self, op: Fused) -> Lowered:
        source = self.source(op)
        scale = np.full(op.value.shape[0], 1 / source.steps)
        return Lowered(op, "f32", {"scale": ("f64", scale), "offset": ("f64", source.centre)})

    def linear(self, op: Fused, core: ir.Linear) -> Lowered:
        """W = w * 2^e per class, q = logit * 2^g for all; e as large as the width allows, g as the bound allows."""
        source = self.source(op)
        classes = len(core.weight)
        a, b = _scale_and_offset(op, classes)
        pixels = core.weight.shape[1] // len(source.centre)
        b = b + a * (core.weight * np.tile(source.centre, pixels)).sum(axis=1) / source.steps
        fraction = round(np.log2(source.steps))
        w = core.weight.astype(np.float64) * a[:, None] * (2.0**fraction / source.steps)
        peak = _PEAK[self.width]
        size = np.abs(w).max(axis=1)
        exponent = np.floor(np.log2(peak / np.maximum(size, 1e-30))).astype(np.int64)
        exponent -= np.rint(size * 2.0**exponent) > peak
        exponent = np.minimum(exponent, exponent.min() + 16)  # finer than 2^-16 of the largest weight is no use
        weight = rounded(w * 2.0 ** exponent[:, None])
        sums = _LIMIT * np.abs(weight).sum(axis=1)
        lowest = int(exponent.max()) + fraction - 47

        def fits(g: int) -> bool:
            return bool(((sums >> (exponent + fraction - g)) + 1 + np.abs(rounded(b * 2.0**g)) <= INT32).all())

        choices = range(int(exponent.min()) + fraction, lowest - 1, -1)
        g = next((g for g in choices if abs(g) < 120 and fits(g)), None)
        if g is None:
            self.refuse(op.name, "its weights and biases are too far apart in size for 32 bits")
        shift, scale = exponent + fraction - g, np.array([2.0**-g])
        offset = rounded(b * 2.0**g)
        return Lowered(op, "f32", _constants(offset, shift, weight=(_KIND[self.width], weight), scale=("f32", scale)))


def _constants(
    offset: np.ndarray, shift: np.ndarray, **others: tuple[str, np.ndarray]
) -> dict[str, tuple[str, np.ndarray]]:
    """The tensors of an op, in the order in which they are stored."""
    return {**others, "offset": ("i32", offset), "shift": ("u8", shift)}


def _scale_and_offset(op: Fused, channels: int) -> tuple[np.ndarray, np.ndarray]:
    if op.affine is None:
        return np.ones(channels), np.zeros(channels)
    return op.affine.scale, op.affine.offset
