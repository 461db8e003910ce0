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
    In integer files a number n of its map stands for (n + centre) / steps, with a centre per channel; `sum_steps` are
    the steps of what its activation reads. `pad_value` is what a gather puts where there is nothing. `measured`: the
    steps come from images, what is stored may saturate.
    """

    fused: Fused
    kind: str = "f32"
    constants: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    act: str = "none"
    clamp: tuple[float, float] = (0.0, 0.0)
    steps: float = 1.0
    sum_steps: float = 1.0
    centre: np.ndarray | None = None
    pad_value: float = 0.0
    measured: bool = False


def lower(ops: list[Fused]) -> list[Lowered]:
    """The ops of a float file: weights in float32, everything per channel in float64."""
    return [_lowered(op) for op in ops]


def _lowered(op: Fused) -> Lowered:
    new, core, window = Lowered(op), op.core, None
    if isinstance(core, ir.Dot):
        new.constants["weight"] = ("bits", channels_last(core.positive))
        window = core.window_scale
    elif isinstance(core, (ir.Conv, ir.Linear)):
        new.constants["weight"] = ("f32", channels_last(core.weight))
    elif isinstance(core, (ir.Gather, ir.Bilinear)):
        new.constants["weight"] = ("i32", positions(core))
        new.pad_value = core.value if isinstance(core, ir.Gather) else 0.0
    if op.affine is not None:
        scale = op.affine.scale if window is None else np.stack([op.affine.scale, op.affine.scale * window])
        new.constants |= {"scale": ("f64", scale), "offset": ("f64", op.affine.offset)}
    elif window is not None:
        ones = np.ones_like(window)
        new.constants |= {"scale": ("f64", np.stack([ones, window])), "offset": ("f64", 0 * ones)}
    if op.act is not None:
        new.act, new.clamp = op.act.kind, (op.act.lo, op.act.hi)
        if op.act.slope is not None:
            new.constants["slope"] = ("f32", slopes(op.act))
    if op.sign is not None and (op.sign.threshold is not None or op.sign.strict is not None):
        new.constants["threshold"] = ("f32", _at_least(*op.sign.levels()))
    return new


def _at_least(threshold: np.ndarray, strict: np.ndarray) -> np.ndarray:
    """The smallest float32 that is not below, or, where strict, that is above."""
    with np.errstate(over="ignore"):
        near = np.clip(threshold.astype(np.float32), np.finfo(np.float32).min, np.finfo(np.float32).max)
    short = (near < threshold) | (strict & (near == threshold))
    return np.where(short, np.nextafter(near, np.float32(np.inf)), near)


def slopes(act: ir.Act) -> np.ndarray:
    """Those below zero, and in a second row, if they are not 1, those above."""
    assert act.slope is not None
    return act.slope if act.positive is None else np.stack([act.slope, act.positive])


def positions(core: ir.Gather | ir.Bilinear) -> np.ndarray:
    """Where each output of a core that only moves numbers takes them from, as the file has it."""
    if isinstance(core, ir.Gather):
        return np.concatenate([core.channels, core.rows, core.columns])
    parts = []
    for index, fraction in ((core.rows, core.row_fractions), (core.columns, core.column_fractions)):
        steps = np.rint(np.asarray(fraction, np.float64) * (1 << 30)).astype(np.int64)
        parts.append(np.stack([index + (steps >> 30), steps & ((1 << 30) - 1)], axis=1).reshape(-1))
    return np.concatenate(parts)


def channels_last(weight: np.ndarray) -> np.ndarray:
    """From (out, in, height, width) to the file's (out, height, width, in); a matrix stays as it is."""
    return weight.transpose(0, 2, 3, 1) if weight.ndim == 4 else weight
