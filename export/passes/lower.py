"""Lower: fused ops with the constants of a float file: weights in float32, everything per channel in float64."""

from __future__ import annotations

from ovsw.export.ops.fused import Fused, Lowered


def lower(ops: list[Fused]) -> list[Lowered]:
    return [_lowered(op) for op in ops]


def _lowered(op: Fused) -> Lowered:
    new, core = Lowered(op), op.core
    if core is not None:
        new.constants |= core.tensors()
        new.pad_value = core.filling
    new.constants |= (core or op.value).scaling(op.affine)
    if op.act is not None:
        new.act, new.clamp = op.act.kind, (op.act.lo, op.act.hi)
        if op.act.slope is not None:
            new.constants["slope"] = ("f32", op.act.slopes())
    if op.sign is not None:
        new.constants |= op.sign.tensors()
    return new
