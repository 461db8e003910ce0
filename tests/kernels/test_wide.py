"""Wide ops, and ops that read what they write: every kernel of every table, with everything that may follow a core."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.ops import Constants, check_op

Rng = np.random.Generator
ACTS = ("none", "clamp", "prelu", "two slopes", "step")
RESIDUALS = (None, "int16", "int32")
COMBINATIONS = list(itertools.product(ACTS, (False, True), RESIDUALS))
SLOPES = (1 << 30, -(1 << 30), -(2**31), 2**31 - 1, 0, 1, -1)
MOST = 2**29  # of |q|, and of a residual: their sum is less than 2^30, as a prelu demands
CHANNELS = [1, 7, 16, 33, 64, 70, 130]


def numbers(rng: Rng, shape: Any, kind: str = "int32", most: int = MOST) -> np.ndarray:
    """Of any size, some of them the largest of either sign, and about 0."""
    most = 32768 if kind == "int16" else most
    some = rng.integers(-most, most, shape) >> rng.integers(0, 24, shape)
    ends = rng.choice([-most, most - 1, 0, 1, -1], shape)
    return np.where(rng.random(shape) < 0.2, ends, some).astype(kind)


def epilogue(rng: Rng, c: int, act: str, threshold: bool, wide: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of an op, and constants."""
    fields: dict[str, Any] = {"act": "prelu" if act == "two slopes" else act}
    constants: dict[str, Any] = {}
    dtype, most = ("i32", 2**30) if wide else ("i16", 32767)
    if act in ("clamp", "step"):
        ends = np.float32(numbers(rng, 2, "int64", most)).clip(-most, most)
        fields["clamp"] = tuple((np.sort(ends) if act == "clamp" else ends).tolist())
    if "slope" in act or act == "prelu":
        rows = (2, c) if act == "two slopes" else (c,)
        some = rng.integers(-2 * most, 2 * most, rows)
        slope = np.where(rng.random(rows) < 0.4, rng.choice(SLOPES, rows), some) if wide else some // 2
        constants["slope"] = slope, dtype
    if threshold:
        constants["threshold"] = numbers(rng, c, "int64", most // 2), dtype
    return fields, constants


def check(rng: Rng, kind: str, x: np.ndarray, c: int, shape: Any, combination: Any, **op: Any) -> None:
    """One wide op of c channels with these parts; `shape` has the rows and columns of the result."""
    act, threshold, residual = combination
    fields, more = epilogue(rng, c, act, threshold)
    op = {**op, **fields, "constants": {**op.get("constants", {}), **more}, "out": "i32"}
    if residual is not None:
        op["residual"] = numbers(rng, (*shape, c), residual)
    check_op("integer", kind, x, writes=("both", "bits") if threshold else ("both", "out"), **op)


def binary(rng: Rng, shape: Any, weight: Any, window: bool = False) -> tuple[np.ndarray, np.ndarray, Constants]:
    """Bits, a weight and its constants: multipliers of any size, sums up to MOST."""
    out, k = weight[0], int(np.prod(weight[1:]))
    most = (MOST - 2**20) // k // (2 if window else 1)
    scale = rng.integers(0, most + 1, out)
    scale[0] = most
    terms = np.stack([scale, numbers(rng, out, "int64", most)]) if window else scale
    offset, shift = rng.integers(-(2**20), 2**20, out), rng.integers(0, 12, out)
    shift[-1] = 0
    constants = {"scale": (terms, "i32"), "offset": (offset, "i32"), "shift": (shift, "u8")}
    return rng.random(shape) < rng.choice([0.0, 0.5, 0.5, 1.0]), rng.random(weight) < 0.5, constants


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_bconv_with_every_combination(combination: tuple[str, bool, str | None], window: bool) -> None:
    rng = np.random.default_rng(COMBINATIONS.index(combination))
    for c, out in ((5, 8), (16, 16), (32, 33), (64, 64), (70, 130), (128, 100)):
        x, weight, constants = binary(rng, (5, 7, c), (out, 3, 3, c), window)
        op: dict[str, Any] = {"weight": weight, "constants": constants, "pad": (1, 1)}
        op |= {"splits": (0, int(rng.integers(1, 36)))[c % 2 :], "in_place": out % 2 == 0}
        check(rng, "bconv", x, out, (5, 7), combination, **op)


@pytest.mark.parametrize("part", range(3))
def test_bconv_with_every_number_of_channels(part: int) -> None:
    """With maps of 1 to 40 pixels: every tail of a tile of pixels, of a vector of channels and of a patch."""
    rng = np.random.default_rng(part)
    for out, pixels in zip(range(1 + part, 131, 3), itertools.cycle(range(1, 41, 2))):
        h = int(rng.choice([n for n in range(1, pixels + 1) if pixels % n == 0]))
        c, k = int(rng.integers(1, 131)), int(rng.choice([1, 3]))
        x, weight, constants = binary(rng, (h, pixels // h, c), (out, k, k, c), window=out % 2 == 1)
        op: dict[str, Any] = {"weight": weight, "constants": constants, "pad": (k // 2, k // 2)}
        combination = COMBINATIONS[int(rng.integers(len(COMBINATIONS)))]
        check(rng, "bconv", x, out, x.shape[:2], combination, splits=(int(rng.integers(pixels + 1)),), **op)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("c", "out", "groups"), [(3641, 9, 1), (7282, 70, 1), (64, 64, 64), (12, 18, 3), (9, 5, 1)])
def test_bconv_of_other_kinds(c: int, out: int, groups: int, window: bool) -> None:
    """More products than 16-bit counters hold, groups, dilation, and taps outside that count."""
    rng = np.random.default_rng(c)
    dilation = 2 if c == 9 else 1
    x, weight, constants = binary(rng, (4, 3, c), (out, 3, 3, c // groups), window)
    if c < 100 and not window:
        constants = {**constants, "scale": (np.asarray(constants["scale"][0]) // 3, "i32")}
    op: dict[str, Any] = {"weight": weight, "constants": constants, "pad": (dilation, dilation)}
    op |= {"dilation": (dilation, dilation), "pad_value": 2.5 if c < 100 and not window else 0.0, "splits": (0, 4)}
    for combination in COMBINATIONS[1::7]:
        check(rng, "bconv", x, out, (4, 3), combination, **op)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_convolutions(combination: tuple[str, bool, str | None]) -> None:
    """On pixels and on the stream, of one channel each, and with weights of 8 bits."""
    rng = np.random.default_rng(COMBINATIONS.index(combination))
    for out, c in ((1, 3), (16, 3), (16, 16), (17, 5), (64, 3), (64, 64), (70, 70), (100, 8)):
        h, w, k = int(rng.integers(4, 7)), int(rng.integers(7, 12)), int(rng.choice([1, 3]))
        for dtype in (np.uint8, np.int16):
            inputs = 1 if out == c and k == 3 else c
            most = min(32767, (MOST - 2**22) // (k * k * inputs * (256 if dtype == np.uint8 else 32768)))
            weight = numbers(rng, (out, k, k, inputs), "int64", max(2, most)).clip(-32768, 32767).astype(np.int16)
            if out % 3 == 1:
                weight = (weight >> 8 << 8 if dtype == np.uint8 else weight.clip(-128, 127)).astype(np.int16)
            shift, offset = rng.integers(0, 4, out), rng.integers(-(2**20), 2**20, out)
            x = rng.integers(*((0, 256) if dtype == np.uint8 else (-32768, 32768)), (h, w, c)).astype(dtype)
            op: dict[str, Any] = {"weight": weight, "stride": (1, 2), "pad": (k // 2, k // 2)}
            op |= {"constants": {"offset": (offset, "i32"), "shift": (shift, "u8")}}
            op["splits"] = (int(rng.integers(12)),)
            check(rng, "conv", x, out, (h, (w + 2 * (k // 2) - k) // 2 + 1), combination, **op)


# --- ops without sums of products: (kind of the input, kind of the result), one of which is i32 ----------------------

KINDS = [("int16", "i32"), ("int32", "i32"), ("int32", "i16")]


def check_map(rng: Rng, kind: str, x: np.ndarray, c: int, out: str, **op: Any) -> None:
    """Every activation after an op that takes c channels from a map; `shape` is that of a residual, if it adds one."""
    shape, constants = op.pop("adds", None), op.pop("constants", {})
    for i, act in enumerate(ACTS):
        fields, more = epilogue(rng, c, act, i % 2 == 1, out == "i32")
        if shape is not None:
            residual = ("int16", "int32", None)[i % 3]
            op["residual"] = None if residual is None else numbers(rng, shape, residual)
        writes = ("both", "bits") if i % 2 else ("both", "out")
        parts: dict[str, Any] = {**op, **fields, "constants": {**constants, **more}, "writes": writes}
        check_op("integer", kind, x, out=out, splits=(0, 4)[i % 2 :], **parts)


@pytest.mark.parametrize(("of", "out"), KINDS)
@pytest.mark.parametrize("c", CHANNELS)
def test_pools(c: int, of: str, out: str) -> None:
    rng = np.random.default_rng(c)
    x = numbers(rng, (7, 8, c), of)
    for i, (window, stride) in enumerate([((2, 2), (2, 2)), ((3, 3), (1, 2)), ((3, 2), (3, 1))]):
        pad = (int(rng.integers(0, 2)), 1)
        pool: dict[str, Any] = {"window": window, "stride": stride, "pad": pad, "ceil": i % 2 == 1}
        check_map(rng, "maxpool", x, c, out, dilation=(1 + i % 2, 1), **pool)
        constants = {
            "scale": (rng.integers(-32768, 32768, c), "i16"),
            "offset": (rng.integers(-(2**31), 2**31, c), "i32"),
            "shift": (np.full(c, 24 if of == "int16" else 20), "u8"),
        }
        constants["shift"][0][0] = 62 if of == "int32" else 47
        check_map(rng, "avgpool", x, c, out, exclude_pad=i == 1, constants=constants, **pool)


def test_means_of_large_windows() -> None:
    """Sums of 47 bits, and windows at the edge, whose sum times all taps takes more than 64."""
    rng = np.random.default_rng(0)
    x = rng.choice(np.array([-(2**29), 2**29 - 1], np.int32), (256, 255, 3), p=(0.01, 0.99))
    constants = {"scale": ([32767, -32768, 1], "i16"), "offset": ([0, 1, -1], "i32"), "shift": ([33, 33, 18], "u8")}
    constants = {name: (np.array(row), dtype) for name, (row, dtype) in constants.items()}
    for exclude_pad in (False, True):
        op: dict[str, Any] = {"window": (256, 255), "stride": (128, 127), "pad": (128, 127), "constants": constants}
        check_op("integer", "avgpool", x, exclude_pad=exclude_pad, ceil=True, out="i32", **op)


@pytest.mark.parametrize(("of", "out"), KINDS)
@pytest.mark.parametrize("c", CHANNELS)
def test_sums_and_products(c: int, of: str, out: str) -> None:
    rng = np.random.default_rng(c)
    x = numbers(rng, (5, 3, c), of)
    for shape in ((5, 3, c), (1, 1, c)):
        check_map(rng, "eltwise", x, c, out, adds=shape)
        constants = {
            "scale": (rng.integers(-32768, 32768, c), "i16"),
            "offset": (rng.integers(-(2**31), 2**31, c), "i32"),
            "shift": (np.full(c, 18 if of == "int16" else 31), "u8"),
        }
        constants["shift"][0][0] = 62 if of == "int32" else 47
        check_map(rng, "mul", x, c, out, residual=numbers(rng, shape, "int16"), constants=constants)


@pytest.mark.parametrize(("of", "out"), KINDS)
@pytest.mark.parametrize("c", CHANNELS)
def test_moved_and_interpolated(c: int, of: str, out: str) -> None:
    rng = np.random.default_rng(c)
    h, w = 4, 5
    x = numbers(rng, (h, w, c), of)
    check_map(rng, "concat", x, c + 9, out, residual=numbers(rng, (h, w, 9), of))
    for before, after in ((0, 0), (16, 48), (3, 8)):
        adds = (h, w, before + c + after)
        check_map(rng, "channel_pad", x, before + c + after, out, channels=(before, after), adds=adds)
    for channels in (rng.integers(-1, c, 66), np.r_[-1, np.arange(c), -1]):
        rows, columns = rng.integers(-1, h, 6), np.arange(w)
        weight = np.concatenate([channels, rows, columns]).astype(np.int32)
        pad = -(2.0**30) if of == "int32" and out == "i16" else -(2.0**28) if of == "int32" else -32768.0
        shape = (len(rows), len(columns), len(channels))
        check_map(rng, "gather", x, len(channels), out, weight=weight, shape=shape, pad_value=pad, adds=shape)

    def pairs(count: int, size: int) -> np.ndarray:
        index, share = rng.integers(0, size - 1, count), rng.integers(0, 1 << 30, count)
        index[0], share[0] = size - 1, 0  # what follows the last one is not there
        share[1], share[2] = 1, (1 << 30) - 1
        return np.stack([index, share], 1).reshape(-1)

    weight = np.concatenate([pairs(7, h), pairs(6, w)]).astype(np.int32)
    check_map(rng, "bilinear", x, c, out, weight=weight, shape=(7, 6, c), adds=(7, 6, c))


@pytest.mark.parametrize("c", CHANNELS)
def test_to_float(c: int) -> None:
    rng = np.random.default_rng(c)
    constants = {"scale": (rng.normal(size=c), "f64"), "offset": (rng.normal(size=c) * 1000, "f64")}
    x = numbers(rng, (3, 4, c), most=2**31 - 1)
    check_op("integer", "to_float", x, constants=constants, out="f32", writes=("out",), splits=(0, 4))


def test_a_table_of_32_bits() -> None:
    """What is read from an i32 is clamped to 16 bits before a narrow op's table."""
    rng = np.random.default_rng(0)
    constants = {"slope": (rng.integers(-32768, 32768, 257), "i16")}
    x = numbers(rng, (9, 9, 70))
    check_op("integer", "eltwise", x, act="table", constants=constants, writes=("both", "out"))
