"""Checks each op of an integer file on its own, against the network's values in float64.

Binary networks are chaotic: one sign changed by rounding alters everything after it, so the distance between the
outputs of a file and those of the network says little. Here no error travels on. Every op reads the network's own
values, rounded to the steps of its inputs, and the network's own signs. Its result must be the real result for these
inputs, up to the rounding described in docs/numerics.md. Where a value is exactly at a threshold, as the zeros of a
ReLU are, the bit must be the network's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw import format as bnn
from ovsw import numerics
from ovsw.bounds import OFFSET_UNIT
from ovsw.export import ir
from ovsw.export.ops.fused import Fused, Lowered
from ovsw.export.ops.node import column
from ovsw.export.reference import jumps, threshold_of

_EXACT = 1e-6  # of a step: float64 on the way
_HALF = 0.5 + _EXACT
_NARROW = 8191  # a map may saturate here, where a real convolution reads it, or at 32767
_STEM = 0.02  # normalised pixels are float32 in the network
_TOGETHER = 4.0  # units that a stem's weight may be off, as it compensates its neighbours' errors; others: half a unit
_ACCIDENTS = 0.08  # share of a map's values that may be exactly at a threshold by accident and have another sign
_ROUGH = 0.02  # steps of error, besides the dropped fraction, up to which an op counts as exact at a threshold
_CURVE = 0.0963 / 8  # a sigmoid between two entries of its table, per square of their distance


@dataclass
class _Map:
    """The numbers that an op stored, (n, channels, height, width) in float64, and what they mean."""

    n: Tensor
    steps: float
    centre: Tensor
    largest: float = 32768.0

    @property
    def real(self) -> Tensor:
        return (self.n + self.centre) / self.steps


class OpCheck:
    """Compares the ops of an integer model, image by image, and collects what is wrong with each of them, by name."""

    def __init__(self, model: bnn.Model, lowered: Sequence[Lowered]) -> None:
        self.model, self.ops = model, list(zip(model.ops, lowered))
        self.faults: dict[str, str] = {}
        self.signs: dict[str, list[int]] = {}  # by op: those that its rounding alone changed, and all
        self.std = model.tensors[model.std].array.astype(np.float64)
        self.steps = {low.fused.value: low.steps for low in lowered}
        for record, low in self.ops:
            self._constants(record, low)

    def image(self, pixels: np.ndarray, values: Mapping[ir.Node, Tensor]) -> None:
        """Checks all ops on one batch: its pixels, uint8 (n, h, w, c), and the values of the graph's nodes."""
        maps: dict[ir.Node, _Map] = {}
        for record, low in self.ops:
            _Op(self, record, low, pixels, values, maps).run()

    def fault(self, op: Fused, text: str) -> None:
        self.faults.setdefault(op.name, text)

    def changed_signs(self) -> list[tuple[str, float]]:
        """The share of signs that each op's rounding alone changed, largest first, of ops that have changed any."""
        shares = [(name, changed / count) for name, (changed, count) in self.signs.items() if changed]
        return sorted(shares, key=lambda pair: -pair[1])

    # Multipliers and weights: half a unit from the real ones.

    def _constants(self, record: bnn.Op, low: Lowered) -> None:
        op, core = low.fused, low.fused.core
        if op.sign is not None:
            self._thresholds(low)
        if isinstance(core, (ir.Dot, ir.AvgPool, ir.Mul)):
            self._multipliers(record, low)
        elif isinstance(core, (ir.Conv, ir.Linear)):
            expected, _ = self.weights(low)
            stem = isinstance(op.source, ir.Input) and isinstance(core, ir.Conv) and core.groups == 1
            self._near(op, "weight", low.constants["weight"][1], expected, _TOGETHER if stem else _HALF)

    def _bits(self, record: bnn.Op, low: Lowered) -> None:
        """The weights of a channel whose scale is negative are negated."""
        op, core = low.fused, low.fused.core
        assert isinstance(core, ir.Dot)
        assert record.weight is not None
        tensor = self.model.tensors[record.weight]
        negated = _scale(op)[:, None, None, None] < 0
        expected = (core.positive ^ negated).transpose(0, 2, 3, 1)
        if not np.array_equal(bnn.unpack_bits(tensor.array, tensor.shape[-1]), expected):
            self.fault(op, "binary weights are not those of the network")

    def _thresholds(self, low: Lowered) -> None:
        """The first number that reaches the threshold, and the last one that does not."""
        assert low.fused.sign is not None
        threshold, strict = low.fused.sign.levels()
        stored = low.constants["threshold"][1] if "threshold" in low.constants else np.zeros(len(threshold))
        above = stored + np.asarray(low.centre) - threshold * low.steps
        reached = np.where(strict, above > 0, above >= 0) | (np.abs(above) < 1e-9 * np.abs(stored))
        missed = np.where(strict, above - 1 <= 0, above - 1 < 0) | (np.abs(above - 1) < 1e-9 * np.abs(stored))
        last = np.iinfo(np.int32 if low.kind == "i32" else np.int16)
        if not ((reached | (stored == last.max)) & (missed | (stored == last.min))).all():
            self.fault(low.fused, "a threshold is not the first number that reaches the real one")

    def _multipliers(self, record: bnn.Op, low: Lowered) -> None:
        op, core = low.fused, low.fused.core
        if isinstance(core, ir.Dot):
            self._bits(record, low)
        if _is_raw(low):
            return
        a = _scale(op)
        rows = np.atleast_2d(low.constants["scale"][1])
        factor = self.factor(low) * 2.0 ** low.constants["shift"][1].astype(float)
        expected = (np.abs(a) if isinstance(core, ir.Dot) else a) * factor
        most = 2.0**31 if low.constants["scale"][0] == "i32" else 32767
        self._near(op, "multiplier", rows[0], np.clip(expected, -most, most), _HALF)
        if isinstance(core, ir.Dot) and core.window_scale is not None:
            self._near(op, "window scale", rows[1], np.clip(a * core.window_scale * factor, -most, most), _HALF)

    def factor(self, low: Lowered) -> float:
        """Steps of the result for one of the core's sums."""
        op, core = low.fused, low.fused.core
        if isinstance(core, ir.AvgPool):
            return low.sum_steps / self.steps[op.source] / (core.window[0] * core.window[1])
        if isinstance(core, ir.Mul):
            assert op.other is not None
            return low.sum_steps / self.steps[op.source] / self.steps[op.other]
        return low.sum_steps

    def weights(self, low: Lowered) -> tuple[np.ndarray, np.ndarray]:
        """A convolution's or linear layer's weights in units of the file, and what real number a unit is."""
        op, core = low.fused, low.fused.core
        assert isinstance(core, (ir.Conv, ir.Linear))
        kind = low.constants["weight"][0]
        weight = core.weight.astype(np.float64)
        if weight.ndim == 4:
            weight = weight.transpose(0, 2, 3, 1)
        lead = (len(weight),) + (1,) * (weight.ndim - 1)
        least = _least(low).reshape(lead)
        if isinstance(core, ir.Linear):
            unit = self.steps[op.source] * least * float(low.constants["scale"][1][0])
        elif isinstance(op.source, ir.Input):
            group = np.arange(len(weight)) // (len(weight) // core.groups)
            read = (group[:, None] * weight.shape[-1] + np.arange(weight.shape[-1]))[:, None, None, :]
            unit = least / low.sum_steps * 255.0 * self.std[read] * (256 if kind == "i8" else 1)
        else:
            unit = least / low.sum_steps * self.steps[op.source]
        return weight * _scale(op).reshape(lead) / unit, unit

    def _near(self, op: Fused, what: str, stored: np.ndarray, expected: np.ndarray, allowed: float) -> None:
        off = np.abs(stored - expected) - 1e-9 * np.abs(expected)
        if (off > allowed).any():
            self.fault(op, f"a {what} is {off.max():.3g} units from its real value, {allowed:.3g} are allowed")


@dataclass
class _Op:
    """One op on one batch; `maps` are those that the ops before it stored."""

    check: OpCheck
    record: bnn.Op
    low: Lowered
    pixels: np.ndarray
    values: Mapping[ir.Node, Tensor]
    maps: dict[ir.Node, _Map]

    @property
    def op(self) -> Fused:
        return self.low.fused

    def run(self) -> None:
        op = self.op
        second = op.residual if op.other is None else op.other
        x, y = self.stored(op.source), None if second is None else self.stored(second)
        n, bits = numerics.run_op(self.check.model, self.record, x, y, self.known_dots())
        stored = _channels_first(n).double()
        before, slack = self.real_sum()
        if self.low.kind == "f32":
            self.floats(stored, before, slack)
            return
        slack_after = self.integers(stored, before, slack)
        if op.sign is not None:
            self.bits(_channels_first(bits), before, slack, slack_after)

    def known_dots(self) -> np.ndarray | None:
        """A binary convolution's exact dot products as the file's weights have them: some channels are negated."""
        core = self.op.core
        if not isinstance(core, ir.Dot) or core not in self.values or core.window_scale is not None or core.pad_value:
            return None
        dots = self.values[core].permute(0, 2, 3, 1).numpy()
        return (dots if _is_raw(self.low) else dots * np.where(_scale(self.op) < 0, -1, 1)).astype(np.int64)

    # What the op reads.

    def stored(self, node: ir.Node) -> np.ndarray:
        """As the engine has it: pixels, bits or integers, (n, h, w, c)."""
        if isinstance(node, ir.Input):
            return self.pixels.astype(np.int64)
        if isinstance(node, ir.Sign):
            return self.values[node].permute(0, 2, 3, 1).contiguous().numpy()
        array = self.maps[node].n.permute(0, 2, 3, 1).contiguous().numpy()
        return array.astype(np.float32 if self._is_float(node) else np.int64)

    def _is_float(self, node: ir.Node) -> bool:
        return self.maps[node].steps == 0

    def real(self, node: ir.Node) -> Tensor:
        """What that stands for."""
        if isinstance(node, (ir.Input, ir.Sign)):
            return self.values[node]
        return self.maps[node].n if self._is_float(node) else self.maps[node].real

    # The real result, and how far the stored one may be from it.

    def real_sum(self) -> tuple[Tensor, Tensor]:
        """What the activation reads, and by how many steps the op's own sum may differ from it."""
        op, core, low = self.op, self.op.core, self.low
        slack = column(0.0)
        if core is None:
            y = self.real(op.source)
        elif isinstance(core, ir.Dot):
            y, slack = self.dots(core)
        elif isinstance(core, (ir.Conv, ir.Linear)):
            y, slack = self.products(core)
        else:
            y = core.compute(self.real(op.source), *([] if op.other is None else [self.real(op.other)]))
            if isinstance(core, (ir.AvgPool, ir.Mul)):
                slack = self.scaled(core, y)
            elif isinstance(core, ir.Gather):
                slack = column(_HALF + abs(core.value) * low.steps * 2.0**-24)
            elif core.copies_input and core.averages:
                slack = _HALF + y.abs().amax() * self.maps[op.source].steps * 2.0**-12
        if op.affine is not None and not isinstance(core, (ir.Conv, ir.Linear)):
            y = op.affine.compute(y)
        elif op.affine is not None:
            y = y + column(op.affine.offset)
        if op.residual is not None:
            y = y + self.real(op.residual)
        return y, slack + _EXACT + 1e-12 * y.abs() * low.sum_steps

    def dots(self, core: ir.Dot) -> tuple[Tensor, Tensor]:
        op, low = self.op, self.low
        y = self.values[core] if core in self.values else core.compute(self.values[op.source])
        if _is_raw(low):
            return y, column(0.0)
        taps = core.positive[0].size * max(1.0, abs(core.pad_value))
        if core.window_scale is not None or core.pad_value:
            return y, column(_HALF + (taps + 1) * _least(low))
        return y, self.line(y, _scale(op) * low.sum_steps, taps)

    def scaled(self, core: ir.Node, y: Tensor) -> Tensor:
        op, low, source = self.op, self.low, self.maps[self.op.source]
        a = _scale(op)
        # The offset of an i32 is rounded, and a whole unit lower where 0 is negative.
        unit = column(_least(low)) * (1.5 * OFFSET_UNIT if source.largest > 32768 else 0.0)
        if isinstance(core, ir.AvgPool):
            taps = core.window[0] * core.window[1]
            a = a * low.sum_steps / source.steps / taps
            slack = self.line(y * (source.steps * taps), a, source.largest * taps) + unit
            if not any(core.pad) and not core.ceil:
                return slack
            inside = core.compute(torch.ones_like(source.n[:1]))  # padding counts nothing, and so has no centre either
            missing = (1 - inside) * source.centre.abs() + 0.5 / taps
            return slack + column(np.abs(a) * taps) * missing
        assert op.other is not None
        other = self.maps[op.other]
        factor = column(np.abs(a) * (low.sum_steps / source.steps / other.steps))
        halves = source.centre.abs() * other.n.abs() + other.centre.abs() * source.n.abs()
        rounding = (source.n * other.n).abs() * column(_least(low))
        return _HALF + factor * halves + rounding + unit

    def line(self, sums: Tensor, a: np.ndarray, largest: float) -> Tensor:
        """Half a step, and half a unit of the multiplier for every sum from where the result is 0."""
        low, op = self.low, self.op
        b = 0.0 if op.affine is None else op.affine.offset * low.sum_steps
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(a == 0, 0.0, np.clip(-b / a, -largest, largest))
        return _HALF + column(_least(low)) * ((sums - column(zero)).abs() + 3) / 2

    def products(self, core: ir.Conv | ir.Linear) -> tuple[Tensor, Tensor]:
        """By the file's own weights, which `OpCheck` compares with the real ones."""
        op, low = self.op, self.low
        _, unit = self.check.weights(low)
        weight = low.constants["weight"][1] * unit
        if weight.ndim == 4:
            weight = weight.transpose(0, 3, 1, 2)
        x = self.real(op.source)
        y = replace(core, weight=weight).compute(x)
        if isinstance(core, ir.Linear):
            source, scale = self.maps[op.source], _scale(op)
            centre = np.tile(source.centre.abs().numpy().ravel(), weight.shape[1] // source.centre.numel())
            moved = (
                np.abs(core.weight * scale[:, None] - weight) @ centre / source.steps
            )  # centres with the real weights
            return y, column(float(low.constants["scale"][1][0]) + moved)
        least = column(_least(low))  # the offset is rounded, too
        if isinstance(op.source, ir.Input):
            brightest = np.abs(weight).sum(axis=(1, 2, 3)) * low.sum_steps / (255 * self.check.std.min())
            border = column(brightest / 512) if any(core.pad) else 0.0  # the mean is rounded to 1/256 of a pixel
            return y, _HALF + _STEM + least + border
        ones = torch.ones_like(x[:1])
        (ph, pw), size = core.pad, replace(core, weight=np.abs(weight))
        padded = F.pad(ones, (pw, pw, ph, ph), value=1.0)
        outside = replace(size, pad=(0, 0)).compute(padded) - size.compute(ones)
        source = self.maps[op.source]
        return y, _HALF + least + outside * (source.centre.abs().max() / source.steps * low.sum_steps)

    def steep(self) -> Tensor:
        """Channels whose scale is too large for a multiplier: their signs are right, their values need not be."""
        if not isinstance(self.op.core, (ir.Dot, ir.AvgPool)) or self.low.kind == "i32":
            return torch.zeros(1, dtype=torch.bool)
        return column(np.abs(_scale(self.op)) * self.check.factor(self.low)) > 32767

    # Comparisons.

    def floats(self, stored: Tensor, expected: Tensor, slack: Tensor) -> None:
        """What is stored as f32: no steps, and the activation is none."""
        largest = max(1.0, float(expected.abs().max()))
        off = (stored - expected).abs()
        allowed = slack + 1e-5 * largest
        if (off > allowed).any():
            self.fault(f"results are off by {float(off.max()):.3g}, {float(allowed.max()):.3g} is allowed")
        self.maps[self.op.value] = _Map(stored, 0.0, column(0.0))

    def integers(self, stored: Tensor, before: Tensor, slack: Tensor) -> Tensor:
        """Returns by how many steps the result may be off, after the activation."""
        op, low, act = self.op, self.low, self.op.act
        after = before if act is None else act.compute(before)
        if act is not None and jumps(act):
            near = before.abs() * low.sum_steps <= slack
            own, at = self.values[op.value], self.values[act.inputs[0]]
            differ = (stored - own * low.steps).abs() > 1
            ties = self.ties(at == 0, before == 0, differ, slack)
            if (ties & differ).any():
                count = f"{int((ties & differ).sum())} of {ties.numel()} comparisons"
                self.fault(f"{count} of values that are exactly at the threshold are wrong")
            after = torch.where(near | ties, stored / low.steps, after)
            slack = column(_HALF)
        elif act is not None and act.kind == "clamp":
            slack = slack.clamp(min=_HALF)
        elif act is not None and act.kind == "prelu":
            if low.kind == "i16":
                before = before.clamp(-32768 / low.sum_steps, 32768 / low.sum_steps)
            after = act.compute(before)
            slopes = [np.abs(s) for s in (act.slope, act.positive) if s is not None]
            steepest = column(np.maximum.reduce([np.ones(op.value.shape[0]), *slopes]))
            unit, half = (
                (2.0**-14, 0.0) if low.kind == "i16" else (2.0**-30, 0.5)
            )  # a wide one does not scale the centre
            slack = slack * steepest + _HALF + half * (1 + steepest) + before.abs() * (low.sum_steps * unit)
        elif act is not None:
            between = 2 + _CURVE * (256 / low.sum_steps) ** 2 * low.steps
            slack = between + slack * (low.steps / low.sum_steps / 4)  # a sigmoid rises by 1/4 at most
        centre = column(low.centre)
        expected = after * low.steps - centre
        if low.kind == "i16":
            lo, hi = (int(v) for v in low.clamp) if low.act == "clamp" else (-32768, 32767)
            lo, hi = lo if lo <= -_NARROW else -32768, hi if hi >= _NARROW else 32767
            expected = expected.clamp(lo, hi)
        off = (stored - expected).abs().masked_fill(self.steep(), 0.0)
        wrong = off > slack
        if op.wants_map and wrong.any():
            count = f"{int(wrong.sum())} of {wrong.numel()} values"
            excess = float((off - slack).max())
            self.fault(f"{count} are off by up to {float(off.max()):.3g} steps, {excess:.3g} more than allowed")
        own = self.values[op.value].double() * low.steps - centre if op.value in self.values else expected
        if low.kind == "i16":
            own = own.clamp(lo, hi)
        near = torch.where((stored - own).abs() <= 1 + _EXACT, stored, own.round())
        self.maps[op.value] = _Map(near, low.steps, centre, 2.0**31 if low.kind == "i32" else 32768.0)
        return slack

    def bits(self, stored: Tensor, before: Tensor, slack: Tensor, slack_after: Tensor) -> None:
        op, low, sign = self.op, self.low, self.op.sign
        assert sign is not None
        after = before if op.act is None else op.act.compute(before)
        threshold = threshold_of(sign)
        expected = sign.compute(after)
        exact = (threshold == 0) & (column(low.centre) == 0.5) & (slack >= 0.5)
        if op.act is not None and op.act.kind not in ("clamp", "prelu"):
            near = torch.ones_like(stored)
        else:
            near = (after - threshold).abs() * low.steps <= torch.where(exact, slack - 0.5, slack_after)
        counts = self.check.signs.setdefault(op.name, [0, 0])
        counts[0], counts[1] = counts[0] + int((stored != expected).sum()), counts[1] + stored.numel()
        own, at = self.values[sign], self.values[sign.inputs[0]]
        ties = self.ties(at == threshold, after == threshold, stored != own, slack)
        wrong = torch.where(ties, stored != own, (stored != expected) & ~near)
        if wrong.any():
            which = " that are exactly at the threshold" if (wrong & ties).any() else ""
            self.fault(f"{int(wrong.sum())} of {wrong.numel()} signs{which} are wrong")

    def ties(self, exact: Tensor, stored: Tensor, differ: Tensor, slack: Tensor) -> Tensor:
        """Values exactly at a threshold that must have the network's sign: all, if many of them differ.

        A few may be there by accident, as sums of clamped numbers. They count only where the op is exact.
        """
        many = float((exact & differ).double().mean()) > _ACCIDENTS
        return exact if many else exact & stored & (slack < _HALF + _ROUGH)

    def fault(self, text: str) -> None:
        self.check.fault(self.op, text)


def _scale(op: Fused) -> np.ndarray:
    """What the op multiplies its core's sums by, per channel."""
    return np.ones(op.value.shape[0]) if op.affine is None else np.asarray(op.affine.scale)


def _least(low: Lowered) -> np.ndarray:
    """What a unit of a channel's multiplier is, by its shift."""
    return 2.0 ** -low.constants["shift"][1].astype(float)


def _channels_first(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def _is_raw(low: Lowered) -> bool:
    """Whether the op stores unscaled dot products."""
    op = low.fused
    return isinstance(op.core, ir.Dot) and low.sum_steps == 1.0 and op.affine is op.residual is op.act is None
