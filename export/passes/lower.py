"""Lower: ops with their constants as the file holds them; here those of float files, `quantize` has the integers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ovsw.export import ir
from ovsw.export.passes.fuse import Fused


@dataclass(eq=False)
class Lowered:
    """One op of the file. `fused` says what it reads and writes, `kind` is the element kind of its map.

    `constants` are its tensors by the names of `bnn.Op`, each with its element kind; bits are booleans, True for +1.
    In integer files a number n of its map stands for (n + centre) / steps, with a centre per channel.
    """

    fused: Fused
    kind: str = "f32"
    constants: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    act: str = "none"
    clamp: tuple[float, float] = (0.0, 0.0)
    steps: float = 1.0
    centre: np.ndarray | None = None


def lower(ops: list[Fused]) -> list[Lowered]:
    """The ops of a float file: weights in float32, everything per channel in float64."""
    return [_lowered(op) for op in ops]


def _lowered(op: Fused) -> Lowered:
    new, core = Lowered(op), op.core
    if isinstance(core, ir.Dot):
        new.constants["weight"] = ("bits", channels_last(core.positive))
    elif isinstance(core, (ir.Conv, ir.Linear)):
        new.constants["weight"] = ("f32", channels_last(core.weight))
    if op.affine is not None:
        new.constants |= {"scale": ("f64", op.affine.scale), "offset": ("f64", op.affine.offset)}
    if op.act is not None:
        new.act, new.clamp = op.act.kind, (op.act.lo, op.act.hi)
        if op.act.slope is not None:
            new.constants["slope"] = ("f32", op.act.slope)
    return new


def channels_last(weight: np.ndarray) -> np.ndarray:
    """From (out, in, height, width) to the file's (out, height, width, in); a matrix stays as it is."""
    return weight.transpose(0, 2, 3, 1) if weight.ndim == 4 else weight
