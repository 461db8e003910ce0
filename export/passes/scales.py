"""Scales: how many integer steps make up 1, for every op before and after its activation.

Maps that are added, concatenated or copied must have the same steps, so they form a group. The steps of a group come
from the largest number in its maps: a clamp gives that number, and maps without a clamp are measured on calibration
images. Integers have 16 bits, or 14 where a real convolution reads them, which leaves more bits for its weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.ops.fused import Fused

TOP = 32767.5  # steps of a group's largest number: 16 bits, centred
READ_TOP = 8191.5  # the same where a real convolution reads it
HEADROOM = 1.25  # numbers may be larger than the largest one that was measured by this factor
COARSE = 1024.0  # results that may be larger than this have too few fraction bits without measuring
STATIC = 8.0  # the bounds of a clamp up to this size are used; wider ones are measured
SIGMOID = 16.0  # beyond this a sigmoid is 0 or 1

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


class Scales:
    """The steps of all ops. Raises NotIntegerError if something has to be measured and `ranges` is None."""

    def __init__(self, ops: list[Fused], ranges: Ranges | None) -> None:
        self.ops, self.ranges = ops, ranges
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
        measured = self.ranges(list(asked))
        for group in self._groups.values():
            for node, op in group.asked.items():
                largest = measured[node] * HEADROOM
                if op.act is not None and op.act_kind == "clamp" and node is op.value:
                    largest = min(largest, op.act.bound)
                if op.act_kind == "sigmoid":
                    largest = min(largest, SIGMOID)
                group.largest = max(group.largest, largest, 2.0**-16)

    def _steps(self, group: _Group) -> float:
        if group in self.raw:
            return 1.0
        largest = group.largest or 1.0
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
