"""Step 4b, quantize: folded ops become integer ops, as docs/numerics.md says under "What the exporter chooses".

Every map has steps and a centre: an integer n of it stands for (n + centre) / steps. A shift drops fractions, so what
it leaves is centred at 1/2, and has the sign of what was computed, exactly. The stream's 16 bits are its clamp at 1:
32767.5 steps, or 14 bits where a real convolution reads it. Raw dots have 1 step, what a classifier reads a power of
two that fits. Constants are per channel: with a shift s that is as large as the bounds allow, multipliers and weights
keep as many significant bits as they can.

Needs no torch: `ovsw.bench` makes its networks with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.fold import Fused

TOP = 32767.5  # steps of the stream's largest clamp: 16 bits, centred
READ_TOP = 8191.5  # the same where a real convolution reads the stream: 14 bits leave more to its weights
INT32 = 2**31 - 1
WIDTHS = {"int16": 16, "int8": 8}
_PEAK = {16: 32767, 8: 127}
_FEW = 5  # fraction bits of what a classifier reads; fewer are reported
_ALIKE = 0.95  # correlation of neighbouring pixels, and of colours
_LIMIT = 32768  # the largest |x| of an i16 that is not clamped


class NotIntegerError(ExportError):
    """The network cannot be computed in integers; the message names the first layer for which that is so."""


@dataclass(eq=False)
class Integer:
    """One op of an integer file. `fused` says what it reads and writes; `kind`, `steps` and `centre` are its map's."""

    fused: Fused
    kind: str = "i16"
    steps: float = 1.0
    centre: np.ndarray | None = None  # per channel; None with logits
    weight: np.ndarray | None = None  # (out, height, width, in) or (out, features); bool for binary ones
    width: int = 16
    scale: np.ndarray | None = None
    offset: np.ndarray | None = None
    shift: np.ndarray | None = None
    clamp: tuple[int, int] | None = None


@dataclass
class _Map:
    """What is known of a value: |x| <= limit by the rules of the format, |x + centre| <= peak in truth."""

    kind: str
    steps: float
    centre: np.ndarray  # per channel
    limit: int = _LIMIT
    peak: float = _LIMIT


@dataclass
class _Constants:
    weight: np.ndarray
    offset: np.ndarray
    shift: np.ndarray
    fits: np.ndarray


def quantize(
    ops: list[Fused],
    mean: Sequence[float],
    std: Sequence[float],
    weights: str = "int16",
    stem: str | None = None,
) -> tuple[list[Integer], list[str]]:
    """The ops in integers, and warnings. `weights` is the width of real weights, `stem` that of those on pixels.

    Raises NotIntegerError.
    """
    mean32, std32 = (np.asarray(values, np.float32) for values in (mean, std))
    quantizer = _Quantizer(_legal(ops), mean32, std32, WIDTHS[weights], WIDTHS[stem or weights])
    return quantizer.run(), quantizer.warnings


# --- ops that integers have ------------------------------------------------------------------------------------------


def _legal(ops: list[Fused]) -> list[Fused]:
    """The same network in ops that the integer mode has: pools do not scale, the logits come from a Linear."""
    made: list[Fused] = []
    for op in _lifted(ops):
        if op is ops[-1] or op.value is ops[-1].value:
            op = _classifier(op)
        made += _split(op)
    return made


def _readers(ops: list[Fused]) -> dict[ir.Node, list[Fused]]:
    """Who reads each map, once per reading; signs are no maps."""
    found: dict[ir.Node, list[Fused]] = {}
    for op in ops:
        for node in (op.source, op.residual):
            if node is not None and not isinstance(node, ir.Sign):
                found.setdefault(node, []).append(op)
    return found


def _lifted(ops: list[Fused]) -> list[Fused]:
    """clamp(a * max(n) + b) = max(clamp(a * n + b)) where a >= 0: `fold` moves pools forward, here they go back."""
    readers = _readers(ops)
    changed: dict[Fused, Fused] = {}
    by_value = {op.value: op for op in ops}
    for pool in ops:
        source = by_value.get(pool.source)
        bare = source is not None and not (source.affine or source.residual or source.act or source.wants_bits)
        if not isinstance(pool.core, ir.MaxPool) or source is None or not bare or len(readers[pool.source]) != 1:
            continue
        if not isinstance(source.core, (ir.Dot, ir.Conv)) or pool.residual is not None or not _is_clamp(pool.act):
            continue
        if pool.affine is not None and (pool.affine.scale >= 0).all():
            changed[source] = replace(source, affine=pool.affine, act=pool.act)
            changed[pool] = replace(pool, affine=None, act=None)
    return [changed.get(op, op) for op in ops]


def _classifier(op: Fused) -> Fused:
    """A convolution over the whole map as the Linear that it is."""
    core = op.core
    if not isinstance(core, ir.Conv) or core.kernel != core.inputs[0].shape[1:] or any(core.pad):
        return op
    weight = core.weight.transpose(0, 2, 3, 1).reshape(len(core.weight), -1)
    return replace(op, core=ir.Linear(core.name, core.inputs, core.shape, weight))


def _split(op: Fused) -> list[Fused]:
    """Scaling is an average over one pixel where the op itself cannot scale."""
    if op.affine is None or not (op.core is None or isinstance(op.core, (ir.MaxPool, ir.ChannelPad))):
        return [op]
    first: list[Fused] = []
    source = op.source
    if op.core is not None:
        first = [Fused(op.core, op.source, op.core, wants_map=True)]
        source = op.core
    one = (1, 1)
    core = ir.AvgPool(op.affine.name, [source], source.shape, one, one, (0, 0))
    return [*first, replace(op, core=core, source=source)]


def _is_clamp(act: ir.Act | None) -> bool:
    return act is not None and act.kind == "clamp" and max(abs(act.lo), abs(act.hi)) <= 2


# --- numbers ---------------------------------------------------------------------------------------------------------


def _largest_shift(most: int, at: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]) -> _Constants:
    """Per channel, the constants at the largest shift for which they fit; at 0 where they never do.

    `at(s)` gives weights or multipliers, offsets, and whether they fit.
    """
    weight, offset, fits = at(0)
    shift = np.zeros(len(offset), np.int64)
    for s in range(1, most + 1):
        w, o, ok = at(s)
        weight[ok], offset[ok], shift[ok] = w[ok], o[ok], s
        fits = fits | ok
    return _Constants(weight, offset, shift, fits)


def _rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest integer, within 62 bits: what is larger fits nowhere."""
    return np.rint(np.clip(x, -(2.0**62), 2.0**62)).astype(np.int64)


def _floor(x: np.ndarray) -> np.ndarray:
    """As above, downwards. As the sums it is added to are whole, an offset loses nothing of what the shift keeps."""
    return np.floor(np.clip(x, -(2.0**62), 2.0**62)).astype(np.int64)


def _like_pixels(kernel: tuple[int, int], std: np.ndarray) -> np.ndarray:
    """The upper triangular R for which |R e| is the size of what errors e of weights come to on an ordinary image.

    Neighbouring pixels and colours are correlated, with _ALIKE per pixel of distance and between colours.
    """
    places = np.indices(kernel).reshape(2, -1).T
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    colours = np.outer(std, std) * np.where(np.eye(len(std)) > 0, 1.0, _ALIKE)
    return np.linalg.cholesky(np.kron(_ALIKE**distance, colours)).T


def _rounded_together(w: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Whole numbers near the rows of w: one by one, each such that it makes up for the errors of those before."""
    rows = np.clip(w.reshape(len(w), -1), -(2.0**62), 2.0**62)
    errors = np.zeros_like(rows)
    for i in reversed(range(len(r))):
        wanted = errors[:, i + 1 :] @ r[i, i + 1 :] / -r[i, i]
        errors[:, i] = np.rint(rows[:, i] + wanted) - rows[:, i]
    return _rounded(rows + errors).reshape(w.shape)


@dataclass
class _Line:
    """a * y + b, in steps, for whole y of at most `largest`.

    Rounding a errs by more the larger y is, and what counts are the y for which the result is near 0. So the offset is
    the one that is right at the y nearest to that, which with a mean far from 0 is several steps better.
    """

    a: np.ndarray
    b: np.ndarray
    largest: float

    def __post_init__(self) -> None:
        safe = np.where(self.a == 0, 1.0, self.a)
        self.y = np.where(self.a == 0, 0.0, np.clip(np.rint(-self.b / safe), -self.largest, self.largest))
        self.value = self.a * self.y + self.b

    def at(self, s: int) -> tuple[np.ndarray, np.ndarray]:
        """Multipliers and offsets for a shift of s, whether they fit or not."""
        m = np.clip(_rounded(self.a * 2.0**s), -(1 << 31), 1 << 31)
        return m, _floor(self.value * 2.0**s) - m * self.y.astype(np.int64)


def _shifted(sums: np.ndarray, s: int) -> np.ndarray:
    return -(-sums >> s)


@dataclass
class _Quantizer:
    ops: list[Fused]
    mean: np.ndarray
    std: np.ndarray
    width: int
    stem_width: int
    warnings: list[str] = field(default_factory=list)

    def run(self) -> list[Integer]:
        self.readers = _readers(self.ops)
        self.maps: dict[ir.Node, _Map] = {}
        clamps = [max(abs(op.act.lo), abs(op.act.hi)) for op in self.ops if _is_clamp(op.act) and op.act is not None]
        self.largest_clamp = max([1.0, *clamps])
        self.read = self.read_by_convolutions()
        made = [self.op(op) for op in self.ops]
        if not isinstance(self.ops[-1].core, ir.Linear):
            self.refuse(self.ops[-1].name, "the network does not end with a linear layer")
        return made

    def read_by_convolutions(self) -> set[ir.Node]:
        """The maps that real convolutions read, and those that are added to them or handed on to them."""
        found = {op.source for op in self.ops if isinstance(op.core, ir.Conv) and not isinstance(op.source, ir.Input)}
        before = 0
        while len(found) > before:
            before = len(found)
            for op in self.ops:
                handed_on = op.core is None or isinstance(op.core, (ir.MaxPool, ir.ChannelPad))
                tied = {op.value, *([op.residual] if op.residual else []), *([op.source] if handed_on else [])}
                if tied & found:
                    found |= tied
        return found

    def stream(self, op: Fused) -> float:
        """Steps of the residual stream that the op writes."""
        return (READ_TOP if op.value in self.read else TOP) / self.largest_clamp

    @staticmethod
    def refuse(name: str, reason: str) -> NoReturn:
        raise NotIntegerError(f"{name}: {reason}")

    def op(self, op: Fused) -> Integer:
        core = op.core
        if isinstance(op.source, ir.Input) and not isinstance(core, ir.Conv):
            self.refuse(op.name, "reads the pixels, which only convolutions can do in integers")
        if op.act is not None and op.act.kind != "clamp":
            self.refuse(op.act.name, f"the activation {op.act.kind} is not available in integers")
        if op.act is not None and not _is_clamp(op.act):
            self.refuse(op.act.name, f"clamps to {op.act.lo:g}..{op.act.hi:g}, integers go from -2 to 2 only")
        if isinstance(op.residual, ir.Input):
            self.refuse(op.name, "adds the pixels, which integers cannot do")
        if isinstance(core, ir.Dot):
            made = self.bconv(op, core)
        elif isinstance(core, ir.Conv):
            made = self.conv(op, core)
        elif isinstance(core, ir.Linear):
            made = self.linear(op, core)
        elif isinstance(core, ir.AvgPool):
            made = self.avgpool(op, core)
        else:
            made = self.moved(op)
        return made

    # What an op reads and writes.

    def source(self, op: Fused) -> _Map:
        found = self.maps[op.source]
        if found.kind != "i16":
            self.refuse(op.name, f"reads the result of {op.source.name}, which is not clamped")
        return found

    def residual(self, op: Fused) -> _Map:
        """What is added, which has to be in the stream's steps; zeros where nothing is."""
        if op.residual is None:
            return _Map("i16", self.stream(op), np.zeros(op.value.shape[0]), limit=0)
        found = self.maps[op.residual]
        if found.steps != self.stream(op):
            self.refuse(op.name, f"adds {op.residual.name}, which is not of the residual stream")
        return found

    def only_reader(self, op: Fused, role: Callable[[Fused], bool]) -> bool:
        """Whether the op's map is all that is stored, and each of its readers passes."""
        readers = self.readers.get(op.value, [])
        return op.wants_map and not op.wants_bits and bool(readers) and all(map(role, readers))

    def store(
        self, op: Fused, made: Integer, steps: float, peak: float = _LIMIT, centre: np.ndarray | None = None
    ) -> Integer:
        """Notes what is known of the result, clamped if the op has a clamp. Without `centre` it is that of a shift."""
        centre = np.full(op.value.shape[0], 0.5) if centre is None else centre
        made.steps, made.centre = steps, centre
        if op.act is not None:
            lo, hi = (int(np.clip(np.rint(n * steps - 0.5), -32768, 32767)) for n in (op.act.lo, op.act.hi))
            made.clamp = (lo, hi)
            self.maps[op.value] = _Map("i16", steps, centre, max(abs(lo), abs(hi)), max(abs(lo + 0.5), abs(hi + 0.5)))
        else:
            self.maps[op.value] = _Map("i16", steps, centre, peak=peak)
        return made

    def unclamped(self, op: Fused) -> None:
        if op.act is None and op.wants_map:
            self.refuse(op.name, "its result is not clamped before it is stored, integers need a hardtanh there")

    # The ops.

    def bconv(self, op: Fused, core: ir.Dot) -> Integer:
        taps = core.positive[0].size
        channels = len(core.positive)
        positive = core.positive.transpose(0, 2, 3, 1)
        bare = op.affine is None and op.residual is None and op.act is None
        if bare and taps <= 32767:
            ones, zeros = np.ones(channels, np.int64), np.zeros(channels, np.int64)
            made = Integer(op, weight=positive, scale=ones, offset=zeros, shift=zeros)
            return self.store(op, made, steps=1.0, peak=taps, centre=np.zeros(channels))
        self.unclamped(op)
        a, b = _scale_and_offset(op, channels)
        negative, residual, steps = a < 0, self.residual(op), self.stream(op)
        line = _Line(np.abs(a) * steps, b * steps + residual.centre, taps)
        room = INT32 - residual.limit
        steep = line.a > 32767
        if steep.any():  # every dot product but one is beyond the clamp, and mostly stays there
            count = f"{int(steep.sum())} of {channels} channels"
            self.warnings.append(f"{op.name}: {count} have a scale over {32767 / steps:.2g}, cut to that")
            line.a = np.where(steep, 32767, line.a)
            line.value = np.where(steep, np.clip(line.value, -65534, 65534), line.value)

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            sums = np.where(m <= 32767, m, 0) * taps + np.abs(o)
            return m, o, (m <= 32767) & (sums <= INT32) & (_shifted(sums, s) <= room)

        found = _largest_shift(31, at)
        if not found.fits.all():  # an offset of more than 2^16: the clamp cuts it off wherever it is cut off here
            most = np.minimum(INT32, room) - found.weight * taps
            if (most < 0).any():
                self.refuse(op.name, f"sums over {taps} taps, which is too many for 32 bits")
            found.offset = np.where(found.fits, found.offset, np.clip(found.offset, -most, most))
        coarse = int(((found.weight < 1 << 14) & (a != 0) & (found.shift < 31) & (taps >= 1 << found.shift)).sum())
        if coarse:
            self.warnings.append(
                f"{op.name}: {coarse} of {channels} channels have an offset so large that their multiplier keeps "
                "fewer than 15 bits"
            )
        signs = positive ^ negative[:, None, None, None]
        made = Integer(op, weight=signs, scale=found.weight, offset=found.offset, shift=found.shift)
        return self.store(op, made, steps)

    def conv(self, op: Fused, core: ir.Conv) -> Integer:
        a, b = _scale_and_offset(op, len(core.weight))
        w = core.weight.astype(np.float64).transpose(0, 2, 3, 1) * a[:, None, None, None]
        rounded: Callable[[np.ndarray], np.ndarray]
        steps = self.stream(op)
        pixels, wide = isinstance(op.source, ir.Input), False
        if pixels:
            w *= steps / (255.0 * self.std.astype(np.float64))
            centre = -255.0 * self.mean.astype(np.float64)
            zeros = np.floor(self.mean.astype(np.float64) * 65280 + 0.5)
            largest, width = 255, self.stem_width
            alike = _like_pixels(core.kernel, self.std.astype(np.float64))
            rounded = partial(_rounded_together, r=alike)
        else:
            source = self.source(op)
            w *= steps / source.steps
            centre, zeros = source.centre, np.zeros(w.shape[-1])
            largest, width, rounded = source.limit, self.width, _rounded
            bare = op.act is None and op.residual is None
            wide = bare and self.only_reader(op, lambda reader: reader.source is not op.value)
        if not wide:
            self.unclamped(op)
        residual = self.residual(op)
        room = INT32 // 2 if wide else INT32 - residual.limit
        unit = 256 if pixels and width == 8 else 1  # what a weight of 1 counts

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weight = rounded(w * (2.0**s / unit))
            counts = weight * float(unit)  # exact as long as it matters
            taken = np.floor((counts * zeros).sum(axis=(1, 2, 3)) / 256 + 0.5)  # off by the op, inside the image
            o = _floor((b * steps + residual.centre) * 2.0**s + (counts * centre).sum(axis=(1, 2, 3)) + taken)
            size = np.abs(counts)
            sums = largest * size.sum(axis=(1, 2, 3)) + np.abs(o).astype(np.float64)
            sums += np.ceil((size * np.abs(zeros)).sum(axis=(1, 2, 3)) / 256) + 1
            small = size.max(axis=(1, 2, 3)) <= unit * _PEAK[width]
            return weight, o, small & (sums <= INT32) & (sums / 2**s + 1 <= room)

        found = _largest_shift(31, at)
        if not found.fits.all():
            count = int((~found.fits).sum())
            self.refuse(op.name, f"{count} channels have weights or offsets too large for {width} bits")
        made = Integer(op, weight=found.weight, width=width, offset=found.offset, shift=found.shift)
        self.store(op, made, steps)
        if wide:
            made.kind = self.maps[op.value].kind = "i32"
            self.maps[op.value].limit = room
        return made

    def avgpool(self, op: Fused, core: ir.AvgPool) -> Integer:
        source = self.source(op)
        channels, taps = core.shape[0], core.kernel[0] * core.kernel[1]
        if taps > 65535:
            self.refuse(op.name, f"averages {taps} pixels, integers go to 65535")
        a, b = _scale_and_offset(op, channels)
        steps = self.stream(op)
        peak = float((np.abs(a) * (source.peak / source.steps) + np.abs(b)).max())
        if op.act is None and op.wants_map:
            if op.residual is None and self.only_reader(op, lambda reader: isinstance(reader.core, ir.Linear)):
                fraction = int(np.floor(np.log2(32767 / max(peak, 2.0**-16))))
                steps = 2.0**fraction
                if fraction < _FEW:
                    self.warnings.append(
                        f"{op.name}: its results may be as large as {peak:.2g}, which leaves steps of 2^{-fraction}"
                    )
            elif op.residual is not None or peak * self.stream(op) > _LIMIT:
                self.unclamped(op)
        residual = self.residual(op)
        a = a * (steps / source.steps)
        line = _Line(a / taps, b * steps + a * source.centre + residual.centre, source.peak * taps)
        room = INT32 - 32768 - residual.limit

        def at(s: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            m, o = line.at(s)
            size, far = np.minimum(np.abs(m), 32768), np.minimum(np.abs(o), INT32 + 1)
            sums = _LIMIT * taps * size + far
            return m, o, (size <= 32767) & (far <= INT32) & (_shifted(sums, s) <= room)

        found = _largest_shift(47, at)
        if not found.fits.all():
            self.refuse(op.name, f"{int((~found.fits).sum())} channels have a scale or offset too large for 16 bits")
        made = Integer(op, scale=found.weight, offset=found.offset, shift=found.shift)
        return self.store(op, made, steps, min(_LIMIT, peak * steps + 1))

    def moved(self, op: Fused) -> Integer:
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
        made = self.store(op, Integer(op), source.steps, source.peak, centre)
        if op.act is None and op.residual is None and op.core is not None:
            self.maps[op.value].limit = source.limit
        return made

    def linear(self, op: Fused, core: ir.Linear) -> Integer:
        """W = w * 2^e per class, q = logit * 2^g for all; e as large as the width allows, g as the bound allows."""
        if op.value is not self.ops[-1].value or self.readers.get(op.value) or op.wants_bits:
            self.refuse(op.name, "a linear layer in the middle of the network is not available in integers")
        if op.residual is not None or op.act is not None:
            self.refuse(op.name, "nothing can follow the last linear layer in integers")
        source = self.source(op)
        classes = len(core.weight)
        a, b = _scale_and_offset(op, classes)
        pixels = core.weight.shape[1] // len(source.centre)
        b = b + a * (core.weight @ np.tile(source.centre, pixels)) / source.steps
        fraction = round(np.log2(source.steps))
        w = core.weight.astype(np.float64) * a[:, None] * (2.0**fraction / source.steps)
        peak = _PEAK[self.width]
        size = np.abs(w).max(axis=1)
        exponent = np.floor(np.log2(peak / np.maximum(size, 1e-30))).astype(np.int64)
        exponent -= np.rint(size * 2.0**exponent) > peak
        exponent = np.minimum(exponent, exponent.min() + 16)  # finer than 2^-16 of the largest weight is no use
        weight = _rounded(w * 2.0 ** exponent[:, None])
        sums = _LIMIT * np.abs(weight).sum(axis=1)
        lowest = int(exponent.max()) + fraction - 47

        def fits(g: int) -> bool:
            return bool(((sums >> (exponent + fraction - g)) + 1 + np.abs(_rounded(b * 2.0**g)) <= INT32).all())

        choices = range(int(exponent.min()) + fraction, lowest - 1, -1)
        g = next((g for g in choices if abs(g) < 120 and fits(g)), None)
        if g is None:
            self.refuse(op.name, "its weights and biases are too far apart in size for 32 bits")
        shift, scale = exponent + fraction - g, np.array([2.0**-g])
        offset = _rounded(b * 2.0**g)
        return Integer(op, "map", weight=weight, width=self.width, scale=scale, offset=offset, shift=shift)


def _scale_and_offset(op: Fused, channels: int) -> tuple[np.ndarray, np.ndarray]:
    if op.affine is None:
        return np.ones(channels), np.zeros(channels)
    return op.affine.scale, op.affine.offset
