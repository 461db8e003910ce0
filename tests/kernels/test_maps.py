"""Pools in all their forms, and the kernels that put maps together or take them apart, on every table."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.ops import Constants, check_op

CHANNELS = [1, 7, 16, 65, 130]
Rng = np.random.Generator
PARTS: dict[str, Any] = {"splits": (0, 4, 3), "writes": ("both", "out")}
F32: dict[str, Any] = {"out": "f32", "writes": ("out",), "splits": (0, 4)}


def integers(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-32768, 32768, shape).astype(np.int16)


def reals(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def affine(rng: Rng, c: int) -> Constants:
    return {"scale": (rng.normal(size=c), "f64"), "offset": (rng.normal(size=c), "f64")}


@pytest.mark.parametrize("c", CHANNELS)
def test_pools(c: int) -> None:
    rng = np.random.default_rng(c)
    forms = itertools.product([(2, 2), (3, 3), (3, 2)], [(1, 1), (2, 2), (3, 2)], [False, True])
    for i, (window, stride, ceil) in enumerate(forms):
        pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in window)
        pool = {"window": window, "stride": stride, "pad": pad, "ceil": ceil, **PARTS}
        size = (7 + i % 3, 8 - i % 2)
        real, whole = reals(rng, (*size, c)), integers(rng, (*size, c))
        for numerics, x in (("float", real), ("integer", whole)):
            check_op(numerics, "maxpool", x, dilation=[(1, 1), (2, 1), (2, 3), (1, 1)][i % 4], **pool)
        constants = {
            "scale": (rng.integers(-32768, 32768, c), "i16"),
            "offset": (rng.integers(-(2**31), 2**31, c), "i32"),
            "shift": (np.full(c, 18), "u8"),
        }
        for exclude_pad in (False, True):
            check_op("float", "avgpool", real, exclude_pad=exclude_pad, **pool)
            check_op("integer", "avgpool", whole, exclude_pad=exclude_pad, constants=constants, **pool)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("c", CHANNELS)
def test_mul(c: int, per_channel: bool) -> None:
    rng = np.random.default_rng(c)
    shape = (5, 3, c)
    other = (1, 1, c) if per_channel else shape
    x, r = reals(rng, shape), reals(rng, other)
    for terms in ({}, affine(rng, c)):
        check_op("float", "mul", x, residual=r, constants=terms, **PARTS)
    x, r = integers(rng, shape), integers(rng, other)
    x[0, 0], r[0, 0] = -32768, -32768
    scale, offset, shift = rng.integers(-32768, 32768, c), rng.integers(-(2**31), 2**31, c), rng.integers(15, 48, c)
    scale[0], shift[0], offset[0] = -32768, 15, 0
    with_room = np.abs(2**30 * np.abs(scale) + np.abs(offset)) / 2.0**shift < 2**31 - 2**16
    shift[~with_room] += 1
    constants = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift, "u8")}
    check_op("integer", "mul", x, residual=r, constants=constants, **PARTS)
    if not per_channel:
        check_op("integer", "mul", x, residual=r, constants=constants, in_place=True, splits=(2,))


@pytest.mark.parametrize(("c", "other"), [(1, 1), (7, 65), (64, 64), (65, 7), (130, 3)])
def test_concat(c: int, other: int) -> None:
    rng = np.random.default_rng(c)
    x, r = reals(rng, (4, 3, c)), reals(rng, (4, 3, other))
    check_op("float", "concat", x, residual=r, constants=affine(rng, c + other), **PARTS)
    check_op("integer", "concat", integers(rng, (4, 3, c)), residual=integers(rng, (4, 3, other)), **PARTS)


@pytest.mark.parametrize("c", CHANNELS)
@pytest.mark.parametrize("kind", ["any", "shuffle", "slice", "pad", "nearest"])
def test_gather(c: int, kind: str) -> None:
    rng = np.random.default_rng(c)
    h, w = 4, 5
    channels, rows, columns = np.arange(c), np.arange(h), np.arange(w)
    if kind == "any":
        channels, rows, columns = rng.integers(-1, c, 66), rng.integers(-1, h, 6), rng.integers(-1, w, 3)
    elif kind == "shuffle":
        channels = rng.permutation(c)
    elif kind == "slice":
        channels, rows, columns = channels[c // 3 :], rows[1::2], columns[:-1]
    elif kind == "pad":
        channels, rows, columns = (np.r_[-1, -1, a, -1] for a in (channels, rows, columns))
    else:
        rows, columns = rows.repeat(2), columns.repeat(3)
    op: dict[str, Any] = {"weight": np.concatenate([channels, rows, columns]).astype(np.int32), **PARTS}
    op["shape"] = (len(rows), len(columns), len(channels))
    for pad in (0, -7, 300):
        check_op("float", "gather", reals(rng, (h, w, c)), pad_value=pad + 0.25, **op)
        check_op("integer", "gather", integers(rng, (h, w, c)), pad_value=pad, **op)


@pytest.mark.parametrize("c", CHANNELS)
def test_round(c: int) -> None:
    rng = np.random.default_rng(c)
    x = 4 * reals(rng, (4, 5, c))
    x[0] = np.rint(2 * x[0]) / 2  # halves among them
    x[1, 0], x[1, 1], x[1, 2], x[1, 3] = 2.0**23 + 1, -0.0, 0.49999997, -3e30
    for terms in ({}, affine(rng, c)):
        check_op("float", "round", x, constants=terms, **PARTS)


@pytest.mark.parametrize("c", CHANNELS)
def test_bilinear(c: int) -> None:
    rng = np.random.default_rng(c)

    def pairs(count: int, size: int) -> np.ndarray:
        index, share = rng.integers(0, size - 1, count), rng.integers(0, 1 << 30, count)
        index[0], share[0] = size - 1, 0  # what follows the last one is not there
        share[1], share[2] = 1, (1 << 30) - 1
        return np.stack([index, share], 1).reshape(-1)

    weight = np.concatenate([pairs(7, 4), pairs(6, 5)]).astype(np.int32)
    for numerics, x in (("float", reals(rng, (4, 5, c))), ("integer", integers(rng, (4, 5, c)))):
        check_op(numerics, "bilinear", x, weight=weight, shape=(7, 6, c), **PARTS)


@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_softmax(kind: str, numerics: str) -> None:
    rng = np.random.default_rng(0)
    for c, scale in itertools.product((1, 2, 10, 65, 1000), (0.1, 10.0, 900.0)):
        check_op(numerics, kind, (rng.normal(size=(2, 3, c)) * scale).astype(np.float32), **F32)


@pytest.mark.parametrize("c", CHANNELS)
def test_to_float(c: int) -> None:
    rng = np.random.default_rng(c)
    constants = {"scale": (rng.normal(size=c), "f64"), "offset": (rng.normal(size=c) * 1000, "f64")}
    check_op("integer", "to_float", integers(rng, (3, 4, c)), constants=constants, **F32)
