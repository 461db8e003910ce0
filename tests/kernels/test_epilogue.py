"""What may follow a core, in every combination and on every table: activations, thresholds and residuals.

Before them the window scale of binary convolutions, on which the sums of the integer ones depend.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.ops import Constants, check_op

Rng = np.random.Generator
CHANNELS = [7, 16, 64, 70, 130]
ACTS = ("none", "clamp", "prelu", "two slopes", "step")
RESIDUALS = (None, "int16", "int32")
SLOPES = (4096, -32768, 32767, 0, 16384, -16384, 1, -1)
COMBINATIONS = list(itertools.product(ACTS, (False, True), RESIDUALS))
ALL = ("both", "out", "bits")


def ends(rng: Rng, shape: Any, some: Any) -> np.ndarray:
    """Numbers of 16 bits, half of them out of `some`."""
    return np.where(rng.random(shape) < 0.5, rng.choice(some, shape), rng.integers(-32768, 32768, shape))


def epilogue(rng: Rng, numerics: str, c: int, act: str, threshold: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of an op, and constants."""
    integer = numerics == "integer"
    fields: dict[str, Any] = {"act": "prelu" if act == "two slopes" else act}
    constants: dict[str, Any] = {}
    if act in ("clamp", "step"):
        limits = rng.integers(-32768, 32768, 2) if integer else rng.normal(size=2).astype(np.float32)
        fields["clamp"] = tuple((np.sort(limits) if act == "clamp" else limits).tolist())
    rows = {"prelu": (c,), "two slopes": (2, c), "table": (257,)}.get(act)
    if rows is not None:
        slope = ends(rng, rows, SLOPES) if integer else rng.normal(size=rows)
        constants["slope"] = slope, "i16" if integer else "f32"
    if threshold:
        least = ends(rng, c, (-32768, 32767, 0, 1)) if integer else np.r_[0.0, rng.normal(size=c - 1)]
        constants["threshold"] = least, "i16" if integer else "f32"
    return fields, constants


def writes(threshold: bool) -> tuple[str, ...]:
    return ("both", "bits") if threshold else ALL


# --- after a convolution of integers ---------------------------------------------------------------------------------


def binary(
    rng: Rng, h: int, w: int, c: int, out: int, k: int = 3, window: bool = False
) -> tuple[np.ndarray, np.ndarray, Constants]:
    """Bits, a weight and its constants: sums stay within 32 bits, results mostly within 16."""
    density = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], p=[0.05, 0.1, 0.7, 0.1, 0.05])
    most = min(32767, 2**30 // (k * k * c))
    scale = rng.integers(0, most + 1, out)
    terms = np.stack([scale, rng.integers(-most - (most == 32767), most + 1, out)]) if window else scale
    shift = np.clip(np.ceil(np.log2(scale * k * np.sqrt(c) + 1)) - rng.integers(13, 16, out), 0, 31)
    constants = {"scale": (terms, "i16"), "offset": (rng.integers(-(2**20), 2**20, out), "i32"), "shift": (shift, "u8")}
    return rng.random((h, w, c)) < density, rng.random((out, k, k, c)) < 0.5, constants


def check(
    rng: Rng, kind: str, x: np.ndarray, weight: np.ndarray, constants: Constants, combination: Any, **op: Any
) -> None:
    """One convolution with these parts; the residual has the shape of the result."""
    act, threshold, residual = combination
    fields, more = epilogue(rng, "integer", len(weight), act, threshold)
    op |= {"weight": weight, "constants": {**constants, **more}, **fields}
    if residual is not None:
        most = 32768 if residual == "int16" else 2**20
        sides = ((n + 2 * op["pad"][0] - weight.shape[1]) // op.get("stride", (1, 1))[0] + 1 for n in x.shape[:2])
        op["residual"] = rng.integers(-most, most, (*sides, len(weight))).astype(residual)
    check_op("integer", kind, x, **op)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_combination(combination: tuple[str, bool, str | None], window: bool) -> None:
    rng = np.random.default_rng(COMBINATIONS.index(combination))
    for c in (5, 16, 32, 64, 70, 128):
        for layer, pad in ((binary(rng, 5, 7, c, c, window=window), 1), (binary(rng, 4, 5, c, c + 3, 1, window), 0)):
            splits = (0, int(rng.integers(1, 36)))
            check(rng, "bconv", *layer, combination, pad=(pad, pad), splits=splits, writes=writes(combination[1]))


@pytest.mark.parametrize("part", range(4))
def test_every_number_of_channels(part: int) -> None:
    """With maps of 1 to 40 pixels: every tail of a tile of pixels, of a vector of channels and of a patch."""
    rng = np.random.default_rng(part)
    for out, pixels in zip(range(1, 131), itertools.cycle(range(1, 41))):
        h = int(rng.choice([n for n in range(1, pixels + 1) if pixels % n == 0]))
        c, k = int(rng.integers(1, 131)), int(rng.choice([1, 3, 5]))
        layer = binary(rng, h, pixels // h, c, out, k, window=part % 2 == 1)
        combination = COMBINATIONS[int(rng.integers(len(COMBINATIONS)))]
        check(rng, "bconv", *layer, combination, pad=(k // 2, k // 2), splits=(int(rng.integers(pixels + 1)),))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_real_convolutions(combination: tuple[str, bool, str | None]) -> None:
    """On pixels and on the stream, and of one channel each."""
    rng = np.random.default_rng(COMBINATIONS.index(combination))
    for out, c in ((1, 3), (16, 3), (16, 16), (17, 5), (64, 3), (64, 64), (70, 70), (100, 8), (130, 1)):
        h, w, k = int(rng.integers(3, 7)), int(rng.integers(3, 9)), int(rng.choice([1, 3]))
        weight = rng.integers(-300, 301, (out, k, k, 1 if out == c else c)).astype(np.int16)
        shift, offset = rng.integers(0, 8, out), rng.integers(-(2**20), 2**20, out)
        constants = {"offset": (offset, "i32"), "shift": (shift, "u8")}
        for dtype in (np.uint8, np.int16):
            x = rng.integers(*((0, 256) if dtype == np.uint8 else (-3000, 3001)), (h, w, c)).astype(dtype)
            stride = int(rng.integers(1, 3))
            op = {"stride": (stride, stride), "pad": (k // 2, k // 2), "splits": (int(rng.integers(12)),)}
            check(rng, "conv", x, weight, constants, combination, **op)


@pytest.mark.parametrize("c", [5, 16, 64, 100, 128])
@pytest.mark.parametrize("limits", [None, (-16384, 16384), (-3, 9000), (100, 200), (-300, -5), (0, 0)])
def test_sums_that_leave_16_bits(c: int, limits: tuple[int, int] | None) -> None:
    """With residuals at the ends of 16 bits, far beyond them, and in place; with every kind of clamp."""
    rng = np.random.default_rng(c)
    x, weight, constants = binary(rng, 5, 6, c, c + 3)
    op: dict[str, Any] = {"weight": weight, "constants": constants, "pad": (1, 1)}
    if limits is not None:
        op |= {"act": "clamp", "clamp": limits}
    shape = (5, 6, c + 3)
    far = rng.choice(np.array([-32768, -32767, 0, 32767], np.int16), shape)
    wide = rng.integers(-(2**30), 2**30, shape).astype(np.int32)
    for residual in (far, wide):
        check_op("integer", "bconv", x, residual=residual, splits=(0, 7, 1), writes=ALL, **op)
    check_op("integer", "bconv", x, residual=far, in_place=True, splits=(0, 7), writes=("out",), **op)


@pytest.mark.parametrize("channels", [5, 16, 64])
@pytest.mark.parametrize("rows", [1, 2])
def test_every_value_with_every_kind_of_slope(channels: int, rows: int) -> None:
    """A map, and a 1x1 convolution that hands on what it reads: all numbers of 16 bits."""
    rng = np.random.default_rng(channels)
    x = np.repeat(np.arange(-32768, 32768, dtype=np.int16), channels).reshape(256, 256, channels)
    slope = np.stack([np.resize(np.roll(SLOPES, 3 * row), channels) for row in range(rows)])
    slope[:, channels // 2 :] = rng.integers(-32768, 32768, (rows, channels - channels // 2))
    constants: dict[str, Any] = {"slope": (slope if rows == 2 else slope[0], "i16")}
    check_op("integer", "eltwise", x, act="prelu", constants=constants, splits=(4099,))
    nothing = np.zeros(channels, np.int64)
    constants |= {"offset": (nothing, "i32"), "shift": (nothing, "u8")}
    constants["threshold"] = rng.integers(-32768, 32768, channels), "i16"
    weight = np.eye(channels, dtype=np.int16).reshape(channels, 1, 1, channels)
    check_op("integer", "conv", x, weight=weight, act="prelu", constants=constants, splits=(4099,))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_window_terms(sign: int) -> None:
    """Patches of nothing but ones, near what 16-bit counts hold and above it, with all of a sum in the window."""
    for c, k in ((64, 3), (1310, 5), (3640, 3), (7290, 3)):
        size = k * k * c
        scale = np.minimum(32767, [0, (2**31 - 2) // size // 2, (2**31 - 2) // size - 1])
        window = sign * np.minimum(32767, (2**31 - 2) // size - scale)
        x, weight = np.ones((2, 3, c), np.bool_), np.ones((3, k, k, c), np.bool_)
        constants = {
            "scale": (np.stack([scale, window]), "i16"),
            "offset": (np.zeros(3), "i32"),
            "shift": (np.full(3, 16), "u8"),
        }
        check_op("integer", "bconv", x, weight=weight, constants=constants, pad=(k // 2, k // 2))


# --- after all others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [*ACTS, "table"])
@pytest.mark.parametrize("threshold", [False, True])
def test_integer_maps(act: str, threshold: bool) -> None:
    rng = np.random.default_rng(len(act))
    for c in CHANNELS:
        fields, constants = epilogue(rng, "integer", c, act, threshold)
        x = rng.integers(-32768, 32768, (3, 5, c)).astype(np.int16)
        x[0, 0], x[0, 1], x[0, 2], x[0, 3] = 0, -1, -32768, 32767
        op: dict[str, Any] = {**fields, "constants": constants, "splits": (0, 5), "writes": writes(threshold)}
        check_op("integer", "eltwise", x, **op)
        check_op("integer", "maxpool", x, window=(2, 2), **op)
        for shape, (dtype, most) in itertools.product((x.shape, (1, 1, c)), (("int16", 2**15), ("int32", 2**30))):
            residual = rng.integers(-most, most, shape).astype(dtype)  # of one pixel: it counts for every one
            check_op("integer", "eltwise", x, residual=residual, **op)
        fields, constants = epilogue(rng, "integer", c + 7, act, threshold)
        residual = rng.integers(-32768, 32768, (3, 5, c + 7)).astype(np.int16)
        op |= {**fields, "constants": constants, "channels": (2, 5)}
        check_op("integer", "channel_pad", x, **op)
        check_op("integer", "channel_pad", x, residual=residual, **op)


def around_zero(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Floats with zeros of both signs and very small ones among them."""
    x = rng.normal(size=shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array([0.0, -0.0, 1e-40, -1e-40], np.float32), shape), x)


@pytest.mark.parametrize("act", [*ACTS, "sigmoid"])
@pytest.mark.parametrize("threshold", [False, True])
def test_float(act: str, threshold: bool) -> None:
    rng = np.random.default_rng(len(act))
    for c in CHANNELS:
        fields, constants = epilogue(rng, "float", c, act, threshold)
        terms = {**constants, "scale": (rng.normal(size=c), "f64"), "offset": (rng.normal(size=c), "f64")}
        terms["scale"][0][0], terms["offset"][0][0] = 0.0, 1e-8
        op: dict[str, Any] = {**fields, "splits": (0, 5), "writes": writes(threshold)}
        x = around_zero(rng, (3, 4, c))
        check_op("float", "eltwise", x, constants=constants, **op)
        for shape in ((3, 4, c), (1, 1, c)):  # the latter counts for every pixel
            residual = rng.normal(size=shape).astype(np.float32)
            check_op("float", "eltwise", x, residual=residual, constants=constants, **op)
            check_op("float", "eltwise", x, residual=residual, constants=terms, **op)
        bits, weight = rng.random((3, 4, 40)) < 0.5, rng.random((c, 3, 3, 40)) < 0.5
        op |= {"weight": weight, "pad": (1, 1), "constants": terms}
        check_op("float", "bconv", bits, **op)
        residual = rng.normal(size=(3, 4, c)).astype(np.float32)
        check_op("float", "bconv", bits, residual=residual, **op)
        check_op("float", "bconv", bits, residual=residual, in_place=True, **op)
