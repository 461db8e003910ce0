"""Zeros: which integer maps must hold 0 exactly, and in which of their channels 0 counts as negative.

An op that drops fractions gives numbers centred at 1/2: their signs are exact, but none of them is 0. That is right for
sums of real numbers, which are hardly ever 0. Other numbers often are 0: results of a ReLU, padding, differences that
are tested for equality, dot products without an offset. Such maps are rounded instead (`exact`). Where only signs `> 0`
are taken of them, an exact 0 is stored just below 0 (`strict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.ops.fused import Fused


def ends_at_zero(op: Fused) -> bool:
    """Whether it clamps at 0, as a ReLU does."""
    return op.act is not None and op.act_kind == "clamp" and 0.0 in (op.act.lo, op.act.hi)


class Zeros:
    def __init__(self, ops: Sequence[Fused], readers: Mapping[ir.Node, list[Fused]]) -> None:
        self.readers = readers
        self._exact: dict[ir.Node, bool] = {}
        self._signs: dict[Fused, tuple[np.ndarray, np.ndarray]] = {}
        self._steps: dict[Fused, int] = {}  # how many are taken of an op's results
        self._tested: dict[Fused, bool] = {}
        for op in reversed(ops):  # readers first
            self._signs[op] = self._find_signs(op)
            self._steps[op] = self._count_steps(op)
            self._tested[op] = self._is_tested(op)
        for op in ops:
            self._exact[op.value] = self._is_exact(op)

    def exact(self, op: Fused) -> bool:
        """Whether 0 has to be 0 itself in an op's results: its centre is a whole number."""
        return self._exact[op.value]

    def strict(self, op: Fused) -> np.ndarray:
        """Channels in which a result that is exactly 0 has to end up below it."""
        return self._signs[op][0]

    def add(self, op: Fused, like: Fused | None = None) -> None:
        """Adds an op that was split off another one, before its activation; without `like` no sign is taken of it."""
        none = np.zeros((2, op.value.shape[0]), bool)
        self._exact[op.value], self._signs[op] = False, (none[0], none[1]) if like is None else self._signs[like]

    def _is_exact(self, op: Fused) -> bool:
        if op.act is not None and op.act_kind in ("prelu", "sigmoid"):
            if self._steps[op] > 1:  # x == 0 is x >= 0 without x > 0
                raise NotIntegerError(
                    f"{op.act.name}: is compared with == or !=, and integers cannot represent its 0 exactly"
                )
            return False
        if ends_at_zero(op) or self._tested[op] or op.act_kind == "step":
            return True
        if op.affine is not None and op.affine.offset.any():
            return False
        terms = [node for node in op.reads if not isinstance(node, ir.Sign)]  # dots of signs are often 0
        known = [self._exact.get(node, False) for node in terms]
        return any(known) if isinstance(op.core, ir.Mul) else all(known)

    def _count_steps(self, op: Fused) -> int:
        readers = self.readers[op.value]
        moved = sum(self._steps[reader] for reader in readers if reader.only_moves)
        return moved + sum(reader.act_kind == "step" for reader in readers)

    def _is_tested(self, op: Fused) -> bool:
        """Whether 0 is compared with, padded with, or has two different signs."""
        strict, other = self._signs[op]
        if (strict & other).any() or self._steps[op]:
            return True
        for reader in self.readers[op.value]:
            if reader.source is op.value and reader.core is not None and reader.core.pads_with_zeros():
                return True
            if reader.only_moves and self._tested[reader]:
                return True
        return False

    def _find_signs(self, op: Fused) -> tuple[np.ndarray, np.ndarray]:
        """Channels of which signs `> 0` are taken, and `>= 0`, also by ops that move them or add to them."""
        strict, other = np.zeros((2, op.value.shape[0]), bool)
        if op.sign is not None:
            threshold, above = op.sign.levels()
            strict, other = (threshold == 0) & above, (threshold == 0) & ~above
        for reader in self.readers[op.value]:
            if not reader.copies_input and reader.residual is not op.value:
                continue
            taken = [_channels_read(reader, op, channels) for channels in self._signs[reader]]
            strict, other = strict | taken[0], other | taken[1]
        return strict, other


def _channels_read(reader: Fused, op: Fused, channels: np.ndarray) -> np.ndarray:
    """The channels of `op` that end up in these channels of its reader."""
    if reader.core is None or reader.residual is op.value:
        return channels
    return reader.core.channels_read(channels, op.value.shape[0], first=reader.source is op.value)
