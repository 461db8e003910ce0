"""Quantize: fused ops get integer constants, as docs/numerics.md says under "What the exporter chooses".

Every map has steps and a centre: an integer n of it stands for (n + centre) / steps. A shift drops fractions, so what
it leaves is centred at 1/2, and has the sign of what was computed, exactly. The stream's 16 bits are its clamp at 1:
32767.5 steps, or 14 bits where a real convolution reads it. Raw dots have 1 step, what a classifier reads a power of
two that fits. Constants are per channel: with a shift s that is as large as the bounds allow, multipliers and weights
keep as many significant bits as they can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import ExportError
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
from ovsw.export.passes.legalize import is_integer_clamp
from ovsw.export.passes.lower import Lowered, channels_last

TOP = 32767.5  # steps of the stream's largest clamp: 16 bits, centred
READ_TOP = 8191.5  # the same where a real convolution reads the stream: 14 bits leave more to its weights
INT32 = 2**31 - 1
WIDTHS = {"int16": 16, "int8": 8}
_PEAK = {16: 32767, 8: 127}
_KIND = {16: "i16", 8: "i8"}
_FEW = 5  # fraction bits of what a classifier reads; fewer are reported
_LIMIT = 32768  # the largest |x| of an i16 that is not clamped
_SLOPE = 1 << 14  # a slope of 1


class NotIntegerError(ExportError):
    """The network cannot be computed in integers; the message names the first layer for which that is so."""


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
) -> tuple[list[Lowered], list[str]]:
    """The ops in integers, and warnings. `weights` is the width of real weights, `stem` that of those on pixels.

    Raises NotIntegerError.
    """
    mean32, std32 = (np.asarray(values, np.float32) for values in (mean, std))
    quantizer = _Quantizer(ops, mean32, std32, WIDTHS[weights], WIDTHS[stem or weights])
    return quantizer.run(), quantizer.warnings


def _slopes(act: ir.Act) -> np.ndarray:
    slopes = np.asarray(act.slope, np.float64)
    steps = rounded(slopes * _SLOPE)
    if (np.abs(steps) >= 2 * _SLOPE).any():
        raise NotIntegerError(f"{act.name}: a slope is {np.abs(slopes).max():g}, integers have less than 2")
    return steps


@dataclass
class _Quantizer:
    ops: list[Fused]
    mean: np.ndarray
    std: np.ndarray
    width: int
    stem_width: int
    warnings: list[str] = field(default_factory=list)

    def run(self) -> list[Lowered]:
        self.readers: dict[ir.Node, list[Fused]] = defaultdict(list)  # of each map, once per reading; signs are no maps
        for op in self.ops:
            for node in (op.source, op.residual):
                if node is not None and not isinstance(node, ir.Sign):
                    self.readers[node].append(op)
        self.maps: dict[ir.Node, _Map] = {}
        clamps = [max(abs(op.act.lo), abs(op.act.hi)) for op in self.ops if op.act and is_integer_clamp(op.act)]
        self.largest_clamp = max([1.0, *clamps])
        self.read = self.read_by_convolutions()
        lowered = [self.op(op) for op in self.ops]
        if not isinstance(self.ops[-1].core, ir.Linear):
            self.refuse(self.ops[-1].name, "the network does not end with a linear layer")
        return lowered

    def read_by_convolutions(self) -> set[ir.Node]:
        """The maps that real convolutions read, and those that are added to them or handed on to them."""
        read = {op.source for op in self.ops if isinstance(op.core, ir.Conv) and not isinstance(op.source, ir.Input)}
        before = 0
        while len(read) > before:
            before = len(read)
            for op in self.ops:
                handed_on = op.core is None or isinstance(op.core, (ir.MaxPool, ir.ChannelPad))
                tied = {op.value, *([op.residual] if op.residual else []), *([op.source] if handed_on else [])}
                if tied & read:
                    read |= tied
        return read

    def stream(self, op: Fused) -> float:
        """Steps of the residual stream that the op writes."""
        return (READ_TOP if op.value in self.read else TOP) / self.largest_clamp

    @staticmethod
    def refuse(name: str, reason: str) -> NoReturn:
        raise NotIntegerError(f"{name}: {reason}")

    def op(self, op: Fused) -> Lowered:
        core = op.core
        if isinstance(op.source, ir.Input) and not isinstance(core, ir.Conv):
            self.refuse(op.name, "reads the pixels, which only convolutions can do in integers")
        if op.act is not None and op.act.kind == "clamp" and not is_integer_clamp(op.act):
            self.refuse(op.act.name, f"clamps to {op.act.lo:g}..{op.act.hi:g}, integers go from -2 to 2 only")
        if isinstance(op.residual, ir.Input):
            self.refuse(op.name, "adds the pixels, which integers cannot do")
        if isinstance(core, ir.Dot):
            return self.bconv(op, core)
        if isinstance(core, ir.Conv):
            return self.conv(op, core)
        if isinstance(core, ir.Linear):
            return self.linear(op, core)
        if isinstance(core, ir.AvgPool):
            return self.avgpool(op, core)
        return self.moved(op)

    # What an op reads and writes.

    def source(self, op: Fused) -> _Map:
        source = self.maps[op.source]
        if source.kind != "i16":
            self.refuse(op.name, f"reads the result of {op.source.name}, which is not clamped")
        return source

    def residual(self, op: Fused) -> _Map:
        """What is added, which has to be in the stream's steps; zeros where nothing is."""
        if op.residual is None:
            return _Map("i16", self.stream(op), np.zeros(op.value.shape[0]), limit=0)
        added = self.maps[op.residual]
        if added.steps != self.stream(op):
            self.refuse(op.name, f"adds {op.residual.name}, which is not of the residual stream")
        return added

    def only_reader(self, op: Fused, role: Callable[[Fused], bool]) -> bool:
        """Whether the op's map is all that is stored, and each of its readers passes."""
        readers = self.readers[op.value]
        return op.wants_map and not op.wants_bits and bool(readers) and all(map(role, readers))

    def stored(
        self,
        op: Fused,
        constants: dict[str, tuple[str, np.ndarray]],
        steps: float,
        peak: float = _LIMIT,
        centre: np.ndarray | None = None,
    ) -> Lowered:
        """The op, clamped if it has a clamp; notes what is known of its result, whose centre usually is a shift's."""
        centre = np.full(op.value.shape[0], 0.5) if centre is None else centre
        lowered = Lowered(op, "i16", constants, steps=steps, centre=centre)
        if op.act is not None and op.act.slope is not None:
            if (centre != 0.5).any():
                self.refuse(op.act.name, "reads numbers that are not centred, a prelu in integers needs a scale before")
            lowered.act = "prelu"
            lowered.constants["slope"] = ("i16", _slopes(op.act))
            self.maps[op.value] = _Map("i16", steps, centre)
        elif op.act is not None:
            lo, hi = (int(np.clip(np.rint(n * steps - 0.5), -32768, 32767)) for n in (op.act.lo, op.act.hi))
            lowered.act, lowered.clamp = "clamp", (lo, hi)
            self.maps[op.value] = _Map("i16", steps, centre, max(abs(lo), abs(hi)), max(abs(lo + 0.5), abs(hi + 0.5)))
        else:
            self.maps[op.value] = _Map("i16", steps, centre, peak=peak)
        return lowered

    def unclamped(self, op: Fused) -> None:
        if not is_integer_clamp(op.act) and op.wants_map:
            self.refuse(op.name, "its result is not clamped before it is stored, integers need a hardtanh there")

    def for_classifier(self, op: Fused, peak: float) -> float | None:
        """Steps of a result that is not clamped and that only linear layers read: a power of two that fits."""
        alone = not is_integer_clamp(op.act) and op.residual is None
        if not alone or not self.only_reader(op, lambda reader: isinstance(reader.core, ir.Linear)):
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
        bare = op.affine is None and op.residual is None and op.act is None
        if bare and taps <= 32767:
            ones, zeros = np.ones(channels, np.int64), np.zeros(channels, np.int64)
            constants = _constants(zeros, zeros, weight=("bits", positive), scale=("i16", ones))
            return self.stored(op, constants, steps=1.0, peak=taps, centre=np.zeros(channels))
        a, b = _scale_and_offset(op, channels)
        free = self.for_classifier(op, float((np.abs(a) * taps + np.abs(b)).max())) if op.act is not None else None
        if free is None:
            self.unclamped(op)
        negative, residual, steps = a < 0, self.residual(op), self.stream(op) if free is None else free
        line = Line(np.abs(a) * steps, b * steps + residual.centre, taps)
        room = INT32 - residual.limit
        steep = line.a > 32767
        if steep.any():  # every dot product but one is beyond the clamp, and mostly stays there
            count = f"{int(steep.sum())} of {channels} channels"
            self.warnings.append(f"{op.name}: {count} have a scale over {32767 / steps:.2g}, cut to that")
            line.a = np.where(steep, 32767, line.a)
            line.value = np.where(steep, np.clip(line.value, -65534, 65534), line.value)

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            sums = np.where(m <= 32767, m, 0) * taps + np.abs(o)
            return m, o, (m <= 32767) & (sums <= INT32) & (shifted(sums, s) <= room)

        best = largest_shift(31, at)
        if not best.fits.all():  # an offset of more than 2^16: the clamp cuts it off wherever it is cut off here
            most = np.minimum(INT32, room) - best.weight * taps
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
        constants = _constants(best.offset, best.shift, weight=("bits", signs), scale=("i16", best.weight))
        return self.stored(op, constants, steps)

    def conv(self, op: Fused, core: ir.Conv) -> Lowered:
        a, b = _scale_and_offset(op, len(core.weight))
        w = channels_last(core.weight.astype(np.float64)) * a[:, None, None, None]
        whole: Callable[[np.ndarray], np.ndarray]
        steps = self.stream(op)
        pixels, wide = isinstance(op.source, ir.Input), False
        if pixels:
            w *= steps / (255.0 * self.std.astype(np.float64))
            centre = -255.0 * self.mean.astype(np.float64)
            zeros = np.floor(self.mean.astype(np.float64) * 65280 + 0.5)
            largest, width = 255, self.stem_width
            alike = like_pixels(core.window, self.std.astype(np.float64))
            whole = partial(rounded_together, r=alike)
        else:
            source = self.source(op)
            w *= steps / source.steps
            centre, zeros = source.centre, np.zeros(w.shape[-1])
            largest, width, whole = source.limit, self.width, rounded
            bare = op.act is None and op.residual is None
            wide = bare and self.only_reader(op, lambda reader: reader.source is not op.value)
        if not wide:
            self.unclamped(op)
        residual = self.residual(op)
        room = INT32 // 2 if wide else INT32 - residual.limit
        unit = 256 if pixels and width == 8 else 1  # what a weight of 1 counts

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weight = whole(w * (2.0**s / unit))
            counts = weight * float(unit)  # exact as long as it matters
            taken = np.floor((counts * zeros).sum(axis=(1, 2, 3)) / 256 + 0.5)  # off by the op, inside the image
            o = floored((b * steps + residual.centre) * 2.0**s + (counts * centre).sum(axis=(1, 2, 3)) + taken)
            size = np.abs(counts)
            sums = largest * size.sum(axis=(1, 2, 3)) + np.abs(o).astype(np.float64)
            sums += np.ceil((size * np.abs(zeros)).sum(axis=(1, 2, 3)) / 256) + 1
            small = size.max(axis=(1, 2, 3)) <= unit * _PEAK[width]
            return weight, o, small & (sums <= INT32) & (sums / 2**s + 1 <= room)

        best = largest_shift_of_weights(31, at)
        if not best.fits.all():
            count = int((~best.fits).sum())
            self.refuse(op.name, f"{count} channels have weights or offsets too large for {width} bits")
        lowered = self.stored(op, _constants(best.offset, best.shift, weight=(_KIND[width], best.weight)), steps)
        if wide:
            lowered.kind = self.maps[op.value].kind = "i32"
            self.maps[op.value].limit = room
        return lowered

    def avgpool(self, op: Fused, core: ir.AvgPool) -> Lowered:
        source = self.source(op)
        channels, taps = core.shape[0], core.window[0] * core.window[1]
        if taps > 65535:
            self.refuse(op.name, f"averages {taps} pixels, integers go to 65535")
        a, b = _scale_and_offset(op, channels)
        steps = self.stream(op)
        peak = float((np.abs(a) * (source.peak / source.steps) + np.abs(b)).max())
        free = self.for_classifier(op, peak)
        if free is not None:
            steps = free
        elif op.act is not None or op.residual is not None or peak * steps > _LIMIT:
            self.unclamped(op)
        residual = self.residual(op)
        a = a * (steps / source.steps)
        line = Line(a / taps, b * steps + a * source.centre + residual.centre, source.peak * taps)
        room = INT32 - 32768 - residual.limit

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            size, far = np.minimum(np.abs(m), 32768), np.minimum(np.abs(o), INT32 + 1)
            sums = _LIMIT * taps * size + far
            return m, o, (size <= 32767) & (far <= INT32) & (shifted(sums, s) <= room)

        best = largest_shift(47, at)
        if not best.fits.all():
            self.refuse(op.name, f"{int((~best.fits).sum())} channels have a scale or offset too large for 16 bits")
        constants = _constants(best.offset, best.shift, scale=("i16", best.weight))
        return self.stored(op, constants, steps, min(_LIMIT, peak * steps + 1))

    def moved(self, op: Fused) -> Lowered:
        """maxpool, channel_pad and eltwise: the input's numbers as they are."""
        source = self.source(op)
        centre = source.centre
        if isinstance(op.core, ir.ChannelPad):
            centre = np.pad(centre, (op.core.before, op.core.after))
        if op.residual is not None:
            self.unclamped(op)
            centre = centre + self.residual(op).centre
            if source.steps != self.stream(op):
                self.refuse(op.name, f"adds to {op.source.name}, which is not of the residual stream")
        lowered = self.stored(op, {}, source.steps, source.peak, centre)
        if op.act is None and op.residual is None and op.core is not None:
            self.maps[op.value].limit = source.limit
        return lowered

    def linear(self, op: Fused, core: ir.Linear) -> Lowered:
        """W = w * 2^e per class, q = logit * 2^g for all; e as large as the width allows, g as the bound allows."""
        if op.value is not self.ops[-1].value or self.readers[op.value] or op.wants_bits:
            self.refuse(op.name, "a linear layer in the middle of the network is not available in integers")
        if op.residual is not None or op.act is not None:
            self.refuse(op.name, "nothing can follow the last linear layer in integers")
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
