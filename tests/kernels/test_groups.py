"""Convolutions with groups, dilation, padding by a value and a scale of the window's sum, on every table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.ops import check_op

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
ALL: dict[str, Any] = {"splits": (0, 5), "writes": ("both", "out", "bits")}


def cases() -> Iterator[tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any], float]]:
    """Shape of the input, of the weight, geometry, pad_value."""
    sizes = itertools.cycle([(7, 8), (5, 9), (9, 6)])
    windows = itertools.cycle([(3, 3), (3, 2), (1, 3), (3, 3)])
    pads = itertools.cycle(PADS)
    for (c, out_c, groups), geometry in itertools.product(GROUPS, GEOMETRY):
        window = next(windows)
        spans = [(k - 1) * d + 1 for k, d in zip(window, geometry["dilation"])]
        pad = tuple(min(p, span - 1) for p, span in zip(geometry["pad"], spans))
        yield (*next(sizes), c), (out_c, *window, c // groups), {**geometry, "pad": pad}, next(pads)


def binary(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape) < 0.5


@pytest.mark.parametrize("window", [False, True])
def test_bconv_float(window: bool) -> None:
    rng = np.random.default_rng(window)
    for shape, weight_shape, geometry, p in cases():
        scale, offset = rng.normal(size=(2, weight_shape[0])), rng.normal(size=weight_shape[0])
        constants = {"scale": (scale, "f64"), "offset": (offset, "f64")} if window else {}
        op = {"weight": binary(rng, weight_shape), "pad_value": p, "constants": constants, **geometry, **ALL}
        check_op("float", "bconv", binary(rng, shape), **op)


@pytest.mark.parametrize("window", [False, True])
def test_bconv_integer(window: bool) -> None:
    rng = np.random.default_rng(2 + window)
    for shape, weight_shape, geometry, p in cases():
        out_c, taps = weight_shape[0], int(np.prod(weight_shape[1:]))
        most = min(20000, (2**31 - 2**24) // (2 * taps * max(1, int(np.ceil(abs(p))))))
        scale = rng.integers(0, most, out_c)
        constants = {
            "scale": (np.stack([scale, rng.integers(-most, most, out_c)]) if window else scale, "i16"),
            "offset": (rng.integers(-(2**20), 2**20, out_c), "i32"),
            "shift": (rng.integers(0, 12, out_c), "u8"),
        }
        op = {"weight": binary(rng, weight_shape), "pad_value": p, "constants": constants, **geometry, **ALL}
        check_op("integer", "bconv", binary(rng, shape), **op)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("c", [16, 64, 70, 128])
def test_bconv_pads_and_windows_of_the_fast_kernels(window: bool, c: int) -> None:
    """No groups, no dilation: the core that every table may write itself."""
    rng = np.random.default_rng(c)
    for p, k, stride, out_c in itertools.product(PADS, (1, 3), (1, 2), (8, 64, 66)):
        scale = rng.integers(0, 9000, out_c)
        constants = {
            "scale": (np.stack([scale, rng.integers(-9000, 9000, out_c)]) if window else scale, "i16"),
            "offset": (rng.integers(-(2**16), 2**16, out_c), "i32"),
            "shift": (np.full(out_c, 7), "u8"),
        }
        op = {"weight": binary(rng, (out_c, k, k, c)), "pad_value": p, "constants": constants, **ALL}
        check_op("integer", "bconv", binary(rng, (9, 10, c)), stride=(stride, stride), pad=(k // 2, k // 2), **op)


def test_depthwise_counters() -> None:
    """More taps than a byte counts, all bits different."""
    for k, c in ((15, 65), (16, 64), (17, 3), (23, 7)):
        x, weight = np.zeros((k, k, c), np.bool_), np.ones((c, k, k, 1), np.bool_)
        weight[1::2] = False
        check_op("float", "bconv", x, weight=weight, pad=(k - 1, 0), **ALL)


def test_conv_float() -> None:
    rng = np.random.default_rng(0)
    for i, (shape, weight_shape, geometry, _) in enumerate(cases()):
        weight = rng.normal(size=weight_shape).astype(np.float32)
        scale, offset = rng.normal(size=(2, len(weight)))
        constants = {"scale": (scale, "f64"), "offset": (offset, "f64")}
        x = rng.normal(size=shape).astype(np.float32)
        check_op("float", "conv", x, weight=weight, constants=constants, splits=(0, 1 + i % 5), **geometry)


@pytest.mark.parametrize("pixels", [False, True])
def test_conv_integer(pixels: bool) -> None:
    rng = np.random.default_rng(1)
    for shape, weight_shape, geometry, _ in cases():
        most = 255 if pixels else 32768
        x = rng.integers(0 if pixels else -most, most, shape).astype(np.uint8 if pixels else np.int16)
        limit = max(1, min(32767, (2**31 - 2**25) // (3 * most * int(np.prod(weight_shape[1:])))))
        out_c = weight_shape[0]
        op: dict[str, Any] = {
            "weight": rng.integers(-limit, limit + 1, weight_shape).astype(np.int16),
            "constants": {
                "offset": (rng.integers(-(2**20), 2**20, out_c), "i32"),
                "shift": (rng.integers(4, 16, out_c), "u8"),
            },
            "mean": rng.uniform(0, 1, shape[2]).tolist() if pixels else [0.0],
            **geometry,
        }
        check_op("integer", "conv", x, **op, **ALL)
        if not pixels:
            check_op("integer", "conv", x, out="i32", writes=("out",), splits=(3,), **op)
