"""A second reading of docs/numerics.md: one element at a time, in Python's integers, shared with no other code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ovsw import format as bnn

Map = list[list[list[Any]]]  # [row][column][channel]


def naive(model: bnn.Model, image: np.ndarray) -> dict[int, Map]:
    """All values of a small model as nested lists of Python integers, booleans for bits, np.float32 for f32."""
    values: dict[int, Map] = {0: image.tolist()}
    for op in model.ops:
        other = None if op.residual is None else values[op.residual]
        reading = Reading(model, op, values[op.input], other)
        out, bits = reading.run()
        if op.out is not None:
            values[op.out] = out
        if op.bits is not None:
            values[op.bits] = bits
    return values


def clamp16(n: int) -> int:
    return min(max(n, -32768), 32767)


class Reading:
    """One op on one image."""

    def __init__(self, model: bnn.Model, op: bnn.Op, x: Map, other: Map | None) -> None:
        self.model, self.op, self.x, self.other = model, op, x, other
        self.h, self.w, self.c = len(x), len(x[0]), len(x[0][0])
        refs = (op.scale, op.offset, op.shift, op.slope, op.threshold)
        arrays: list[Any] = [None if ref is None else model.tensors[ref].array.tolist() for ref in refs]
        self.scale, self.offset, self.shift, self.slope, self.threshold = arrays
        self.weight: Any = None
        if op.weight is not None:
            tensor = model.tensors[op.weight]
            self.weight = tensor.array.tolist()
            if tensor.dtype == "bits":
                self.weight = np.where(bnn.unpack_bits(tensor.array, tensor.shape[-1]), 1, -1).tolist()
            elif op.kind == "conv" and op.input == 0 and tensor.dtype == "i8":
                self.weight = (tensor.array.astype(int) * 256).tolist()
        written = op.bits if op.out is None else op.out
        assert written is not None
        self.shape = model.values[written].shape
        kind = "" if op.out is None else model.values[op.out].kind
        dtype = "" if op.threshold is None else model.tensors[op.threshold].dtype
        self.wide = "i32" in (kind, dtype)

    def run(self) -> tuple[Map, Map]:
        if self.op.kind in ("softmax", "log_softmax"):
            return [[self.softmax(pixel) for pixel in row] for row in self.x], []
        core: Callable[[int, int, int], Any] = getattr(self, self.op.kind)
        channels, height, width = self.shape
        out: Map = [[[core(y, x, k) for k in range(channels)] for x in range(width)] for y in range(height)]
        if self.op.kind in ("linear", "to_float"):
            return out, []
        for y, x, k in itertools.product(range(height), range(width), range(channels)):
            u = out[y][x][k]
            if self.other is not None and self.op.kind not in ("mul", "concat"):
                u += self.second(y, x, k)
            out[y][x][k] = self.activation(u, k)
        above = self.threshold or [0] * channels
        return out, [[[v >= t for v, t in zip(pixel, above)] for pixel in row] for row in out]

    def second(self, y: int, x: int, k: int) -> int:
        assert self.other is not None
        everywhere = len(self.other) == len(self.other[0]) == 1
        return int(self.other[0][0][k] if everywhere else self.other[y][x][k])

    def activation(self, u: int, k: int) -> int:
        op, slope = self.op, self.slope
        lo, hi = op.clamp
        if op.act == "clamp":
            return int(min(max(u, lo), hi))
        if op.act == "step":
            return int(hi if u >= 0 else lo)
        if self.wide:
            if op.act == "prelu":
                below, above = slope if isinstance(slope[0], list) else (slope, [2**30] * len(slope))
                u = (u * (below if u < 0 else above)[k] + 2**29) // 2**30
            return u
        v = clamp16(u)
        if op.act == "prelu":
            both = isinstance(slope[0], list)
            if v < 0:
                return clamp16((2 * v + 1) * (slope[0][k] if both else slope[k]) // 2**15)
            return clamp16((2 * v + 1) * slope[1][k] // 2**15) if both else v
        if op.act == "table":
            i, f = (v + 32768) // 256, v % 256
            return int((slope[i] * (256 - f) + slope[i + 1] * f + 128) // 256)
        return v

    # --- windows ---

    def taps(self, y: int, x: int) -> Iterator[tuple[int, int, int, int]]:
        """Every tap of a window: where it is in it, and in the map."""
        op = self.op
        for i, j in itertools.product(range(op.window[0]), range(op.window[1])):
            row = y * op.stride[0] + i * op.dilation[0] - op.pad[0]
            column = x * op.stride[1] + j * op.dilation[1] - op.pad[1]
            yield i, j, row, column

    def inside(self, row: int, column: int, pad: tuple[int, int] = (0, 0)) -> bool:
        return -pad[0] <= row < self.h + pad[0] and -pad[1] <= column < self.w + pad[1]

    def shifted(self, k: int, n: int) -> int:
        return int((n + self.offset[k]) // 2 ** self.shift[k])

    def scaled(self, k: int, n: int) -> int:
        unit = 65536 if self.model.values[self.op.input].kind == "i32" else 1
        return int((self.scale[k] * n + unit * self.offset[k]) // 2 ** self.shift[k])

    def first_channel(self, k: int) -> int:
        """Of the group that output channel k belongs to."""
        per_group = len(self.weight[0][0][0])
        groups = self.c // per_group
        return int(k // (len(self.weight) // groups)) * per_group

    def bconv(self, y: int, x: int, k: int) -> int:
        first, weight, scale = self.first_channel(k), self.weight[k], self.scale
        m, n = (scale[0][k], scale[1][k]) if isinstance(scale[0], list) else (scale[k], 0)
        total, outside = 0, 0
        for i, j, row, column in self.taps(y, x):
            for c, sign in enumerate(weight[i][j]):
                if self.inside(row, column):
                    element = 1 if self.x[row][column][first + c] else -1
                    total += m * sign * element + n * element
                else:
                    outside += m * sign + n
        pad_value = float(np.float32(self.op.pad_value))
        return self.shifted(k, total + math.floor(pad_value * float(outside) + 0.5))

    def conv(self, y: int, x: int, k: int) -> int:
        first, weight = self.first_channel(k), self.weight[k]
        mean = self.model.tensors[self.model.mean].array.tolist()
        total, zeros = 0, 0
        for i, j, row, column in self.taps(y, x):
            if self.inside(row, column):
                for c, number in enumerate(weight[i][j]):
                    total += number * self.x[row][column][first + c]
                    if self.op.input == 0:
                        zeros += number * math.floor(mean[first + c] * 65280 + 0.5)
        return self.shifted(k, total - (zeros + 128) // 256 if self.op.input == 0 else total)

    def maxpool(self, y: int, x: int, k: int) -> int:
        return int(max(self.x[row][column][k] for _, _, row, column in self.taps(y, x) if self.inside(row, column)))

    def avgpool(self, y: int, x: int, k: int) -> int:
        taps = [(row, column) for _, _, row, column in self.taps(y, x)]
        total = sum(self.x[row][column][k] for row, column in taps if self.inside(row, column))
        pad = (0, 0) if self.op.exclude_pad else self.op.pad
        n = sum(self.inside(row, column, pad) for row, column in taps)
        if n != len(taps):
            total = (2 * total * len(taps) + n) // (2 * n)
        return self.scaled(k, total)

    # --- all others ---

    def eltwise(self, y: int, x: int, k: int) -> int:
        return int(self.x[y][x][k])

    def channel_pad(self, y: int, x: int, k: int) -> int:
        c = k - self.op.channels[0]
        return int(self.x[y][x][c]) if 0 <= c < self.c else 0

    def mul(self, y: int, x: int, k: int) -> int:
        return self.scaled(k, self.x[y][x][k] * self.second(y, x, k))

    def concat(self, y: int, x: int, k: int) -> int:
        assert self.other is not None
        return int(self.x[y][x][k] if k < self.c else self.other[y][x][k - self.c])

    def gather(self, y: int, x: int, k: int) -> int:
        channels, height, _ = self.shape
        c, row, column = self.weight[k], self.weight[channels + y], self.weight[channels + height + x]
        return int(self.op.pad_value if -1 in (c, row, column) else self.x[row][column][c])

    def bilinear(self, y: int, x: int, k: int) -> int:
        row, fy = self.weight[2 * y : 2 * y + 2]
        column, fx = self.weight[2 * (self.shape[1] + x) :][:2]
        total = 2**27
        for r, gy in ((row, 2**14 - (fy >> 16)), (row + 1, fy >> 16)):
            for s, gx in ((column, 2**14 - (fx >> 16)), (column + 1, fx >> 16)):
                if gy and gx:
                    total += gy * gx * self.x[r][s][k]
        return total // 2**28

    def linear(self, y: int, x: int, k: int) -> np.float32:
        flat = [n for row in self.x for pixel in row for n in pixel]
        total = sum(a * b for a, b in zip(self.weight[k], flat))
        shift, offset = self.shift[k], self.offset[k]
        q = (total + (2 ** (shift - 1) if shift else 0)) // 2**shift + offset
        return np.float32(np.float32(q) * np.float32(self.scale[0]))

    def to_float(self, y: int, x: int, k: int) -> np.float32:
        return np.float32((float(self.x[y][x][k]) + self.offset[k]) * self.scale[k])

    def softmax(self, pixel: list[np.float32]) -> list[np.float32]:
        numbers = [float(n) for n in pixel]
        most = max(numbers)
        powers = [e(n - most) for n in numbers]
        total = 0.0
        for power in powers:
            total += power
        if self.op.kind == "softmax":
            return [np.float32(power / total) for power in powers]
        return [np.float32((n - most) - ln(total)) for n in numbers]


def e(x: float) -> float:
    """e(x) of docs/format.md in Python's floats, which fuse nothing."""
    x = min(max(x, -745.0), 709.0)
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = 0.0
    for n in range(13, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    a = k // 2
    return p * 2.0**a * 2.0 ** (k - a)


def ln(s: float) -> float:
    """ln(s) of docs/format.md, s >= 1."""
    k = 0
    while s >= 1.5:
        s, k = s / 2, k + 1
    t = (s - 1) / (s + 1)
    z, h = t * t, 0.0
    for i in range(20, -1, -1):
        h = h * z + 1.0 / (2 * i + 1)
    return k * 0.6931471805599453 + 2 * t * h
