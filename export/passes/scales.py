"""Scales: how many integer steps make up 1, for every op before and after its activation.

Maps that are added, concatenated or copied must have the same steps, so they form a group. The steps of a group come
from the largest number in its maps: a clamp gives that number, and maps without a clamp are measured on calibration
images. Integers have 16 bits, or 14 where a real convolution reads them, which leaves more bits for its weights.

A residual stream that nothing clamps can have 32 bits. Nothing has to be measured then: its steps are so many that the
largest sum there can be fits, and still so fine that rounding to them changes next to no sign.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.ops.constants import LIMIT
from ovsw.export.ops.fused import Fused

TOP = 32767.5  # steps of a group's largest number: 16 bits, centred
READ_TOP = 8191.5  # the same where a real convolution reads it
HEADROOM = 1.25  # numbers may be larger than the largest one that was measured by this factor
COARSE = 1024.0  # results that may be larger than this have too few fraction bits without measuring
STATIC = 8.0  # the bounds of a clamp up to this size are used; wider ones are measured
SIGMOID = 16.0  # beyond this a sigmoid is 0 or 1
ROOM = 2.0**30 * 0.98  # the largest sum in a 32-bit stream, with room for the rounding of constants

Ranges = Callable[[Sequence[ir.Node]], Mapping[ir.Node, float]]  # the largest |x| of nodes, measured


@dataclass(eq=False)
class _Group:
    """Maps with the same steps. `asked` maps each node whose range has to be measured to the op that needs it."""

    largest: float = 0.0
    asked: dict[ir.Node, Fused] = field(default_factory=dict)
    read: bool = False
    free: bool = True  # to be clamped to 14 bits: no activation is in the way
    ops: set[Fused] = field(default_factory=set)
    level: float = 0.0  # the largest level of a step, which is to be a whole number of steps
    wide: bool = False  # a stream of 32 bits


class Scales:
    """The steps of all ops. Raises NotIntegerError if something has to be measured and `ranges` is None."""

    def __init__(
        self,
        ops: list[Fused],
        ranges: Ranges | None,
        mean: np.ndarray,
        std: np.ndarray,
        wide_streams: bool,
        peak: int,
        stem_peak: int,
    ) -> None:
        """`peak` is the largest weight that a real convolution can have, `stem_peak` that of one over pixels."""
        self.ops, self.ranges, self.peak, self.stem_peak = ops, ranges, peak, stem_peak
        self.mean, self.std = mean, std
        self.brightest = float((np.maximum(np.abs(mean), np.abs(1 - mean)) / std).max())
        self.measured: Mapping[ir.Node, float] = {}
        self.by_value = {op.value: op for op in ops}
        self.readers: dict[ir.Node, list[Fused]] = defaultdict(list)  # of each map, once per reading
        for op in ops:
            for node in op.reads:
                self.readers[node].append(op)
        self._parents: dict[tuple[str, Fused], tuple[str, Fused]] = {}
        for op in ops:
            self._tie(op)
        self._groups: dict[tuple[str, Fused], _Group] = defaultdict(_Group)
        self.raw = self._raw_dots()
        for op in ops:
            self._contribute(op)
        self._measure()
        if wide_streams:
            self._widen()

    def add(self, op: Fused, like: Fused) -> None:
        """Adds an op that was split off another one and has the steps before that one's activation."""
        self._parents["before", op] = self._parents["after", op] = self._find(("before", like))

    def before(self, op: Fused) -> float:
        """Steps of the sum that an op's activation reads."""
        return self._steps(self._group("before", op))

    def after(self, op: Fused) -> float:
        """Steps of the map that the op stores."""
        return self._steps(self._group("after", op))

    def is_measured(self, op: Fused) -> bool:
        """Whether what the op stores may be larger than anything that was measured."""
        return any(asking is op for asking in self._group("after", op).asked.values())

    def stored_wide(self, op: Fused) -> bool:
        """Whether what the op stores is part of a 32-bit stream."""
        return self._group("after", op).wide

    def add_narrow(self, op: Fused, node: ir.Node) -> None:
        """Adds an op that gives the numbers of a 32-bit stream in 16 bits, for a convolution or a linear layer."""
        group = _Group(max(2.0**-16, self._size(node)), read=True, asked={node: op})
        self._groups[self._find(("before", op))] = self._groups[self._find(("after", op))] = group

    def narrow(self, op: Fused) -> bool:
        """Whether the op has to clamp what it stores to 14 bits."""
        group = self._group("after", op)
        return group.read and group.free

    # Groups of maps with the same steps.

    def _find(self, cell: tuple[str, Fused]) -> tuple[str, Fused]:
        while cell in self._parents:
            cell = self._parents[cell]
        return cell

    def _union(self, a: tuple[str, Fused], b: tuple[str, Fused]) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            self._parents[a] = b

    def _tie(self, op: Fused) -> None:
        if op.act_kind in ("", "clamp", "prelu"):
            self._union(("before", op), ("after", op))
        tied = [op.residual] if op.residual is not None else []
        if op.copies_input:
            tied += [op.source, *([op.other] if op.other is not None else [])]
        for node in tied:
            if node in self.by_value:
                self._union(("before", op), ("after", self.by_value[node]))

    def _group(self, side: str, op: Fused) -> _Group:
        return self._groups[self._find((side, op))]

    def _raw_dots(self) -> set[_Group]:
        """Groups of dot products as they are, in steps of 1: whole numbers that are pooled before they are scaled."""
        candidates: dict[_Group, bool] = {}
        for op in self.ops:
            for side in ("before", "after"):
                group = self._group(side, op)
                group.ops.add(op)
                candidates[group] = candidates.get(group, True) and (_is_raw(op) or op.only_moves)
        return {
            group
            for group, whole in candidates.items()
            if whole and any(isinstance(op.core, ir.Dot) for op in group.ops)
        }

    # The largest numbers of groups.

    def _contribute(self, op: Fused) -> None:
        before, after = self._group("before", op), self._group("after", op)
        if isinstance(op.core, ir.Conv) and op.source in self.by_value:
            self._group("after", self.by_value[op.source]).read = True
        if op.act_kind == "prelu":
            after.free = False
        if op.act is not None and op.act_kind == "clamp":
            if op.act.bound <= STATIC:
                after.largest = max(after.largest, op.act.bound)
            else:
                after.asked.setdefault(op.value, op)
        elif op.act is not None and op.act_kind == "step":
            after.largest = max(after.largest, op.act.bound, 2.0**-16)
            after.level = max(after.level, op.act.bound)
        elif op.act_kind == "sigmoid":
            after.largest = max(after.largest, 1.0)
            before.asked.setdefault(op.summed, op)
        elif self._is_unbounded(op):
            for node in (op.summed, op.value):
                after.asked.setdefault(node, op)

    def _is_unbounded(self, op: Fused) -> bool:
        """Whether the size of what is stored matters and nothing says what it is."""
        if self._group("before", op) in self.raw or (op.core is not None and op.core.in_float):
            return False
        if not op.wants_map and op.act is None and (op.sign is None or op.sign.threshold is None):
            return False  # signs do not depend on the scale
        if op.only_moves or self.is_wide(op) or self.for_linear(op):
            return False
        return not (isinstance(op.core, ir.AvgPool) and op.act is None and op.residual is None and self._is_mean(op))

    def _is_mean(self, op: Fused) -> bool:
        """Whether an average, scaled, stays within what it averages, by the clamp of the latter."""
        limit = self.bound(op.source)
        if limit is None:
            return False
        scale, offset = (1.0, 0.0) if op.affine is None else (np.abs(op.affine.scale), np.abs(op.affine.offset))
        return float(np.max(scale * limit + offset)) <= max(1.0, limit)

    def bound(self, node: ir.Node) -> float | None:
        """The largest |x| of a map by a clamp before it, if there is one."""
        op = self.by_value.get(node)
        while op is not None and op.only_moves and op.other is None and not isinstance(op.core, ir.Gather):
            op = self.by_value.get(op.source)
        clamp = op.act if op is not None and op.act_kind == "clamp" else None
        return clamp.bound if clamp is not None and np.isfinite(clamp.bound) else None

    def is_wide(self, op: Fused) -> bool:
        """Whether a convolution's sums can be stored in 32 bits: they are only added to others."""
        readers = self.readers[op.value]
        alone = op.act is None and op.residual is None and op.sign is None and bool(readers)
        on_map = isinstance(op.core, ir.Conv) and not isinstance(op.source, ir.Input)
        return on_map and alone and all(r.residual is op.value and r.source is not op.value for r in readers)

    def for_linear(self, op: Fused) -> bool:
        """Whether an op's results, which no clamp bounds, are all that classifiers read: their size is known then."""
        readers = self.readers[op.value]
        bounded = isinstance(op.core, ir.AvgPool) or (isinstance(op.core, ir.Dot) and op.act is not None)
        alone = bounded and op.residual is None and op.sign is None and bool(readers)
        prelu = op.act is None or (op.act.kind == "prelu" and op.act.positive is None)
        coarse = self.ranges is not None and self._largest(op) > COARSE
        return alone and prelu and not coarse and all(isinstance(reader.core, ir.Linear) for reader in readers)

    def _largest(self, op: Fused) -> float:
        """The largest number that an op can give by what is known of its input; infinity if nothing is."""
        if isinstance(op.core, ir.Dot):
            return op.scaled(op.core.positive[0].size)
        source = self.by_value.get(op.source)
        if source is not None and self._group("after", source) in self.raw:
            return op.scaled(max(o.core.positive[0].size for o in self._group("after", source).ops if _is_raw(o)))  # type: ignore[union-attr]
        bound = self.bound(op.source)
        return np.inf if bound is None else op.scaled(bound)

    def _measure(self) -> None:
        asked = {node: op for group in self._groups.values() for node, op in group.asked.items()}
        if not asked:
            return
        if self.ranges is None:
            op = next(iter(asked.values()))
            raise NotIntegerError(
                f"{op.name}: its result is not clamped, so an integer file needs calibration images for its scale"
            )
        self.measured = self.ranges(list(asked))
        for group in self._groups.values():
            for node, op in group.asked.items():
                largest = self.measured[node] * HEADROOM
                if op.act is not None and op.act_kind == "clamp" and node is op.value:
                    largest = min(largest, op.act.bound)
                if op.act_kind == "sigmoid":
                    largest = min(largest, SIGMOID)
                group.largest = max(group.largest, largest, 2.0**-16)

    # Streams of 32 bits.

    def _widen(self) -> None:
        """Groups with residuals that nothing clamps get 32 bits, and steps for the largest sum there can be."""
        groups = {self._group(side, op) for op in self.ops for side in ("before", "after")}
        for group in groups:
            group.wide = bool(group.asked) and group not in self.raw and self._may_be_wide(group)
        # The format's bound on a sum over pixels counts the pixels, 0 to 255, and their zero points apart.
        pixels = float(((1 + np.abs(self.mean)) / self.std).max())
        largest: dict[ir.Node, float] = {op.source: pixels for op in self.ops if isinstance(op.source, ir.Input)}
        self._largest_sums = largest
        peaks: dict[_Group, float] = defaultdict(float)
        for op in self.ops:
            before, after = self._group("before", op), self._group("after", op)
            size = self._largest_sum(op, largest)
            peaks[before] = max(peaks[before], size)
            if before.wide:
                peaks[before] = max(peaks[before], ROOM / self._finest(op, largest))
            if op.act_kind == "prelu":
                size *= max(1.0, float(np.abs(op.act.slopes()).max()))  # type: ignore[union-attr]
            elif op.act is not None and op.act_kind in ("clamp", "step"):
                size = min(size, op.act.bound) if op.act_kind == "clamp" else op.act.bound
            elif op.act_kind == "sigmoid":
                size = 1.0
            peaks[after] = max(peaks[after], size)
            largest[op.value] = size if after.wide else min(size, LIMIT / self._steps(after))
        for group in groups:
            if group.wide:
                group.largest = peaks[group]

    def _finest(self, op: Fused, largest: Mapping[ir.Node, float]) -> float:
        """The most steps in which an op can give its results: its multipliers and weights have 16 bits, or 8."""
        scale = np.abs(op.scale_and_offset()[0])
        core = op.core
        if isinstance(core, ir.Conv) and isinstance(op.source, ir.Input):
            read = self.std[core.channels_of_weights()][:, :, None, None]
            weight, unit = np.abs(core.weight * scale[:, None, None, None]) / read, 256 if self.stem_peak == 127 else 1
            return self.stem_peak * unit * 255.0 / max(float(weight.max()), 1e-30)
        steps = self._source_steps(op, largest)
        if isinstance(core, ir.Conv):
            return self.peak * steps / max(float(np.abs(core.weight * scale[:, None, None, None]).max()), 1e-30)
        if isinstance(core, ir.AvgPool):
            return 32767.0 * steps * core.window[0] * core.window[1] / max(float(scale.max()), 1e-30)
        if isinstance(core, ir.Mul):
            other = self._steps(self._group("after", self.by_value[op.other]))  # type: ignore[index]
            return 32767.0 * steps * other / max(float(scale.max()), 1e-30)
        return np.inf

    def _source_steps(self, op: Fused, largest: Mapping[ir.Node, float]) -> float:
        """Steps of what an op reads, of a stream at least so many."""
        group = self._group("after", self.by_value[op.source]) if op.source in self.by_value else _Group(self.brightest)
        if not group.wide:
            return self._steps(group)
        return READ_TOP / max(2.0**-16, self._size(op.source) if isinstance(op.core, ir.Conv) else largest[op.source])

    def _size(self, node: ir.Node) -> float:
        """The largest number of a map in a 32-bit stream: its clamp, what was measured, or the largest there can be."""
        bound = self.bound(node)
        if bound is not None:
            return bound
        return self.measured[node] * HEADROOM if node in self.measured else self._largest_sums[node]

    def _may_be_wide(self, group: _Group) -> bool:
        adds = any(op.residual is not None and isinstance(op.core, ir.Dot) for op in group.ops)
        tables = any(op.act_kind == "sigmoid" and self._group("before", op) is group for op in self.ops)
        return adds and not tables and not group.level

    def _largest_sum(self, op: Fused, largest: Mapping[ir.Node, float]) -> float:
        """A bound on the sum that an op's activation reads, from bounds on what it reads."""
        a, b = (np.abs(values) for values in op.scale_and_offset())
        source, other = (0.0 if node is None else largest.get(node, 0.0) for node in (op.source, op.other))
        if isinstance(op.core, ir.Dot):
            ratio = 0.0 if op.core.window_scale is None else np.abs(op.core.window_scale)
            size = a * (1.0 + ratio) * op.core.largest
        elif isinstance(op.core, ir.Conv):
            size = a * np.abs(op.core.weight).sum(axis=(1, 2, 3)) * source
        elif isinstance(op.core, ir.Mul):
            size = a * source * other
        else:
            filling = 0.0 if op.core is None else abs(op.core.filling)
            size = a * max(source, other, filling)
        return float((size + b).max()) + (0.0 if op.residual is None else largest[op.residual])

    def _steps(self, group: _Group) -> float:
        if group in self.raw:
            return 1.0
        largest = group.largest or 1.0
        if group.wide:
            return 2.0 ** np.floor(np.log2(ROOM / largest))
        if not group.asked:
            largest = max(1.0, largest)
        steps = (READ_TOP if group.read and group.free else TOP) / largest
        return np.floor(steps * group.level) / group.level if steps * group.level >= 1 else steps


def _is_raw(op: Fused) -> bool:
    core = op.core
    return (
        isinstance(core, ir.Dot)
        and op.affine is None
        and op.residual is None
        and op.act is None
        and core.window_scale is None
        and core.pad_value == round(core.pad_value)
        and core.largest <= 32767
    )
