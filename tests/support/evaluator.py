"""A float model computed from docs/format.md alone, in naive loops: it shares nothing with the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from ovsw import format as bnn


class InexactError(Exception):
    """A float32 sum whose value depends on the order of the additions: there is no single right answer to compare."""


def check_exact(products: np.ndarray) -> None:
    """Raises unless float32 adds these up without rounding in any order: all are multiples of a unit, the sum of
    their sizes is less than 2^24 units."""
    some = np.abs(products[products != 0])
    if some.size == 0:
        return
    mantissa, exponent = np.frexp(some)
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    unit = int((exponent - 53 + lowest).min())
    if not some.sum() < 2.0 ** (24 + unit):
        raise InexactError


def signs(tensor: bnn.Tensor) -> np.ndarray:
    """A bits tensor as +1 and -1, bit by bit."""
    n = tensor.shape[-1]
    words = tensor.array.reshape(-1, tensor.array.shape[-1]).tolist()
    flat = [1 if row[c // 64] >> (c % 64) & 1 else -1 for row in words for c in range(n)]
    return np.array(flat, np.float64).reshape(tensor.shape)


def window(op: bnn.Op, x: np.ndarray) -> tuple[int, int, Callable[[int, int], list[tuple[int, int, np.ndarray]]]]:
    """The rows and columns of the result, and for each of its pixels the taps inside: (i, j, channels there)."""
    (h, w, _), (kh, kw), (sh, sw), (ph, pw) = x.shape, op.window, op.stride, op.pad

    def taps(y0: int, x0: int) -> list[tuple[int, int, np.ndarray]]:
        at = ((i, j, y0 * sh + i - ph, x0 * sw + j - pw) for i in range(kh) for j in range(kw))
        return [(i, j, x[r, s]) for i, j, r, s in at if 0 <= r < h and 0 <= s < w]

    return (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, taps


def core(model: bnn.Model, op: bnn.Op, x: np.ndarray, check: Callable[[np.ndarray], None]) -> np.ndarray:
    """The core of an op, float64 (rows, columns, channels), from its input (the same, of float32 numbers or signs)."""
    x = x.astype(np.float64)
    if op.kind == "eltwise":
        return x
    if op.kind == "channel_pad":
        return np.pad(x, ((0, 0), (0, 0), op.channels))
    if op.kind == "linear":
        weight = model.tensors[op.weight or 0].array.astype(np.float64)
        products = weight * x.reshape(-1)
        for row in products:
            check(row)
        return products.sum(axis=1).reshape(1, 1, -1)

    height, width, taps = window(op, x)
    result = np.zeros((height, width, model.tensors[op.weight].shape[0] if op.weight is not None else x.shape[2]))
    if op.kind in ("bconv", "conv"):
        tensor = model.tensors[op.weight or 0]
        weight = signs(tensor) if op.kind == "bconv" else tensor.array.astype(np.float64)
    for y, z in itertools.product(range(height), range(width)):
        inside = taps(y, z)
        if op.kind == "maxpool":
            result[y, z] = np.max([pixel for _, _, pixel in inside], axis=0)
        elif op.kind == "avgpool":
            total = np.sum([pixel for _, _, pixel in inside], axis=0)
            result[y, z] = total / (op.window[0] * op.window[1])
        else:
            products = np.concatenate([weight[:, i, j] * pixel for i, j, pixel in inside], axis=1)
            if op.kind == "conv":
                for row in products:
                    check(row)
            result[y, z] = products.sum(axis=1)
    return result


def evaluate(
    model: bnn.Model, image: np.ndarray, check: Callable[[np.ndarray], None] = check_exact
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The output of a model for float32 values (channels, rows, columns), and all values (rows, columns, channels).

    `check` sees the products of each sum of a conv or linear.
    """
    values = {0: image.transpose(1, 2, 0).astype(np.float32)}
    for op in model.ops:
        t = core(model, op, values[op.input], check)
        if op.scale is not None and op.offset is not None:
            t = t * model.tensors[op.scale].array + model.tensors[op.offset].array
        if op.residual is not None:
            t = t + values[op.residual].astype(np.float64)
        v = t.astype(np.float32)
        if op.act == "clamp":
            v = np.minimum(np.maximum(v, np.float32(op.clamp[0])), np.float32(op.clamp[1]))
        elif op.act == "prelu":
            v = np.where(v >= 0, v, v * model.tensors[op.slope or 0].array)
        shape = (v.shape[2], v.shape[0], v.shape[1])
        if op.out is not None:
            assert model.values[op.out] == bnn.Value("f32", *shape)
            values[op.out] = v
        if op.bits is not None:
            assert model.values[op.bits] == bnn.Value("bits", *shape)
            values[op.bits] = np.where(v >= 0, 1, -1)
    return values[model.output].reshape(-1), values


def normalised(model: bnn.Model, pixels: np.ndarray) -> np.ndarray:
    """Pixels (rows, columns, channels) as the network sees them, (channels, rows, columns)."""
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    return ((pixels.astype(np.float32) / np.float32(255) - mean) / std).transpose(2, 0, 1)
