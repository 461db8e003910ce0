"""A float model computed from docs/format.md alone, in naive loops: it shares nothing with the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ovsw import format as bnn

from support.second_reading import e, ln

Check = Callable[[np.ndarray], None]


def signs(tensor: bnn.Tensor) -> np.ndarray:
    """A bits tensor as +1 and -1, bit by bit."""
    n = tensor.shape[-1]
    words = tensor.array.reshape(-1, tensor.array.shape[-1]).tolist()
    flat = [1 if row[c // 64] >> (c % 64) & 1 else -1 for row in words for c in range(n)]
    return np.array(flat, np.float64).reshape(tensor.shape)


@dataclass
class Evaluation:
    """What a model gives for one image.

    `outputs` are as from `Engine.run`; `values` are all maps, (rows, columns, channels). `margin` is the smallest
    distance of a number from the threshold that decides its sign, or from 0 before a step, in units of the map's size;
    only where the number depends on the order of some sum. What is nearer than a rounding error may come out either
    way.
    """

    outputs: Any
    values: dict[int, np.ndarray]
    margin: float = np.inf
    rounded: set[int] = field(default_factory=set)

    def decide(self, v: np.ndarray, threshold: np.ndarray | float) -> None:
        size = max(1.0, float(np.abs(v).max()))
        self.margin = min(self.margin, float(np.abs(v - threshold).min()) / size)


def evaluate(model: bnn.Model, image: np.ndarray) -> Evaluation:
    """Runs a model on float32 values (channels, rows, columns)."""
    found = Evaluation(None, {0: image.transpose(1, 2, 0).astype(np.float32)})
    values = found.values
    for op in model.ops:
        other = None if op.residual is None else values[op.residual].astype(np.float64)
        rounds = op.kind in ("conv", "linear", "softmax", "log_softmax") or op.act == "sigmoid"
        rounds |= op.input in found.rounded or op.residual in found.rounded
        v = affine(model, op, values[op.input].astype(np.float64), other, lambda products: None).astype(np.float32)
        if op.kind == "round" and rounds:
            x = values[op.input]
            found.decide(x, np.floor(x) + 0.5)
        if op.act == "step" and rounds:
            found.decide(v, 0.0)
        v = activation(model, op, v)
        shape = (v.shape[2], v.shape[0], v.shape[1])
        threshold = model.tensors[op.threshold].array if op.threshold is not None else np.float32(0)
        if op.bits is not None:
            assert model.values[op.bits] == bnn.Value("bits", *shape)
            values[op.bits] = np.where(v >= threshold, 1, -1)
            if rounds and op.act != "step":
                found.decide(v, threshold)
        if op.out is not None:
            assert model.values[op.out] == bnn.Value("f32", *shape)
            values[op.out] = v
            found.rounded |= {op.out} if rounds else set()
    results = [values[i] for i in model.outputs]
    shaped = [v.reshape(-1) if v.shape[:2] == (1, 1) else v.transpose(2, 0, 1) for v in results]
    found.outputs = tuple(shaped) if model.more_outputs else shaped[0]
    return found


def affine(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    """t of an op, float64 (rows, columns, channels), from its input (the same, of float32 numbers or signs).

    `check` sees the products of each sum of a conv or linear.
    """
    if op.kind in ("softmax", "log_softmax"):
        return softmax(op, x)
    t = CORES[op.kind](model, op, x, other, check)
    if op.scale is not None and op.offset is not None:
        scale = model.tensors[op.scale].array
        if scale.ndim == 2:
            ones = np.ones(model.tensors[op.weight or 0].shape)
            t = scale[0] * t + scale[1] * slide(op, x, ones, np.float32(op.pad_value), check=None)
        else:
            t = scale * t
        t = t + model.tensors[op.offset].array
    return t if other is None or op.kind in ("mul", "concat") else t + other


def activation(model: bnn.Model, op: bnn.Op, u: np.ndarray) -> np.ndarray:
    lo, hi = (np.float32(n) for n in op.clamp)
    if op.act == "clamp":
        return np.minimum(np.maximum(u, lo), hi)
    if op.act == "step":
        return np.where(u >= 0, hi, lo)
    if op.act == "sigmoid":
        return (1 / (1 + exp(-u.astype(np.float64)))).astype(np.float32)
    if op.act == "prelu":
        slope = model.tensors[op.slope or 0].array
        below, above = slope if slope.ndim == 2 else (slope, np.float32(1))
        return np.where(u >= 0, u * above, u * below)
    return u


def exp(x: np.ndarray) -> np.ndarray:
    return np.vectorize(e, otypes=[np.float64])(x)


# --- cores -----------------------------------------------------------------------------------------------------------


def taps(op: bnn.Op, y: int, x: int) -> Iterator[tuple[int, int, int, int]]:
    """All taps of a window: (i, j) in it, and row and column in the map."""
    for i, j in itertools.product(range(op.window[0]), range(op.window[1])):
        row = y * op.stride[0] + i * op.dilation[0] - op.pad[0]
        yield i, j, row, x * op.stride[1] + j * op.dilation[1] - op.pad[1]


def windows(op: bnn.Op, x: np.ndarray) -> tuple[int, int]:
    """How many fit into the rows and columns: counted, not divided."""
    counts = []
    for n, k, s, p, d in zip(x.shape[:2], op.window, op.stride, op.pad, op.dilation):
        last = n + p - ((k - 1) * d + 1)  # the last row on which one may start
        starts = [at for at in range(-p, n + 2 * p + s, s) if at <= last]
        if op.ceil and starts[-1] < last and starts[-1] + s < n:
            starts.append(starts[-1] + s)
        counts.append(len(starts))
    return counts[0], counts[1]


def slide(op: bnn.Op, x: np.ndarray, weight: np.ndarray, pad_value: float, check: Check | None) -> np.ndarray:
    """A convolution; what is outside is `pad_value`."""
    height, width = windows(op, x)
    out, per_group = len(weight), weight.shape[3]
    groups = x.shape[2] // per_group
    by_group = weight.reshape(groups, out // groups, *weight.shape[1:])
    result = np.zeros((height, width, out))
    for y, z in itertools.product(range(height), range(width)):
        products, outside = [np.zeros((out, 1))], np.zeros(out)
        for i, j, r, s in taps(op, y, z):
            if 0 <= r < x.shape[0] and 0 <= s < x.shape[1]:
                products.append((by_group[:, :, i, j] * x[r, s].reshape(groups, 1, per_group)).reshape(out, per_group))
            else:
                outside += weight[:, i, j].sum(axis=1)
        inside = np.concatenate(products, axis=1)
        if check is not None:
            for row in inside:
                check(row)
        result[y, z] = inside.sum(axis=1) + pad_value * outside
    return result


def bconv(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    return slide(op, x, signs(model.tensors[op.weight or 0]), np.float64(np.float32(op.pad_value)), check=None)


def conv(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    return slide(op, x, model.tensors[op.weight or 0].array.astype(np.float64), 0.0, check)


def linear(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    products = model.tensors[op.weight or 0].array.astype(np.float64) * x.reshape(-1)
    for row in products:
        check(row)
    return products.sum(axis=1).reshape(1, 1, -1)


def pool(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    height, width = windows(op, x)
    result = np.zeros((height, width, x.shape[2]))
    (h, w), (ph, pw) = x.shape[:2], (0, 0) if op.exclude_pad else op.pad
    for y, z in itertools.product(range(height), range(width)):
        at = [(r, s) for _, _, r, s in taps(op, y, z)]
        inside = [x[r, s] for r, s in at if 0 <= r < h and 0 <= s < w]
        if op.kind == "maxpool":
            result[y, z] = np.max(inside, axis=0)
        else:
            n = sum(-ph <= r < h + ph and -pw <= s < w + pw for r, s in at)
            result[y, z] = np.sum(inside, axis=0) / n
    return result


def channel_pad(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), op.channels))


def pointwise(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    if op.kind == "round":
        return np.vectorize(round, otypes=[np.float64])(x)  # Python's: halves to even
    if op.kind == "eltwise":
        return x
    assert other is not None
    return x * other if op.kind == "mul" else np.concatenate([x, other], axis=2)


def gather(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    channels, height, width = model.values[written(op)].shape
    index = model.tensors[op.weight or 0].array.tolist()
    result = np.full((height, width, channels), np.float32(op.pad_value), np.float64)
    for y, z, c in itertools.product(range(height), range(width), range(channels)):
        at = (index[channels + y], index[channels + height + z], index[c])
        if -1 not in at:
            result[y, z, c] = x[at]
    return result


def bilinear(model: bnn.Model, op: bnn.Op, x: np.ndarray, other: np.ndarray | None, check: Check) -> np.ndarray:
    _, height, width = model.values[written(op)].shape
    table = model.tensors[op.weight or 0].array.reshape(-1, 2).tolist()
    more = np.pad(x, ((0, 1), (0, 1), (0, 0)))
    result = np.zeros((height, width, x.shape[2]))
    for y, z in itertools.product(range(height), range(width)):
        (r, fy), (s, fx) = table[y], table[height + z]
        fy, fx = fy / 2**30, fx / 2**30
        top = (1 - fx) * more[r, s] + fx * more[r, s + 1]
        result[y, z] = (1 - fy) * top + fy * ((1 - fx) * more[r + 1, s] + fx * more[r + 1, s + 1])
    return result


def softmax(op: bnn.Op, x: np.ndarray) -> np.ndarray:
    below = x - x.max(axis=2, keepdims=True)
    powers = exp(below)
    total = np.cumsum(powers, axis=2)[..., -1:]  # in order
    return powers / total if op.kind == "softmax" else below - np.vectorize(ln)(total)


def written(op: bnn.Op) -> int:
    ref = op.bits if op.out is None else op.out
    assert ref is not None
    return ref


CORES = {
    "bconv": bconv,
    "conv": conv,
    "linear": linear,
    "maxpool": pool,
    "avgpool": pool,
    "channel_pad": channel_pad,
    "eltwise": pointwise,
    "round": pointwise,
    "mul": pointwise,
    "concat": pointwise,
    "gather": gather,
    "bilinear": bilinear,
}


def normalised(model: bnn.Model, pixels: np.ndarray) -> np.ndarray:
    """Pixels (rows, columns, channels) as the network sees them, (channels, rows, columns)."""
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    return ((pixels.astype(np.float32) / np.float32(255) - mean) / std).transpose(2, 0, 1)
