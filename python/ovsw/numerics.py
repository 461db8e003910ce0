"""docs/numerics.md in numpy: what a file with numerics `integer` computes; `check` says whether it may.

The reference for the engine in this mode: written from the text alone, in naive int64, without code of the kernels.
Matrix products run in a floating-point type in which the integers at hand are exact. `exp` and `log` are those of the
text, in double, operation by operation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.bounds import (
    HIGH,
    LOW,
    OFFSET_UNIT,
    check,
    integers,
    is_wide,
    real_weight,
    sides,
    stored,
    two_rows,
    zero_points,
)

__all__ = ["check", "exp", "log", "pixels", "run_op", "simulate", "simulate_values", "zero_points"]

_CHUNK = 1 << 17  # input pixels that are simulated together


def pixels(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The uint8 (n, h, w, c) pixels of normalised float values (n, c, h, w)."""
    wide = np.asarray(x, np.float64).transpose(0, 2, 3, 1) * np.asarray(std, np.float64) + np.asarray(mean, np.float64)
    return np.clip(np.rint(wide * 255), 0, 255).astype(np.uint8)


def simulate(model: bnn.Model, images: np.ndarray) -> Any:
    """What `Engine.run` gives for uint8 (n, h, w, c) pixels, as float32 arrays; raises FormatError for a bad model.

    That is (n, classes), or (n, c, h, w) of a larger map, and a tuple of these if there are several outputs.
    """
    check(model)
    _check_images(model, images)
    step = max(1, _CHUNK // (model.values[0].h * model.values[0].w))
    parts = [_values(model, images[i : i + step], keep=False) for i in range(0, len(images), step)]
    results = []
    for output in model.outputs:
        c, h, w = model.values[output].shape
        maps = np.concatenate([np.zeros((0, h, w, c), np.float32), *(part[output] for part in parts)])
        results.append(maps.reshape(-1, c) if h == w == 1 else np.ascontiguousarray(maps.transpose(0, 3, 1, 2)))
    return tuple(results) if model.more_outputs else results[0]


def simulate_values(model: bnn.Model, images: np.ndarray) -> dict[int, np.ndarray]:
    """All values by index, (n, h, w, c): integers as int64, bits as bool (True is +1), f32 as float32."""
    check(model)
    _check_images(model, images)
    return _values(model, images, keep=True)


def _check_images(model: bnn.Model, images: np.ndarray) -> None:
    c, h, w = model.values[0].shape
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (h, w, c):
        raise ValueError(f"the images are {images.dtype} {images.shape}, expected uint8 (n, {h}, {w}, {c})")


# --- op by op --------------------------------------------------------------------------------------------------------


def _values(model: bnn.Model, images: np.ndarray, keep: bool) -> dict[int, np.ndarray]:
    """All values; without `keep` only those that are still read, and the outputs."""
    last = {ref: i for i, op in enumerate(model.ops) for ref in (op.input, op.residual) if ref is not None}
    values: dict[int, np.ndarray] = {0: images.astype(np.int64)}
    for i, op in enumerate(model.ops):
        residual = None if op.residual is None else values[op.residual]
        v, bits = run_op(model, op, values[op.input], residual)
        if op.out is not None:
            values[op.out] = v
        if op.bits is not None:
            values[op.bits] = bits
        if not keep:
            for ref in {op.input, op.residual, op.out, op.bits} - {None, *model.outputs}:
                if ref in values and last.get(ref, -1) <= i:
                    del values[ref]
    return values


def run_op(
    model: bnn.Model, op: bnn.Op, x: np.ndarray, residual: np.ndarray | None, dots: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What one op makes of its inputs: the numbers it stores, or would store, and their bits.

    `dots` are the dot products of a bconv without window scale and padding, where they are known already.
    """
    if op.kind in _FLOATS:
        v = _FLOATS[op.kind](model, op, x)
    else:
        q = _core(model, op, x, residual) if dots is None else _shifted(model, op, integers(model, op.scale) * dots)
        added = residual is not None and op.kind not in ("mul", "concat")
        u = q + residual if added else q
        v = _wide_activation(model, op, u) if is_wide(model, op) else _activation(model, op, u)
    return v, v >= (0 if op.threshold is None else integers(model, op.threshold))


def _activation(model: bnn.Model, op: bnn.Op, u: np.ndarray) -> np.ndarray:
    if op.act in ("clamp", "step"):
        low, high = (int(stored(n)) for n in op.clamp)
        return np.clip(u, low, high) if op.act == "clamp" else np.where(u >= 0, high, low)
    v = np.clip(u, LOW, HIGH)
    if op.act == "prelu":
        below, above = two_rows(integers(model, op.slope))
        scaled = (2 * v + 1) * np.where(v < 0, below, 0 if above is None else above) >> 15
        return np.where((v >= 0) & (above is None), v, np.clip(scaled, LOW, HIGH))
    if op.act == "table":
        table = integers(model, op.slope)
        at, fraction = (v - LOW) >> 8, v & 255
        return (table[at] * (256 - fraction) + table[at + 1] * fraction + 128) >> 8
    return v


def _wide_activation(model: bnn.Model, op: bnn.Op, u: np.ndarray) -> np.ndarray:
    """Activations that clamp nothing to 16 bits; the slopes of a prelu are in steps of 2^-30."""
    if op.act == "prelu":
        below, above = two_rows(integers(model, op.slope))
        return (u * np.where(u < 0, below, 1 << 30 if above is None else above) + (1 << 29)) >> 30
    return u if op.act == "none" else _activation(model, op, u)


def _core(model: bnn.Model, op: bnn.Op, x: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """q, as int64 (n, h, w, channels)."""
    if op.kind == "eltwise":
        return x
    if op.kind == "channel_pad":
        return np.pad(x, ((0, 0), (0, 0), (0, 0), op.channels))
    if op.kind == "maxpool":
        return np.max(_taps(op, x, np.iinfo(np.int64).min), axis=0)
    if op.kind == "concat":
        return np.concatenate([x, residual], axis=-1)
    if op.kind == "gather":
        return _gather(model, op, x)
    if op.kind == "bilinear":
        return _bilinear(model, op, x)
    if op.kind == "conv":
        sums = _real_dots(model, op, x)
    elif op.kind == "bconv":
        sums = _binary_sums(model, op, np.where(x, 1, -1))
    else:
        sums = integers(model, op.scale) * (x * residual if op.kind == "mul" else _averages(op, x))
        if model.values[op.input].kind == "i32":
            return (sums + integers(model, op.offset) * OFFSET_UNIT) >> integers(model, op.shift)
    return _shifted(model, op, sums)


def _shifted(model: bnn.Model, op: bnn.Op, sums: np.ndarray) -> np.ndarray:
    return (sums + integers(model, op.offset)) >> integers(model, op.shift)


def _real_dots(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    weight = real_weight(model, op)
    if op.input != 0:
        return _convolve(op, x, weight, -LOW)
    zeros = np.broadcast_to(zero_points(model), x.shape[1:])[None]
    return _convolve(op, x, weight, 255) - ((_convolve(op, zeros, weight, int(np.abs(zeros).max())) + 128) >> 8)


def _binary_sums(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    """M * Y + N * S + E; x is +1 and -1."""
    tensor = model.tensors[_index(op.weight)]
    weight = np.where(bnn.unpack_bits(tensor.array, tensor.shape[-1]), 1, -1)
    scale, window = two_rows(integers(model, op.scale))
    sums = scale * _convolve(op, x, weight, 1)
    if window is not None:
        groups = x.shape[3] // weight.shape[3]
        totals = _convolve(op, x, np.ones((groups, *weight.shape[1:]), np.int64), 1)
        sums += window * np.repeat(totals, len(weight) // groups, axis=-1)
    if op.pad_value:
        inside = np.stack(_taps(op, np.ones((1, *x.shape[1:3], 1), np.int64), 0), axis=-1)[..., 0, :]
        per_tap = weight.sum(axis=3).reshape(len(weight), -1)
        counted = scale * ((1 - inside) @ per_tap.T)
        if window is not None:
            counted = counted + window * weight.shape[3] * (1 - inside).sum(axis=-1, keepdims=True)
        sums += np.floor(stored(op.pad_value) * counted.astype(np.float64) + 0.5).astype(np.int64)
    return sums


def _averages(op: bnn.Op, x: np.ndarray) -> np.ndarray:
    """The sum over the taps of each window, as if it had all of them."""
    taps = op.window[0] * op.window[1]
    total = np.sum(_taps(op, x, 0), axis=0)
    counts = []
    for n, out, k, s, p in zip(x.shape[1:3], total.shape[1:3], op.window, op.stride, op.pad):
        at = np.arange(out)[:, None] * s - p + np.arange(k)
        low, high = (0, n) if op.exclude_pad else (-p, n + p)
        counts.append(((at >= low) & (at < high)).sum(axis=1))
    counted = np.outer(*counts)[None, :, :, None]
    whole, rest = np.divmod(total, counted)  # total * taps may exceed 64 bits
    return np.where(counted == taps, total, whole * taps + (2 * rest * taps + counted) // (2 * counted))


def _gather(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    shape = model.values[_index(op.bits if op.out is None else op.out)].shape
    channels, rows, columns = np.split(integers(model, op.weight), np.cumsum(shape)[:2])
    taken = x[:, rows[:, None, None], columns[None, :, None], channels]
    missing = (rows < 0)[:, None, None] | (columns < 0)[None, :, None] | (channels < 0)
    return np.where(missing, int(stored(op.pad_value)), taken)


def _bilinear(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    rows = model.values[_index(op.bits if op.out is None else op.out)].h
    table = integers(model, op.weight).reshape(-1, 2)
    one = 1 << 14

    def blend(values: np.ndarray, pairs: np.ndarray, axis: int) -> np.ndarray:
        """Of each pair of neighbours along an axis; where the fraction is 0 the second is not read."""
        index, fraction = pairs[:, 0], pairs[:, 1]
        shape = [-1 if i == axis else 1 for i in range(4)]
        second = (fraction >> 16).reshape(shape)
        after = np.take(values, index + (fraction != 0), axis)
        return (one - second) * np.take(values, index, axis) + second * after

    return (blend(blend(x, table[rows:], 2), table[:rows], 1) + (1 << 27)) >> 28


# --- windows ---------------------------------------------------------------------------------------------------------


def _taps(op: bnn.Op, x: np.ndarray, outside: int) -> list[np.ndarray]:
    """The input as each tap of the window sees it, (n, h', w', c); `outside` stands where a tap is outside."""
    out = sides(op, x.shape[1], x.shape[2])
    pads, cuts = [], []
    for n, m, k, s, p, d in zip(x.shape[1:3], out, op.window, op.stride, op.pad, op.dilation):
        pads.append((p, max(0, (m - 1) * s + (k - 1) * d + 1 - n - p)))
        cuts.append([slice(i * d, i * d + s * (m - 1) + 1, s) for i in range(k)])
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=outside)
    return [padded[:, rows, columns] for rows in cuts[0] for columns in cuts[1]]


def _convolve(op: bnn.Op, x: np.ndarray, weight: np.ndarray, largest: int) -> np.ndarray:
    """The sum over taps and the group's channels of weight * x; |x| <= largest. What is outside counts nothing, so it
    is 0 here."""
    per_group = weight.shape[3]
    groups = x.shape[3] // per_group
    rows = weight.reshape(groups, len(weight) // groups, -1)
    wide = _exact(rows, largest)
    taps = _taps(op, x.astype(wide), 0)
    patches = np.concatenate([tap.reshape(-1, groups, per_group) for tap in taps], axis=-1)
    dots = patches.swapaxes(0, 1) @ rows.swapaxes(1, 2).astype(wide)  # group, pixel, output channel
    return dots.swapaxes(0, 1).reshape(*taps[0].shape[:3], len(weight)).astype(np.int64)


def _exact(rows: np.ndarray, largest: int) -> type[np.generic]:
    """A type in which products of integers with these rows are exact: all partial sums fit in it."""
    bound = largest * int(np.abs(rows).sum(axis=-1).max())
    return np.float32 if bound < 1 << 24 else np.float64 if bound < 1 << 53 else np.int64


def _index(ref: int | None) -> int:
    assert ref is not None  # guaranteed by `check`
    return ref


# --- what is written as f32 ------------------------------------------------------------------------------------------


def _linear(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    weight, shift = integers(model, op.weight), integers(model, op.shift)
    wide = _exact(weight, -LOW)
    y = (x.reshape(len(x), -1).astype(wide) @ weight.T.astype(wide)).astype(np.int64)
    rounding = (1 << shift) >> 1
    q = ((y + rounding) >> shift) + integers(model, op.offset)
    logits = q.astype(np.float32) * model.tensors[_index(op.scale)].array
    return logits.reshape(len(x), 1, 1, -1)


def _to_float(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    scale, offset = (model.tensors[_index(ref)].array for ref in (op.scale, op.offset))
    return ((x.astype(np.float64) + offset) * scale).astype(np.float32)


def _softmax(model: bnn.Model, op: bnn.Op, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    below = wide - wide.max(axis=-1, keepdims=True)
    powers = exp(below)
    total = np.cumsum(powers, axis=-1)[..., -1:]  # in the order of the channels, which np.sum does not keep
    return (below - log(total) if op.kind == "log_softmax" else powers / total).astype(np.float32)


_FLOATS = {"linear": _linear, "to_float": _to_float, "softmax": _softmax, "log_softmax": _softmax}


def exp(x: np.ndarray) -> np.ndarray:
    """e(x) of docs/format.md, float64."""
    x = np.clip(np.asarray(x, np.float64), -745.0, 709.0)
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = np.full_like(r, 1.0 / math.factorial(13))
    for n in range(12, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    a = np.floor(k / 2)
    return np.ldexp(np.ldexp(p, a.astype(np.int32)), (k - a).astype(np.int32))


def log(s: np.ndarray) -> np.ndarray:
    """ln(s) of docs/format.md for s >= 1, float64."""
    m, k = np.frexp(np.asarray(s, np.float64))  # 0.5 <= m < 1
    low = m < 0.75
    m, k = np.where(low, 2 * m, m), np.where(low, k - 1, k)
    t = (m - 1) / (m + 1)
    z = t * t
    h = np.full_like(z, 1.0 / 41)
    for i in range(19, -1, -1):
        h = h * z + 1.0 / (2 * i + 1)
    return k * 0.6931471805599453 + 2 * t * h
