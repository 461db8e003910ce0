"""Quantize: fused ops get integer constants, as docs/numerics.md says under "What the exporter chooses".

Every map has steps and a centre: its integer n stands for (n + centre) / steps. A shift drops fractions, so its results
are centred at 1/2 and have exactly the sign of the sum. Where 0 itself matters (`zeros`), sums are rounded instead, so
their centre is 0. `scales` has the steps; raw dots have steps of 1, and inputs of a classifier have a power of two that
fits. Constants are per channel: the shift s is as large as the bounds allow, so that multipliers and weights keep as
many significant bits as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from ovsw.bounds import OFFSET_UNIT
from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.ops.constants import INT32, LIMIT, PEAK, Line, integers, largest_shift, rounded, shifted
from ovsw.export.ops.fused import Fused, Lowered, Tensors
from ovsw.export.passes.scales import Ranges, Scales
from ovsw.export.passes.zeros import Zeros, ends_at_zero

WIDTHS = {"int16": 16, "int8": 8}
_FEW = 5  # fraction bits of what a classifier reads; fewer are reported
_NARROW = (-8192, 8191)  # what is clamped for a convolution that reads it
_SLOPE = 1 << 14  # a slope of 1
_WIDE_SLOPE = 1 << 30  # the same in a 32-bit stream
_SMALL_STEM = 0.02  # products of pixels for each binary one
_PIXEL = ((1, 1), (1, 1), (0, 0))  # window, stride and padding of an average over one
_WIDE_ENDS = 1 << 30  # the largest end of a clamp there


@dataclass
class _Map:
    """Facts about a value: the format guarantees |x| <= limit, and really |x + centre| <= peak."""

    kind: str
    steps: float
    centre: np.ndarray  # per channel
    limit: int = LIMIT
    peak: float = LIMIT


def quantize(
    ops: list[Fused],
    mean: Sequence[float],
    std: Sequence[float],
    weights: str = "int16",
    stem: str | None = None,
    ranges: Ranges | None = None,
    stream: str = "auto",
) -> tuple[list[Lowered], list[str]]:
    """The ops in integers, and warnings. `weights` is the width of real weights, `stem` that of those on pixels.

    `ranges` measures maps that are not clamped; `stream` is the width of residual streams that are not, "auto" is
    int32. Raises NotIntegerError.
    """
    mean32, std32 = (np.asarray(values, np.float32) for values in (mean, std))
    fine = stem == "int24" or (stem is None and weights == "int16" and _has_small_stem(ops))
    width, stem_width = WIDTHS[weights], 16 if fine else WIDTHS[stem or weights]
    scales = Scales(ops, ranges, mean32, std32, stream != "int16", PEAK[width], PEAK[stem_width])
    zeros = Zeros(ops, scales.readers)
    quantizer = Quantizer(scales, zeros, mean32, std32, width, stem_width, fine)
    if stem == "int24" and not any(isinstance(op.source, ir.Input) and scales.stored_wide(op) for op in ops):
        quantizer.warnings.append("the stem has 16 bits: 24 are for networks with a 32-bit stream")
    return [lowered for op in ops for lowered in quantizer.parts(op)], quantizer.warnings


def _has_small_stem(ops: list[Fused]) -> bool:
    """Whether what convolutions do with pixels is little beside what binary ones do."""
    stem, binary = 0.0, 0.0
    for op in ops:
        if isinstance(op.core, (ir.Conv, ir.Dot)):
            products = float(op.core.filters.size) * op.value.shape[1] * op.value.shape[2]
            if isinstance(op.source, ir.Input):
                stem += products
            elif isinstance(op.core, ir.Dot):
                binary += products
    return stem <= _SMALL_STEM * binary


def _is_centred(op: Fused, centre: np.ndarray) -> bool:
    """Whether the op's activation can read integers with these centres."""
    if op.act_kind == "step":
        return bool(((centre >= 0) & (centre < 1)).all())
    if op.act_kind == "prelu":
        return bool((centre == 0.5).all())
    return not ends_at_zero(op) or bool((centre == np.rint(centre)).all() and (centre == centre[0]).all())


def _slopes(act: ir.Act, one: int = _SLOPE) -> np.ndarray:
    """In steps of 1 / one, below zero and, if those above are not 1, above."""
    slopes = np.asarray(act.slopes(), np.float64)
    steps = rounded(slopes * one)
    if (np.abs(steps) >= 2 * one).any():
        raise NotIntegerError(f"{act.name}: a slope is {np.abs(slopes).max():g}, integer files need slopes below 2")
    return steps


@dataclass
class Quantizer:
    """Shared parts of integer ops; each op's own part is in its module of `export.ops`."""

    scales: Scales
    zeros: Zeros
    mean: np.ndarray
    std: np.ndarray
    width: int
    stem_width: int
    fine_stem: bool
    warnings: list[str] = field(default_factory=list)
    maps: dict[ir.Node, _Map] = field(default_factory=dict)

    @staticmethod
    def refuse(name: str, reason: str) -> NoReturn:
        raise NotIntegerError(f"{name}: {reason}")

    def parts(self, op: Fused) -> list[Lowered]:
        """The op, or two ops where its activation needs another centre than its input has."""
        if isinstance(op.core, (ir.Conv, ir.Linear)) and self.is_wide(op.source):
            narrow = self.narrowed_map(op, op.source)
            op.source = narrow.fused.value
            return [narrow, self.op(op)]
        if isinstance(op.core, ir.Mul) and op.other is not None and self.is_wide(op.other):
            narrow = self.narrowed_map(op, op.other)
            op.other = narrow.fused.value
            return [narrow, self.op(op)]
        if isinstance(op.core, ir.Conv) and isinstance(op.source, ir.Input) and self.scales.stored_wide(op):
            return self.two_stems(op, op.core) if self.fine_stem else [self.op(op)]
        if not op.copies_input or op.act is None:
            return [self.op(op)]
        if _is_centred(op, self.moved_centre(op)[0] + self.residual(op).centre):
            return [self.op(op)]
        if op.core is None and (op.residual is None or op.residual.shape == op.value.shape):
            op.core = ir.AvgPool(op.name, [op.source], op.value.shape, *_PIXEL)
            return [self.op(op)]
        (before,) = op.act.inputs
        moved = replace(op, value=before, act=None, sign=None, wants_map=True)
        self.scales.add(moved, like=op)
        self.zeros.add(moved, like=op)
        op.core = ir.AvgPool(f"{op.name}.centred", [before], op.value.shape, *_PIXEL)
        op.source, op.other, op.residual = before, None, None
        return [self.op(moved), self.op(op)]

    def is_wide(self, node: ir.Node) -> bool:
        return node in self.maps and self.maps[node].kind == "i32"

    def narrowed_map(self, op: Fused, node: ir.Node) -> Lowered:
        """What a convolution, a linear layer or a product takes of a 32-bit stream, in 16 bits."""
        value = ir.AvgPool(f"{op.name}.narrowed", [node], node.shape, *_PIXEL)
        narrow = Fused(value, node, value, wants_map=True)
        self.scales.add_narrow(narrow, node)
        self.zeros.add(narrow)
        return self.op(narrow)

    def two_stems(self, op: Fused, core: ir.Conv) -> list[Lowered]:
        """A convolution of pixels by weights of more bits: a second one has what rounding took from the first."""
        name = f"{op.name}.coarse"
        value = ir.Affine(name, [op.source], op.value.shape, *op.scale_and_offset())
        coarse = Fused(replace(core, name=name), op.source, value, affine=op.affine, wants_map=True)
        self.scales.add(coarse, like=op)
        self.zeros.add(coarse)
        first = self.op(coarse)
        kind, stored = first.constants["weight"]
        shift = first.constants["shift"][1][:, None, None, None]
        read = core.channels_of_weights()[:, None, None, :]
        unit = 255.0 * self.std.astype(np.float64)[read] * (256 if kind == "i8" else 1) / first.steps
        scale, _ = op.scale_and_offset()
        exact = core.weight * scale[:, None, None, None]
        rest = exact - (stored * 2.0**-shift * unit).transpose(0, 3, 1, 2)
        op.core, op.affine, op.residual = replace(core, weight=rest), None, coarse.value
        return [first, self.op(op)]

    def op(self, op: Fused) -> Lowered:
        return self.moved(op) if op.core is None else op.core.quantize(self, op)

    # What an op reads and writes.

    def source(self, op: Fused) -> _Map:
        return self.maps[op.source]

    def residual(self, op: Fused) -> _Map:
        """What is added, in the steps of the sum; zeros where nothing is."""
        if op.residual is None:
            return _Map("i16", self.scales.before(op), np.zeros(op.value.shape[0]), limit=0)
        return self.maps[op.residual]

    def stored(
        self,
        op: Fused,
        constants: Tensors,
        steps: float,
        peak: float = LIMIT,
        centre: np.ndarray | None = None,
        most: int = LIMIT,
    ) -> Lowered:
        """The op with its activation and its threshold; notes what is known of its result.

        The sum that the activation reads has `steps` and, usually a shift's, a `centre`. The op's own part of it is at
        most `most`, which matters in a 32-bit stream.
        """
        centre = np.full(op.value.shape[0], self.centre(op)) if centre is None else centre
        if self.scales.stored_wide(op):
            return self.stored_in_stream(op, constants, steps, centre, most)
        lowered = Lowered(op, "i16", constants, sum_steps=steps, centre=centre, measured=self.scales.is_measured(op))
        known = _Map("i16", steps, centre, peak=peak)
        if op.act is not None and op.act.kind in ("prelu", "step") and not _is_centred(op, centre):
            self.refuse(
                op.act.name, f"a {op.act.kind} in integers needs a scale before it, as its input is not centred"
            )
        if op.act is not None and op.act.kind == "prelu":
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
        elif op.core is None or not op.core.keeps_bound or op.residual is not None:
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

    def stored_in_stream(self, op: Fused, constants: Tensors, steps: float, centre: np.ndarray, most: int) -> Lowered:
        """An op that is part of a 32-bit stream: nothing is clamped that the network does not clamp."""
        size = most + self.residual(op).limit
        lowered = Lowered(op, "i32", constants, steps=steps, sum_steps=steps, centre=centre)
        if op.act is not None and op.act.kind == "prelu":
            slopes = _slopes(op.act, _WIDE_SLOPE)
            lowered.act = "prelu"
            lowered.constants["slope"] = ("i32", slopes)
            steepest = max(int(np.abs(slopes).max()), _WIDE_SLOPE)
            size = (size * steepest >> 30) + 1
        elif op.act is not None:
            most = min(_WIDE_ENDS, int(np.nextafter(np.float32(size + 1), np.float32(np.inf))))  # beyond all sums
            lo, hi = (int(np.float32(np.rint(np.clip(n * steps, -most, most)))) for n in (op.act.lo, op.act.hi))
            lowered.act, lowered.clamp, size = "clamp", (lo, hi), max(abs(lo), abs(hi))
        self.maps[op.value] = _Map("i32", steps, centre, size, size)
        self.binarised(op, lowered)
        return lowered

    def stored_wide(self, op: Fused, constants: Tensors, steps: float, limit: int) -> Lowered:
        """The same for sums that are kept in 32 bits."""
        centre = np.full(op.value.shape[0], self.centre(op))
        self.maps[op.value] = _Map("i32", steps, centre, limit)
        return Lowered(op, "i32", constants, steps=steps, sum_steps=steps, centre=centre)

    def narrowed(self, op: Fused, lo: int, hi: int) -> tuple[int, int]:
        return (max(lo, _NARROW[0]), min(hi, _NARROW[1])) if op.wants_map and self.scales.narrow(op) else (lo, hi)

    def beyond(self, op: Fused, act: ir.Act, lowered: Lowered) -> _Map:
        """An activation whose result has other steps than its input: a step or a sigmoid."""
        steps, channels = self.scales.after(op), op.value.shape[0]
        if act.kind == "step":
            low, high = (int(np.clip(np.rint(n * steps), -32768, 32767)) for n in (act.lo, act.hi))
            lowered.act, lowered.clamp = "step", (low, high)
            return _Map("i16", steps, np.zeros(channels), max(abs(low), abs(high)), max(abs(low), abs(high)))
        x = (np.arange(-32768, 32769, 256) + float(np.mean(lowered.centre))) / lowered.sum_steps  # type: ignore[arg-type]
        lowered.act = "table"
        lowered.constants["slope"] = ("i16", np.minimum(np.rint(steps / (1 + np.exp(-x))), 32767).astype(np.int64))
        return _Map("i16", steps, np.zeros(channels), LIMIT, steps)

    def binarised(self, op: Fused, lowered: Lowered) -> None:
        """(n + centre) / steps >= threshold, or > threshold, as n >= an integer."""
        if op.sign is None:
            return
        known, (level, strict) = self.maps[op.value], op.sign.levels()
        at = level * known.steps - known.centre
        lowest, highest = (-INT32 - 1, INT32) if known.kind == "i32" else (-32768, 32767)
        threshold = np.clip(np.where(strict, np.floor(at) + 1, np.ceil(at)), lowest, highest).astype(np.int64)
        if threshold.any() or (known.kind == "i32" and not op.wants_map):  # which makes it compute in 32 bits
            lowered.constants["threshold"] = (known.kind, threshold)

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

    # What several ops do.

    def below(self, op: Fused, offset: np.ndarray) -> np.ndarray:
        """Offsets with which a sum of exactly 0 ends up below 0 where that is to count as negative."""
        return offset - (self.zeros.strict(op) & (self.centre(op) == 0.5))

    def cut(self, op: Fused, line: Line, steps: float) -> None:
        """A scale of more than 16 bits: every sum but one is beyond the clamp, and mostly stays there."""
        steep = np.abs(line.a) > 32767
        if steep.any():
            count = f"{int(steep.sum())} of {len(steep)} channels"
            self.warnings.append(f"{op.name}: {count} have a scale over {32767 / steps:.2g} and are limited to it")
            line.a = np.where(steep, np.sign(line.a) * 32767, line.a)
            line.value = np.where(
                steep, np.clip(line.value, -32766, 32766), line.value
            )  # keeps the signs of the neighbours of y

    def scaled(self, op: Fused, line: Line, largest: int, steps: float, peak: float = LIMIT) -> Lowered:
        """An op whose sums of at most `largest` are formed in 64 bits, with multiplier, offset and shift."""
        room = INT32 - 32768 - self.residual(op).limit
        most, unit = (62, OFFSET_UNIT) if self.source(op).kind == "i32" else (47, 1)

        def at(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s, unit)
            size, far = np.minimum(np.abs(m), 32768), np.minimum(np.abs(o), INT32 + 1)
            return m, o, (size <= 32767) & (far <= INT32) & (shifted(largest * size + far * unit, s) <= room)

        best = largest_shift(most, at)
        if not best.fits.all():
            self.refuse(op.name, f"{int((~best.fits).sum())} channels have a scale or offset too large for 16 bits")
        offset = self.below(op, best.offset)
        constants = integers(offset, best.shift, scale=("i16", best.weight))
        sums = shifted(largest * np.abs(best.weight) + np.abs(offset) * unit, best.shift)
        return self.stored(op, constants, steps, peak, most=int(sums.max()) + LIMIT)

    def moved_centre(self, op: Fused) -> tuple[np.ndarray, int]:
        """Centres of the integers that an op without a shift copies, and what it puts where there is none."""
        return (self.source(op).centre, 0) if op.core is None else op.core.moved_centre(self, op)

    def moved(self, op: Fused) -> Lowered:
        """An op without a shift: the input's integers as they are."""
        source, (centre, empty) = self.source(op), self.moved_centre(op)
        maps = [source] if op.other is None else [source, self.maps[op.other]]
        limit, peak = max(abs(empty), *(m.limit for m in maps)), max(abs(empty), *(m.peak for m in maps))
        if op.residual is not None:
            centre, peak = centre + self.residual(op).centre, LIMIT
        constants = {} if op.core is None else op.core.tensors()
        lowered = self.stored(op, constants, source.steps, peak, centre, limit)
        lowered.pad_value = empty
        if op.only_moves and op.core is not None and op.core.keeps_bound:
            self.maps[op.value].limit = limit
        return lowered
