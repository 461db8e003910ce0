"""docs/numerics.md over torch tensors: what the ops of an integer file compute, for batches of maps (n, c, h, w).

Whole numbers are held in floating point of a width in which they are exact: maps in float32 (i32 in float64), sums in
float32 where they stay below 2^24, else in float64. `ovsw.numerics` is the reference and shares no code with this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.ops.fused import Lowered

_CHUNK = 1 << 17  # elements that are scaled and shifted together: they stay in the cache from one pass to the next
_CORES = (ir.Dot, ir.Conv, ir.Linear, ir.AvgPool, ir.MaxPool, ir.ChannelPad)
_PAIRS = ("scale", "slope")  # tensors that may have a second row
_SIGNED = 2.0**-10  # a whole centre is moved by this, so that no n stands for exactly 0, whose sign would be ambiguous


def pixels(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The pixels 0..255, as float32, of normalised values."""
    factor, offset = (_per_channel(np.asarray(values, np.float32), x) for values in (std, mean))
    return (x.double() * factor).add_(offset).mul_(255).round_().clamp_(0, 255).float()


def meaning(op: Lowered, n: Tensor) -> Tensor:
    """What the numbers of an op's map stand for, float32, with the signs that the op's bits have."""
    if op.centre is None:
        return n  # logits
    centre = _per_channel(np.where(op.centre == np.rint(op.centre), op.centre + _SIGNED, op.centre), n).to(n.dtype)
    return (n + centre).mul_(1 / op.steps).float()


class Integers:
    """The values of a network's ops for one batch, computed as they are asked for and kept while others read them.

    `scaled` holds what binary layers have computed already, by name: dot products times the layer's scale.
    """

    def __init__(self, ops: list[Lowered], image: Tensor, mean: Sequence[float]) -> None:
        self.image = image
        self.zeros = np.floor(np.asarray(mean, np.float32).astype(np.float64) * 65280 + 0.5)
        self.ops = {op.fused.value: op for op in ops}
        self.values: dict[ir.Node, Tensor] = {}
        self.readers = Counter(node for op in ops for node in _reads(op))
        self.thresholds: dict[ir.Node | None, np.ndarray] = {
            op.fused.sign: op.constants["threshold"][1] for op in ops if "threshold" in op.constants
        }
        self.scaled: dict[str, tuple[Tensor, ir.BinaryConv]] = {}

    def value(self, node: ir.Node) -> Tensor:
        """The whole numbers of the map that an op writes, or the logits."""
        if isinstance(node, ir.Input):
            return self.image
        if node not in self.values:
            op = self.ops[node]
            self.values[node] = self._result(op, *map(self.value, _reads(op)))
            for source in _reads(op):
                self.readers[source] -= 1
                if self.readers[source] == 0:
                    self.values.pop(source, None)
        return self.values[node]

    def _result(self, op: Lowered, x: Tensor, residual: Tensor | None = None) -> Tensor:
        core = op.fused.core
        if isinstance(core, ir.Dot):
            return self._dots(op, core, x, residual)
        if isinstance(core, ir.Conv):
            pixels = isinstance(op.fused.source, ir.Input)
            return _stored(op, self._over_pixels(op, core, x) if pixels else _over_map(op, core, x), residual)
        if isinstance(core, ir.Linear):
            return _logits(op, x)
        if isinstance(core, ir.AvgPool):
            wide = x.double() if math.prod(core.window) > 512 else x  # 512 * 32768 is 2^24
            x = F.avg_pool2d(wide, core.window, core.stride, divisor_override=1)
        elif isinstance(core, ir.MaxPool):
            x = F.max_pool2d(x, core.window, core.stride, core.pad)
        elif isinstance(core, ir.ChannelPad):
            x = F.pad(x, (0, 0, 0, 0, core.before, core.after))
        return _stored(op, x, residual)

    def _dots(self, op: Lowered, core: ir.Dot, x: Tensor, residual: Tensor | None) -> Tensor:
        positive = op.constants["weight"][1].transpose(0, 3, 1, 2)
        if core.name in self.scaled:
            result, layer = self.scaled.pop(core.name)
            negated = positive[:, 0, 0, 0] != (layer.weight[:, 0, 0, 0] >= 0)  # whole channels, by the exporter
            return _stored(op, result, residual, unit=np.where(negated, -1, 1) / layer.scale)
        threshold = self.thresholds.get(op.fused.source)
        bits = x >= (0 if threshold is None else _per_channel(threshold, x))
        signs = bits.to(torch.float32).mul_(2).sub_(1)
        return _stored(op, _convolve(signs, np.where(positive, 1, -1), core, largest=1), residual)

    def _over_pixels(self, op: Lowered, core: ir.Conv, x: Tensor) -> Tensor:
        """The upper and the lower 8 bits of the weights by themselves: float32 holds the sums of either."""
        kind, weight = op.constants["weight"]
        weight = weight.transpose(0, 3, 1, 2) * (256 if kind == "i8" else 1)
        high, low = (
            _convolve(x, np.concatenate([weight >> 8, weight & 255]), core, largest=255).double().chunk(2, dim=1)
        )
        zeros = torch.from_numpy(self.zeros).to(x.device).view(1, -1, 1, 1).expand(1, *x.shape[1:])
        outside = _convolve(zeros, weight, core, largest=np.abs(self.zeros).max())
        return (high * 256).add_(low).sub_((outside.double() + 128).mul_(2.0**-8).floor_())


def unknown(op: Lowered) -> str | None:
    """What an op has that is not computed here, if it has."""
    core = op.fused.core
    if core is not None and not isinstance(core, _CORES):
        return type(core).__name__
    if op.act not in ("none", "clamp", "prelu") or any(
        len(a.shape) == 2 for n, (_, a) in op.constants.items() if n in _PAIRS
    ):
        return "this activation"
    for what, usual in (("dilation", (1, 1)), ("groups", 1), ("pad_value", 0), ("ceil", False), ("window_scale", None)):
        if getattr(core, what, usual) != usual:
            return what
    if isinstance(core, ir.AvgPool) and any(core.pad):
        return "padding of averages"
    residual = op.fused.residual
    return "a residual per channel" if residual is not None and residual.shape != op.fused.value.shape else None


def _reads(op: Lowered) -> list[ir.Node]:
    """The maps that an op reads, or whose signs it reads."""
    sources = [op.fused.source, *([] if op.fused.residual is None else [op.fused.residual])]
    return [node.inputs[0] if isinstance(node, ir.Sign) else node for node in sources]


def _over_map(op: Lowered, core: ir.Conv, x: Tensor) -> Tensor:
    return _convolve(x, op.constants["weight"][1].transpose(0, 3, 1, 2), core, largest=32768)


def _convolve(x: Tensor, weight: np.ndarray, core: ir.Window, largest: float) -> Tensor:
    """Exact sums of products with whole numbers of at most `largest`."""
    bound = largest * float(np.abs(weight).sum(axis=(1, 2, 3)).max())
    kind = torch.float32 if bound < 1 << 24 else torch.float64
    return F.conv2d(x.to(kind), torch.from_numpy(weight).to(x.device, kind), None, core.stride, core.pad)


def _stored(op: Lowered, sums: Tensor, residual: Tensor | None, unit: np.ndarray | None = None) -> Tensor:
    """v of docs/numerics.md; the sums are counted in units of 1 / `unit`, and rounded."""
    kinds = {name: array for name, (_, array) in op.constants.items()}
    a = b = None
    if "shift" in kinds:
        step = 2.0 ** -kinds["shift"].astype(np.float64)  # products with it are exact
        a, b = _per_channel(kinds.get("scale", 1) * step, sums), _per_channel(kinds["offset"] * step, sums)
    count = None if unit is None else _per_channel(unit, sums)
    slope = _per_channel(kinds["slope"] * 2.0**-15, sums) if "slope" in kinds else None
    lo, hi = op.clamp if op.act == "clamp" else (-32768, 32767)
    result = torch.empty_like(sums, dtype=torch.float64 if op.kind == "i32" else torch.float32)
    rows = max(1, _CHUNK // max(1, sums[:1].numel()))
    for start in range(0, len(sums), rows):
        part = slice(start, start + rows)
        q = sums[part].to(torch.float64, copy=True)
        if count is not None:
            q.mul_(count).round_()
        if a is not None and b is not None:
            q.mul_(a).add_(b).floor_()
        if residual is not None:
            q.add_(residual[part])
        if op.kind != "i32":
            q.clamp_(lo, hi)
        if slope is not None:
            q = torch.where(q >= 0, q, (2 * q + 1).mul_(slope).floor_().clamp_(-32768, 32767))
        result[part] = q
    return result


def _logits(op: Lowered, x: Tensor) -> Tensor:
    weight, scale, offset, shift = (op.constants[name][1] for name in ("weight", "scale", "offset", "shift"))
    rows = torch.from_numpy(weight.astype(np.float64)).to(x.device)
    half, step, added = (
        torch.from_numpy(values).to(x.device)
        for values in (np.floor(2.0 ** (shift - 1.0)), 2.0 ** -shift.astype(np.float64), offset.astype(np.float64))
    )
    sums = x.permute(0, 2, 3, 1).flatten(1).double() @ rows.T
    return sums.add_(half).mul_(step).floor_().add_(added).float() * float(np.float32(scale[0]))


def _per_channel(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64)).to(like.device).view(1, -1, 1, 1)
