"""Pools in all their forms, and the kernels that put maps together or take them apart, on every table."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support import naive
from support.ops import run_op

CHANNELS = [1, 7, 16, 65, 130]
Rng = np.random.Generator


def integers(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-32768, 32768, shape).astype(np.int16)


def reals(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def judged(
    isa: str, numerics: str, kind: str, x: np.ndarray, expected: tuple[np.ndarray, np.ndarray], **op: Any
) -> None:
    """All at once, and in parts; the map, the bits, or both."""
    for split, bits in ((0, True), (4, False), (3, True)):
        got = run_op(isa, numerics, kind, x, out="f32" if numerics == "float" else "i16", bits=bits, split=split, **op)
        np.testing.assert_array_equal(got["out"], expected[0], err_msg=f"{kind} {x.shape} {op}")
        if bits:
            np.testing.assert_array_equal(got["bits"], expected[1])


def pools(rng: Rng) -> list[dict[str, Any]]:
    """Windows with padding, dilation and ceil that torch takes."""
    found = []
    for window, stride, ceil in itertools.product([(2, 2), (3, 3), (3, 2)], [(1, 1), (2, 2), (3, 2)], [False, True]):
        pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in window)
        found.append({"window": window, "stride": stride, "pad": pad, "ceil": ceil})
    return found


@pytest.mark.parametrize("c", CHANNELS)
def test_maxpool(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for i, pool in enumerate(pools(rng)):
        dilation = [(1, 1), (2, 1), (2, 3), (1, 1)][i % 4]
        size = (7 + i % 3, 8 - i % 2)
        real, whole = reals(rng, (*size, c)), integers(rng, (*size, c))
        op = {**pool, "dilation": dilation}
        judged(isa, "float", "maxpool", real, naive.finish_float(naive.max_pool(real, **op)), **op)
        judged(isa, "integer", "maxpool", whole, naive.finish_integer(naive.max_pool(whole, **op).astype(int)), **op)


@pytest.mark.parametrize("exclude_pad", [False, True])
@pytest.mark.parametrize("c", CHANNELS)
def test_avgpool(isa: str, c: int, exclude_pad: bool) -> None:
    rng = np.random.default_rng(c)
    for i, pool in enumerate(pools(rng)):
        size = (7 + i % 3, 8 - i % 2)
        real, whole = reals(rng, (*size, c)), integers(rng, (*size, c))
        sums, counts = naive.window_sums(real, exclude_pad=exclude_pad, **pool)
        op = {**pool, "exclude_pad": exclude_pad}
        judged(isa, "float", "avgpool", real, naive.finish_float(sums / counts), **op)
        sums, counts = naive.window_sums(whole, exclude_pad=exclude_pad, **pool)
        sums, taps = sums.astype(np.int64), pool["window"][0] * pool["window"][1]
        y = np.where(counts == taps, sums, (2 * sums * taps + counts) // (2 * counts))
        scale, offset = rng.integers(-32768, 32768, c), rng.integers(-(2**31), 2**31, c)
        shift = np.full(c, 18)
        constants = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift, "u8")}
        expected = naive.finish_integer((scale * y + offset) >> shift)
        judged(isa, "integer", "avgpool", whole, expected, constants=constants, **op)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("c", CHANNELS)
def test_mul(isa: str, c: int, per_channel: bool) -> None:
    rng = np.random.default_rng(c)
    shape = (5, 3, c)
    other = (1, 1, c) if per_channel else shape
    x, r = reals(rng, shape), reals(rng, other)
    scale, offset = rng.normal(size=c), rng.normal(size=c)
    t = x.astype(np.float64) * r * scale + offset
    constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
    judged(isa, "float", "mul", x, naive.finish_float(t), residual=r, constants=constants)
    judged(isa, "float", "mul", x, naive.finish_float(x.astype(np.float64) * r), residual=r)
    x, r = integers(rng, shape), integers(rng, other)
    x[0, 0], r[0, 0] = -32768, -32768
    scale, offset, shift = rng.integers(-32768, 32768, c), rng.integers(-(2**31), 2**31, c), rng.integers(15, 48, c)
    scale[0], shift[0] = -32768, 15
    offset[0] = 0
    q = (scale * x.astype(np.int64) * r + offset) >> shift
    constants = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift + 0, "u8")}
    with_room = np.abs(2**30 * np.abs(scale) + np.abs(offset)) / 2.0**shift < 2**31 - 2**16
    shift[~with_room] += 1
    constants["shift"] = (shift, "u8")
    q = (scale * x.astype(np.int64) * r + offset) >> shift
    judged(isa, "integer", "mul", x, naive.finish_integer(q), residual=r, constants=constants)
    if not per_channel:
        got = run_op(isa, "integer", "mul", x, residual=r, constants=constants, in_place=True, split=2)
        np.testing.assert_array_equal(got["out"], naive.finish_integer(q)[0])


@pytest.mark.parametrize(("c", "other"), [(1, 1), (7, 65), (64, 64), (65, 7), (130, 3)])
def test_concat(isa: str, c: int, other: int) -> None:
    rng = np.random.default_rng(c)
    x, r = reals(rng, (4, 3, c)), reals(rng, (4, 3, other))
    both = np.concatenate([x, r], axis=2)
    scale, offset = rng.normal(size=c + other), rng.normal(size=c + other)
    constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
    expected = naive.finish_float(both.astype(np.float64) * scale + offset)
    judged(isa, "float", "concat", x, expected, residual=r, constants=constants)
    x, r = integers(rng, (4, 3, c)), integers(rng, (4, 3, other))
    expected = naive.finish_integer(np.concatenate([x, r], axis=2).astype(np.int64))
    judged(isa, "integer", "concat", x, expected, residual=r)


def gathered(x: np.ndarray, channels: np.ndarray, rows: np.ndarray, columns: np.ndarray, pad: float) -> np.ndarray:
    out = np.full((len(rows), len(columns), len(channels)), pad, np.float64)
    for y, column, c in np.ndindex(out.shape):
        if rows[y] >= 0 and columns[column] >= 0 and channels[c] >= 0:
            out[y, column, c] = x[rows[y], columns[column], channels[c]]
    return out


@pytest.mark.parametrize("c", CHANNELS)
@pytest.mark.parametrize("kind", ["any", "shuffle", "slice", "pad", "nearest"])
def test_gather(isa: str, c: int, kind: str) -> None:
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
    weight = np.concatenate([channels, rows, columns]).astype(np.int32)
    shape = (len(rows), len(columns), len(channels))
    for pad in (0, -7, 300):
        op: dict[str, Any] = {"weight": weight, "shape": shape, "pad_value": pad + 0.25}
        x = reals(rng, (h, w, c))
        expected = naive.finish_float(gathered(x, channels, rows, columns, pad + 0.25))
        judged(isa, "float", "gather", x, expected, **op)
        x = integers(rng, (h, w, c))
        expected = naive.finish_integer(gathered(x, channels, rows, columns, pad).astype(np.int64))
        judged(isa, "integer", "gather", x, expected, **{**op, "pad_value": pad})


@pytest.mark.parametrize("c", CHANNELS)
def test_bilinear(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    h, w, out_h, out_w = 4, 5, 7, 6

    def pairs(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        index, share = rng.integers(0, size - 1, count), rng.integers(0, 1 << 30, count)
        index[0], share[0] = size - 1, 0  # what follows the last one is not there
        share[1], share[2] = 1, (1 << 30) - 1
        return index, share

    (rows, fy), (columns, fx) = pairs(out_h, h), pairs(out_w, w)
    weight = np.concatenate([np.stack([rows, fy], 1).reshape(-1), np.stack([columns, fx], 1).reshape(-1)])
    op: dict[str, Any] = {"weight": weight.astype(np.int32), "shape": (out_h, out_w, c)}
    x = reals(rng, (h, w, c))
    wide = np.pad(x.astype(np.float64), ((0, 1), (0, 1), (0, 0)))
    t = np.zeros((out_h, out_w, c))
    for y, column in np.ndindex(out_h, out_w):
        gy, gx = fy[y] / 2**30, fx[column] / 2**30
        (a, b), (d, e) = wide[rows[y] : rows[y] + 2, columns[column] : columns[column] + 2]
        t[y, column] = (1 - gy) * ((1 - gx) * a + gx * b) + gy * ((1 - gx) * d + gx * e)
    judged(isa, "float", "bilinear", x, naive.finish_float(t), **op)
    x = integers(rng, (h, w, c))
    whole = np.pad(x.astype(np.int64), ((0, 1), (0, 1), (0, 0)))
    q = np.zeros((out_h, out_w, c), np.int64)
    for y, column in np.ndindex(out_h, out_w):
        gy, gx = int(fy[y]) >> 16, int(fx[column]) >> 16
        (a, b), (d, e) = whole[rows[y] : rows[y] + 2, columns[column] : columns[column] + 2]
        one = 1 << 14
        total = (one - gy) * ((one - gx) * a + gx * b) + gy * ((one - gx) * d + gx * e)
        q[y, column] = (total + (1 << 27)) >> 28
    judged(isa, "integer", "bilinear", x, naive.finish_integer(q), **op)


@pytest.mark.parametrize("numerics", ["float", "integer"])
@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_softmax(isa: str, kind: str, numerics: str) -> None:
    rng = np.random.default_rng(0)
    for c, scale in itertools.product((1, 2, 10, 65, 1000), (0.1, 10.0, 900.0)):
        x = (rng.normal(size=(2, 3, c)) * scale).astype(np.float32)
        expected = naive.softmax(x, log=kind == "log_softmax")
        for split in (0, 4):
            got = run_op(isa, numerics, kind, x, out="f32", bits=False, split=split)
            np.testing.assert_array_equal(got["out"], expected)
        plain = np.exp(x.astype(np.float64) - x.max(axis=2, keepdims=True))
        plain /= plain.sum(axis=2, keepdims=True)
        shown = np.exp(got["out"].astype(np.float64)) if kind == "log_softmax" else got["out"]
        np.testing.assert_allclose(shown, plain, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("c", CHANNELS)
def test_to_float(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    x = integers(rng, (3, 4, c))
    scale, offset = rng.normal(size=c), rng.normal(size=c) * 1000
    constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
    expected = ((x.astype(np.float64) + offset) * scale).astype(np.float32)
    for split in (0, 5):
        got = run_op(isa, "integer", "to_float", x, out="f32", bits=False, constants=constants, split=split)
        np.testing.assert_array_equal(got["out"], expected)
