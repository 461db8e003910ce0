"""Each op of an integer file by itself, compared with what the network computes there in float64.

Binary networks are chaotic: one sign that rounding changes alters everything after it, so the distance between the
outputs of a file and those of the network says little. Here no error travels. Every op reads the network's own values,
rounded to the steps of its inputs, and the network's own signs; what it stores must be the real result of its inputs,
up to the rounding that docs/numerics.md describes. Where a value lies exactly at a threshold, as the zeros of a ReLU
do, the bit must be the network's.
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
from ovsw.export import ir
from ovsw.export.passes.fuse import Fused
from ovsw.export.passes.lower import Lowered
from ovsw.export.reference import compute, jumps, threshold_of

_EXACT = 1e-6  # of a step: float64 on the way
_HALF = 0.5 + _EXACT
_NARROW = 8191  # a map may saturate here, where a real convolution reads it, or at 32767
_STEM = 0.02  # normalised pixels are float32 in the network
_TOGETHER = 4.0  # by so many units a stem's weight may be off that makes up for its neighbours; others by half a unit
_ACCIDENTS = 0.08  # share of a map's values that may be exactly at a threshold by accident and have another sign
_ROUGH = 0.02  # steps by which an op may be off, beside the fraction that it drops, and still be exact at a threshold
_CURVE = 0.0963 / 8  # a sigmoid between two entries of its table, per square of their distance


@dataclass
class _Map:
    """The numbers that an op stored, (n, channels, height, width) in float64, and what they mean."""

    n: Tensor
    steps: float
    centre: Tensor

    @property
    def real(self) -> Tensor:
        return (self.n + self.centre) / self.steps


class Judge:
    """Compares the ops of an integer model, image by image, and collects what is wrong with each of them, by name."""

    def __init__(self, model: bnn.Model, lowered: Sequence[Lowered]) -> None:
        self.model, self.ops = model, list(zip(model.ops, lowered))
        self.faults: dict[str, str] = {}
        self.std = model.tensors[model.std].array.astype(np.float64)
        self.steps = {low.fused.value: low.steps for low in lowered}
        for record, low in self.ops:
            self._constants(record, low)

    def image(self, pixels: np.ndarray, values: Mapping[ir.Node, Tensor]) -> None:
        """Judges all ops on one batch: its pixels, uint8 (n, h, w, c), and the values of the graph's nodes."""
        maps: dict[ir.Node, _Map] = {}
        for record, low in self.ops:
            _Op(self, record, low, pixels, values, maps).judge()

    def blame(self, op: Fused, text: str) -> None:
        self.faults.setdefault(op.name, text)

    # Multipliers and weights: half a unit from the real ones.

    def _constants(self, record: bnn.Op, low: Lowered) -> None:
        op, core = low.fused, low.fused.core
        if op.sign is not None:
            self._thresholds(low)
        if isinstance(core, (ir.Dot, ir.AvgPool, ir.Mul)):
            self._multipliers(record, low)
        elif isinstance(core, (ir.Conv, ir.Linear)):
            wanted, _ = self.weights(low)
            stem = isinstance(op.source, ir.Input) and isinstance(core, ir.Conv) and core.groups == 1
            self._near(op, "weight", low.constants["weight"][1], wanted, _TOGETHER if stem else _HALF)

    def _bits(self, record: bnn.Op, low: Lowered) -> None:
        """The weights of a channel whose scale is negative are negated."""
        op, core = low.fused, low.fused.core
        assert isinstance(core, ir.Dot)
        assert record.weight is not None
        tensor = self.model.tensors[record.weight]
        negated = np.zeros(len(core.positive), bool) if op.affine is None else np.asarray(op.affine.scale) < 0
        wanted = (core.positive ^ negated[:, None, None, None]).transpose(0, 2, 3, 1)
        if not np.array_equal(bnn.unpack_bits(tensor.array, tensor.shape[-1]), wanted):
            self.blame(op, "binary weights are not those of the network")

    def _thresholds(self, low: Lowered) -> None:
        """The first number that reaches the threshold, and the last one that does not."""
        assert low.fused.sign is not None
        threshold, strict = low.fused.sign.levels()
        found = low.constants["threshold"][1] if "threshold" in low.constants else np.zeros(len(threshold))
        above = found + np.asarray(low.centre) - threshold * low.steps
        reached = np.where(strict, above > 0, above >= 0) | (np.abs(above) < 1e-9 * np.abs(found))
        missed = np.where(strict, above - 1 <= 0, above - 1 < 0) | (np.abs(above - 1) < 1e-9 * np.abs(found))
        if not ((reached | (found == 32767)) & (missed | (found == -32768))).all():
            self.blame(low.fused, "a threshold is not the first number that reaches the real one")

    def _multipliers(self, record: bnn.Op, low: Lowered) -> None:
        op, core = low.fused, low.fused.core
        if isinstance(core, ir.Dot):
            self._bits(record, low)
        if _is_raw(low):
            return
        a = np.ones(op.value.shape[0]) if op.affine is None else op.affine.scale
        rows = np.atleast_2d(low.constants["scale"][1])
        factor = self.factor(low) * 2.0 ** low.constants["shift"][1].astype(float)
        wanted = (np.abs(a) if isinstance(core, ir.Dot) else a) * factor
        self._near(op, "multiplier", rows[0], np.clip(wanted, -32767, 32767), _HALF)
        if isinstance(core, ir.Dot) and core.window_scale is not None:
            self._near(op, "window scale", rows[1], np.clip(a * core.window_scale * factor, -32767, 32767), _HALF)

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
        kind, found = low.constants["weight"]
        a = np.ones(len(found)) if op.affine is None else op.affine.scale
        weight = core.weight.astype(np.float64)
        if weight.ndim == 4:
            weight = weight.transpose(0, 2, 3, 1)
        lead = (len(weight),) + (1,) * (weight.ndim - 1)
        shift = low.constants["shift"][1].astype(float).reshape(lead)
        if isinstance(core, ir.Linear):
            unit = self.steps[op.source] * 2.0**-shift * float(low.constants["scale"][1][0])
        elif isinstance(op.source, ir.Input):
            group = np.arange(len(weight)) // (len(weight) // core.groups)
            read = (group[:, None] * weight.shape[-1] + np.arange(weight.shape[-1]))[:, None, None, :]
            unit = 2.0**-shift / low.sum_steps * 255.0 * self.std[read] * (256 if kind == "i8" else 1)
        else:
            unit = 2.0**-shift / low.sum_steps * self.steps[op.source]
        return weight * a.reshape(lead) / unit, unit

    def _near(self, op: Fused, what: str, found: np.ndarray, wanted: np.ndarray, allowed: float) -> None:
        off = np.abs(found - wanted) - 1e-9 * np.abs(wanted)
        if (off > allowed).any():
            self.blame(op, f"a {what} is {off.max():.3g} units from its real value, {allowed:.3g} are allowed")


class _Op:
    """One op on one batch."""

    def __init__(
        self,
        judge: Judge,
        record: bnn.Op,
        low: Lowered,
        pixels: np.ndarray,
        values: Mapping[ir.Node, Tensor],
        maps: dict[ir.Node, _Map],
    ) -> None:
        self.judge_, self.record, self.low, self.op = judge, record, low, low.fused
        self.pixels, self.values, self.maps = pixels, values, maps

    def judge(self) -> None:
        op = self.op
        second = op.residual if op.other is None else op.other
        x, y = self.stored(op.source), None if second is None else self.stored(second)
        n, bits = numerics.run_op(self.judge_.model, self.record, x, y, self.known_dots())
        found = torch.from_numpy(np.ascontiguousarray(n.transpose(0, 3, 1, 2))).double()
        before, slack = self.real_sum()
        if self.low.kind == "f32":
            self.floats(found, before, slack)
            return
        self.integers(found, before, slack)
        if op.sign is not None:
            at = torch.from_numpy(np.ascontiguousarray(bits.transpose(0, 3, 1, 2)))
            self.bits(at, before, slack)

    def known_dots(self) -> np.ndarray | None:
        """A binary convolution's exact dot products as the file's weights have them: some channels are negated."""
        core = self.op.core
        if not isinstance(core, ir.Dot) or core not in self.values or core.window_scale is not None or core.pad_value:
            return None
        dots = self.values[core].permute(0, 2, 3, 1).numpy()
        return (dots if _is_raw(self.low) else dots * np.where(self.scale() < 0, -1, 1)).astype(np.int64)

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
        slack = torch.zeros(1, dtype=torch.float64)
        if core is None:
            y = self.real(op.source)
        elif isinstance(core, ir.Dot):
            y, slack = self.dots(core)
        elif isinstance(core, (ir.Conv, ir.Linear)):
            y, slack = self.products(core)
        else:
            y = compute(core, self.real(op.source), *([] if op.other is None else [self.real(op.other)]))
            if isinstance(core, (ir.AvgPool, ir.Mul)):
                slack = self.scaled(core, y)
            elif isinstance(core, ir.Gather):
                slack = torch.full((1,), _HALF, dtype=torch.float64)
            elif isinstance(core, ir.Bilinear):
                slack = _HALF + y.abs().amax() * self.maps[op.source].steps * 2.0**-12
        if op.affine is not None and not isinstance(core, (ir.Conv, ir.Linear)):
            y = compute(op.affine, y)
        elif op.affine is not None:
            y = y + torch.from_numpy(np.array(op.affine.offset)).view(1, -1, 1, 1)
        if op.residual is not None:
            y = y + self.real(op.residual)
        return y, slack + _EXACT + 1e-12 * y.abs() * low.sum_steps

    def dots(self, core: ir.Dot) -> tuple[Tensor, Tensor]:
        op, low = self.op, self.low
        y = self.values[core] if core in self.values else compute(core, self.values[op.source])
        if _is_raw(low):
            return y, torch.zeros(1, dtype=torch.float64)
        taps = core.positive[0].size * max(1.0, abs(core.pad_value))
        if core.window_scale is not None or core.pad_value:
            return y, _column(_HALF + (taps + 1) * 2.0 ** -low.constants["shift"][1].astype(float))
        return y, self.line(y, self.scale() * low.sum_steps, taps)

    def scaled(self, core: ir.Node, y: Tensor) -> Tensor:
        op, low, source = self.op, self.low, self.maps[self.op.source]
        a = self.scale()
        if isinstance(core, ir.AvgPool):
            taps = core.window[0] * core.window[1]
            slack = self.line(y * (source.steps * taps), a * low.sum_steps / source.steps / taps, 32768.0 * taps)
            if not any(core.pad) and not core.ceil:
                return slack
            inside = compute(core, torch.ones_like(source.n[:1]))  # padding counts nothing, and so has no centre either
            missing = (1 - inside) * source.centre.abs() + 0.5 / taps
            return slack + _column(np.abs(a) * low.sum_steps / source.steps) * missing
        assert op.other is not None
        other = self.maps[op.other]
        factor = _column(np.abs(a) * (low.sum_steps / source.steps / other.steps))
        halves = source.centre.abs() * other.n.abs() + other.centre.abs() * source.n.abs()
        rounding = (source.n * other.n).abs() * _column(2.0 ** -low.constants["shift"][1].astype(float))
        return _HALF + factor * halves + rounding

    def line(self, sums: Tensor, a: np.ndarray, largest: float) -> Tensor:
        """Half a step, and half a unit of the multiplier for every sum from where the result is 0."""
        low, op = self.low, self.op
        b = 0.0 if op.affine is None else op.affine.offset * low.sum_steps
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(a == 0, 0.0, np.clip(-b / a, -largest, largest))
        unit = _column(2.0 ** -low.constants["shift"][1].astype(float))
        return _HALF + unit * ((sums - _column(zero)).abs() + 3) / 2

    def products(self, core: ir.Conv | ir.Linear) -> tuple[Tensor, Tensor]:
        """By the file's own weights, which `Judge` compares with the real ones."""
        op, low = self.op, self.low
        _, unit = self.judge_.weights(low)
        weight = low.constants["weight"][1] * unit
        if weight.ndim == 4:
            weight = weight.transpose(0, 3, 1, 2)
        x = self.real(op.source)
        y = compute(replace(core, weight=weight), x)
        if isinstance(core, ir.Linear):
            return y, torch.full((1,), float(low.constants["scale"][1][0]), dtype=torch.float64)
        least = _column(2.0 ** -low.constants["shift"][1].astype(float))  # the offset is rounded, too
        if isinstance(op.source, ir.Input):
            brightest = np.abs(weight).sum(axis=(1, 2, 3)) * low.sum_steps / (255 * self.judge_.std.min())
            border = _column(brightest / 512) if any(core.pad) else 0.0  # the mean is rounded to 1/256 of a pixel
            return y, _HALF + _STEM + least + border
        ones = torch.ones_like(x[:1])
        (ph, pw), size = core.pad, replace(core, weight=np.abs(weight))
        padded = F.pad(ones, (pw, pw, ph, ph), value=1.0)
        outside = compute(replace(size, pad=(0, 0)), padded) - compute(size, ones)
        source = self.maps[op.source]
        return y, _HALF + least + outside * (source.centre.abs().max() / source.steps * low.sum_steps)

    def steep(self) -> Tensor:
        """Channels whose scale is too large for a multiplier: their signs are right, their values need not be."""
        if not isinstance(self.op.core, (ir.Dot, ir.AvgPool)):
            return torch.zeros(1, dtype=torch.bool)
        return _column(np.abs(self.scale()) * self.judge_.factor(self.low)) > 32767

    def scale(self) -> np.ndarray:
        return np.ones(self.op.value.shape[0]) if self.op.affine is None else np.asarray(self.op.affine.scale)

    # Comparisons.

    def floats(self, found: Tensor, wanted: Tensor, slack: Tensor) -> None:
        """What is stored as f32: no steps, and the activation is none."""
        largest = max(1.0, float(wanted.abs().max()))
        off = (found - wanted).abs()
        allowed = slack + 1e-5 * largest
        if (off > allowed).any():
            self.blame(f"results are off by {float(off.max()):.3g}, {float(allowed.max()):.3g} is allowed")
        self.maps[self.op.value] = _Map(found, 0.0, torch.zeros(1, dtype=torch.float64))

    def integers(self, found: Tensor, before: Tensor, slack: Tensor) -> None:
        op, low, act = self.op, self.low, self.op.act
        after = before if act is None else compute(act, before)
        if act is not None and jumps(act):
            near = before.abs() * low.sum_steps <= slack
            own, at = self.values[op.value], self.values[act.inputs[0]]
            differ = (found - own * low.steps).abs() > 1
            ties = self.ties(at == 0, before == 0, differ, slack)
            if (ties & differ).any():
                count = f"{int((ties & differ).sum())} of {ties.numel()} comparisons"
                self.blame(f"{count} of values that are exactly at the threshold are wrong")
            after = torch.where(near | ties, found / low.steps, after)
            slack = torch.full((1,), _HALF, dtype=torch.float64)
        elif act is not None and act.kind == "clamp":
            slack = slack.clamp(min=_HALF)
        elif act is not None and act.kind == "prelu":
            after = compute(act, before.clamp(-32768 / low.sum_steps, 32768 / low.sum_steps))
            slopes = [np.abs(s) for s in (act.slope, act.positive) if s is not None]
            steepest = _column(np.maximum.reduce([np.ones(op.value.shape[0]), *slopes]))
            slack = slack * steepest + _HALF + before.abs() * (low.sum_steps * 2.0**-14)
        elif act is not None:
            between = 2 + _CURVE * (256 / low.sum_steps) ** 2 * low.steps
            slack = between + slack * (low.steps / low.sum_steps / 4)  # a sigmoid rises by 1/4 at most
        centre = _column(low.centre)
        wanted = after * low.steps - centre
        if low.kind == "i16":
            lo, hi = (int(v) for v in low.clamp) if low.act == "clamp" else (-32768, 32767)
            lo, hi = lo if lo <= -_NARROW else -32768, hi if hi >= _NARROW else 32767
            wanted = wanted.clamp(lo, hi)
        off = (found - wanted).abs().masked_fill(self.steep(), 0.0)
        wrong = off > slack
        if op.wants_map and wrong.any():
            count = f"{int(wrong.sum())} of {wrong.numel()} values"
            excess = float((off - slack).max())
            self.blame(f"{count} are off by up to {float(off.max()):.3g} steps, {excess:.3g} more than allowed")
        own = self.values[op.value].double() * low.steps - centre if op.value in self.values else wanted
        if low.kind == "i16":
            own = own.clamp(lo, hi)
        near = torch.where((found - own).abs() <= 1 + _EXACT, found, own.round())
        self.maps[op.value] = _Map(near, low.steps, centre)

    def bits(self, found: Tensor, before: Tensor, slack: Tensor) -> None:
        op, low, sign = self.op, self.low, self.op.sign
        assert sign is not None
        after = before if op.act is None else compute(op.act, before)
        threshold = threshold_of(sign)
        wanted = compute(sign, after)
        exact = (threshold == 0) & (_column(low.centre) == 0.5) & (slack >= 0.5)
        if op.act is not None and op.act.kind not in ("clamp", "prelu"):
            near = torch.ones_like(found)
        else:
            near = (after - threshold).abs() * low.steps <= torch.where(exact, slack - 0.5, slack)
        own, at = self.values[sign], self.values[sign.inputs[0]]
        ties = self.ties(at == threshold, after == threshold, found != own, slack)
        wrong = torch.where(ties, found != own, (found != wanted) & ~near)
        if wrong.any():
            which = " that are exactly at the threshold" if (wrong & ties).any() else ""
            self.blame(f"{int(wrong.sum())} of {wrong.numel()} signs{which} are wrong")

    def ties(self, exact: Tensor, stored: Tensor, differ: Tensor, slack: Tensor) -> Tensor:
        """Values exactly at a threshold that must have the network's sign: all, if many of them differ.

        A few may be there by accident, as sums of clamped numbers. They count only where the op is exact.
        """
        many = float((exact & differ).double().mean()) > _ACCIDENTS
        return exact if many else exact & stored & (slack < _HALF + _ROUGH)

    def blame(self, text: str) -> None:
        self.judge_.blame(self.op, text)


def _is_raw(low: Lowered) -> bool:
    """Whether it stores dot products as they are."""
    op = low.fused
    return isinstance(op.core, ir.Dot) and low.sum_steps == 1.0 and op.affine is op.residual is op.act is None


def _column(a: np.ndarray | float | None) -> Tensor:
    return torch.from_numpy(np.atleast_1d(np.array(a, np.float64))).view(1, -1, 1, 1)
