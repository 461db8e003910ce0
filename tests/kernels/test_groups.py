"""Convolutions with groups, dilation, padding by a value and a scale of the window's sum, on every table."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support import naive
from support.ops import run_op

Rng = np.random.Generator

# input channels, output channels, groups: depthwise, odd counts, groups that meet no word or panel, and one group
GROUPS = [
    (1, 1, 1), (7, 7, 7), (64, 64, 64), (65, 65, 65), (130, 130, 130), (6, 12, 6), (5, 70, 5), (8, 8, 2), (64, 32, 4),
    (130, 65, 13), (130, 130, 2), (96, 40, 4), (12, 9, 3), (256, 192, 2), (9, 5, 1), (64, 17, 1), (100, 3, 1),
]  # fmt: skip
GEOMETRY = [
    {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1)},
    {"stride": (2, 1), "pad": (2, 1), "dilation": (2, 1)},
    {"stride": (1, 2), "pad": (0, 3), "dilation": (1, 3)},
    {"stride": (2, 2), "pad": (4, 4), "dilation": (2, 2)},
]
PADS = [0.0, 1.0, -1.0, 0.37, -3.0]


def cases() -> list[Any]:
    sizes = itertools.cycle([(7, 8), (5, 9), (9, 6)])
    windows = itertools.cycle([(3, 3), (3, 2), (1, 3), (3, 3)])
    pads = itertools.cycle(PADS)
    found = []
    for group, geometry in itertools.product(GROUPS, GEOMETRY):
        (h, w), (kh, kw) = next(sizes), next(windows)
        spans = [(k - 1) * d + 1 for k, d in zip((kh, kw), geometry["dilation"])]
        pad = tuple(min(p, span - 1) for p, span in zip(geometry["pad"], spans))
        found.append((group, (h, w), (kh, kw), {**geometry, "pad": pad}, next(pads)))
    return found


def judged(
    isa: str, numerics: str, kind: str, x: np.ndarray, expected: tuple[np.ndarray, np.ndarray], **op: Any
) -> None:
    """All at once, and in parts; the map, the bits, or both."""
    label = f"{kind} {x.shape} {op.get('weight', np.zeros(0)).shape} {op.get('stride')} {op.get('pad')}"
    for split, out, bits in ((0, True, True), (5, True, False), (3, False, True)):
        kinds = {"float": "f32", "integer": "i16"}
        got = run_op(isa, numerics, kind, x, out=kinds[numerics] if out else None, bits=bits, split=split, **op)
        if out:
            np.testing.assert_array_equal(got["out"], expected[0], err_msg=label)
        if bits:
            np.testing.assert_array_equal(got["bits"], expected[1], err_msg=label)


def binary(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape) < 0.5


def window_sum(x: np.ndarray, weight: np.ndarray, geometry: Any, fill: float) -> np.ndarray:
    return naive.conv(naive.signs(x), np.ones(weight.shape), fill=fill, **geometry)


@pytest.mark.parametrize("window", [False, True])
def test_bconv_float(isa: str, window: bool) -> None:
    rng = np.random.default_rng(window)
    for (c, out_c, groups), size, kernel, geometry, p in cases():
        x, weight = binary(rng, (*size, c)), binary(rng, (out_c, *kernel, c // groups))
        pad_value = float(np.float32(p))
        y = naive.conv(naive.signs(x), naive.signs(weight), fill=pad_value, **geometry)
        if not window:
            judged(isa, "float", "bconv", x, naive.finish_float(y), weight=weight, pad_value=p, **geometry)
            continue
        scale, offset = rng.normal(size=(2, out_c)), rng.normal(size=out_c)
        s = window_sum(x, weight, geometry, pad_value)
        residual = rng.normal(size=y.shape).astype(np.float32)
        t = ((scale[0] * y + scale[1] * s) + offset) + residual
        constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
        got = run_op(
            isa, "float", "bconv", x, out="f32", weight=weight, pad_value=p, residual=residual, constants=constants,
            split=5, in_place=c % 2 == 1, **geometry,
        )  # fmt: skip
        # torch sums what is outside in another order
        np.testing.assert_allclose(got["out"], t, rtol=1e-6, atol=1e-6)


def exact_sums(x: np.ndarray, weight: np.ndarray, geometry: Any) -> tuple[np.ndarray, ...]:
    """Y and S of the taps inside, W' and n' of those outside, as integers."""
    inside = np.ones(x.shape)
    y = naive.conv(naive.signs(x), naive.signs(weight), **geometry)
    s = naive.conv(naive.signs(x), np.ones(weight.shape), **geometry)
    all_weights = naive.signs(weight).sum(axis=(1, 2, 3))
    w_out = all_weights - naive.conv(inside, naive.signs(weight), **geometry)
    n_out = weight[0].size - naive.conv(inside, np.ones(weight.shape), **geometry)
    return tuple(np.rint(a).astype(np.int64) for a in (y, s, w_out, n_out))


@pytest.mark.parametrize("window", [False, True])
def test_bconv_integer(isa: str, window: bool) -> None:
    rng = np.random.default_rng(2 + window)
    for i, ((c, out_c, groups), size, kernel, geometry, p) in enumerate(cases()):
        x, weight = binary(rng, (*size, c)), binary(rng, (out_c, *kernel, c // groups))
        y, s, w_out, n_out = exact_sums(x, weight, geometry)
        k = weight[0].size
        most = min(20000, (2**31 - 2**24) // (2 * k * max(1, int(np.ceil(abs(p))))))
        m, n = rng.integers(0, most, out_c), rng.integers(-most, most, out_c) if window else np.zeros(out_c, np.int64)
        shift = rng.integers(0, 12, out_c)
        offset = rng.integers(-(2**20), 2**20, out_c)
        p32 = float(np.float32(p))
        outside = np.floor(p32 * (m * w_out + n * n_out).astype(np.float64) + 0.5).astype(np.int64)
        q = (m * y + n * s + outside + offset) >> shift
        scale = np.stack([m, n]) if window else m
        constants = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift, "u8")}
        extra: dict[str, Any] = {}
        if i % 3 == 1:
            extra["residual"] = rng.integers(-9000, 9000, q.shape).astype(np.int16)
            q = q + extra["residual"]
        expected = naive.finish_integer(q)
        op = {"weight": weight, "pad_value": p, "constants": constants, **geometry, **extra}
        judged(isa, "integer", "bconv", x, expected, **op)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("c", [16, 64, 70, 128])
def test_bconv_pads_and_windows_of_the_fast_kernels(isa: str, window: bool, c: int) -> None:
    """No groups, no dilation: the core that every table may write itself."""
    rng = np.random.default_rng(c)
    for p, k, stride, out_c in itertools.product(PADS, (1, 3), (1, 2), (8, 64, 66)):
        geometry = {"stride": (stride, stride), "pad": (k // 2, k // 2), "dilation": (1, 1)}
        x, weight = binary(rng, (9, 10, c)), binary(rng, (out_c, k, k, c))
        y, s, w_out, n_out = exact_sums(x, weight, geometry)
        m, n = rng.integers(0, 9000, out_c), rng.integers(-9000, 9000, out_c) if window else np.zeros(out_c, np.int64)
        outside = np.floor(float(np.float32(p)) * (m * w_out + n * n_out).astype(np.float64) + 0.5).astype(np.int64)
        shift, offset = np.full(out_c, 7), rng.integers(-(2**16), 2**16, out_c)
        q = (m * y + n * s + outside + offset) >> shift
        scale = np.stack([m, n]) if window else m
        constants = {"scale": (scale, "i16"), "offset": (offset, "i32"), "shift": (shift, "u8")}
        expected = naive.finish_integer(q)
        judged(isa, "integer", "bconv", x, expected, weight=weight, pad_value=p, constants=constants, **geometry)


def test_depthwise_counters(isa: str) -> None:
    """More taps than a byte counts, all bits different."""
    for k, c in ((15, 65), (16, 64), (17, 3), (23, 7)):
        geometry = {"stride": (1, 1), "pad": (k - 1, 0), "dilation": (1, 1)}
        x, weight = np.zeros((k, k, c), np.bool_), np.ones((c, k, k, 1), np.bool_)
        weight[1::2] = False
        y = naive.conv(naive.signs(x), naive.signs(weight), **geometry)
        judged(isa, "float", "bconv", x, naive.finish_float(y), weight=weight, **geometry)


def test_conv_float(isa: str) -> None:
    rng = np.random.default_rng(0)
    for i, ((c, out_c, groups), size, kernel, geometry, _) in enumerate(cases()):
        x = rng.normal(size=(*size, c)).astype(np.float32)
        weight = rng.normal(size=(out_c, *kernel, c // groups)).astype(np.float32)
        scale, offset = rng.normal(size=out_c), rng.normal(size=out_c)
        t = naive.conv(x, weight, **geometry) * scale + offset
        constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
        whole, parts = (
            run_op(isa, "float", "conv", x, out="f32", weight=weight, constants=constants, split=split, **geometry)
            for split in (0, 1 + i % 5)
        )
        np.testing.assert_allclose(whole["out"], t, rtol=1e-4, atol=1e-4)
        assert whole["out"].tobytes() == parts["out"].tobytes(), "depends on how pixels are split"
        np.testing.assert_array_equal(whole["bits"], whole["out"] >= 0)


@pytest.mark.parametrize("pixels", [False, True])
def test_conv_integer(isa: str, pixels: bool) -> None:
    rng = np.random.default_rng(1)
    for i, ((c, out_c, groups), size, kernel, geometry, _) in enumerate(cases()):
        most = 255 if pixels else 32768
        x = rng.integers(0, 256, (*size, c)).astype(np.uint8) if pixels else rng.integers(-most, most, (*size, c))
        taps = kernel[0] * kernel[1] * c // groups
        limit = max(1, min(32767, (2**31 - 2**25) // (3 * most * taps)))
        weight = rng.integers(-limit, limit + 1, (out_c, *kernel, c // groups)).astype(np.int16)
        shift, offset = rng.integers(4, 16, out_c), rng.integers(-(2**20), 2**20, out_c)
        y = np.rint(naive.conv(x, weight, **geometry)).astype(np.int64)
        mean = rng.uniform(0, 1, c).astype(np.float32) if pixels else np.zeros(1)
        if pixels:
            zero = np.floor(mean.astype(np.float64) * 65280 + 0.5)
            zeros = naive.conv(np.broadcast_to(zero, x.shape), weight, **geometry)
            y -= (np.rint(zeros).astype(np.int64) + 128) >> 8
        q = (y + offset) >> shift
        x = x if pixels else x.astype(np.int16)
        constants = {"offset": (offset, "i32"), "shift": (shift, "u8")}
        op = {"weight": weight, "constants": constants, "mean": mean.tolist(), **geometry}
        judged(isa, "integer", "conv", x, naive.finish_integer(q), **op)
        if not pixels and i % 4 == 0:
            wide = run_op(isa, "integer", "conv", x, out="i32", bits=False, split=3, **op)
            np.testing.assert_array_equal(wide["out"], q)
