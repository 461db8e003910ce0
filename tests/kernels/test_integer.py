"""Every integer kernel of every table against ovsw.numerics, bit for bit, over sizes around each tile and word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.ops import Constants, check_op

Pair = tuple[int, int]
Rng = np.random.Generator
MAPS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 4), (5, 7), (7, 5), (7, 7), (8, 8), (9, 9), (3, 17)]
CHANNELS = [1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 256]


def geometries(maps: list[Pair], windows: tuple[int, ...], pads: tuple[int, ...]) -> Iterator[tuple[Pair, int, Any]]:
    """Map, side of the window, stride and padding: those that a convolution can have."""
    for (h, w), k, s, p in itertools.product(maps, windows, (1, 2), pads):
        if p < k and h + 2 * p >= k and w + 2 * p >= k:
            yield (h, w), k, {"stride": (s, s), "pad": (p, p)}


def stream(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-32768, 32768, shape).astype(np.int16)


def bconv_constants(rng: Rng, out_c: int, k: int) -> Constants:
    """Multipliers of 15 bits with results of about the stream's size, and some extremes; sums stay within 32 bits."""
    mult = rng.integers(1 << 14, 1 << 15, out_c)
    mult[0] = 32767
    mult[out_c // 2] = 0
    mult = np.minimum(mult, (2**31 - 1 - 2**24) // k)
    shift = np.clip(np.round(np.log2(mult * np.sqrt(k) + 1) - 13), 0, 31).astype(np.int64)
    shift[-1] = 31 if rng.random() < 0.2 else shift[-1]
    offset = rng.integers(-(2**24), 2**24, out_c) + (1 << shift >> 1)
    offset = np.clip(offset, -(2**31 - 1 - mult * k), 2**31 - 1 - mult * k)
    return {"scale": (mult, "i16"), "shift": (shift, "u8"), "offset": (offset, "i32")}


def check_bconv(rng: Rng, x: np.ndarray, weight: np.ndarray, **op: Any) -> None:
    constants = bconv_constants(rng, len(weight), weight[0].size)
    check_op("integer", "bconv", x, weight=weight, constants=constants, **op)


def test_bconv_channels() -> None:
    """Many channel counts, as input and as output."""
    rng = np.random.default_rng(1)
    for i, (c, out_c) in enumerate(itertools.product(CHANNELS, CHANNELS[::2])):
        k, stride = (1, 3, 3, 5)[i % 4], ((1, 1), (2, 2), (1, 2))[i % 3]
        x, weight = rng.random((*MAPS[i % len(MAPS)], c)) < 0.5, rng.random((out_c, k, k, c)) < 0.5
        check_bconv(rng, x, weight, stride=stride, pad=(k // 2, k // 2))


@pytest.mark.parametrize("c", [1, 16, 32, 33, 64, 65, 128, 130])
def test_bconv_geometry(c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, geometry in geometries(MAPS, (1, 3, 5), (0, 1)):
        out_c = (9, 64, 40)[(h + k) % 3]
        check_bconv(rng, rng.random((h, w, c)) < 0.5, rng.random((out_c, k, k, c)) < 0.5, **geometry)
    uneven = itertools.product([(1, 3), (3, 1), (2, 2), (4, 3)], [(1, 2), (3, 1)], [(0, 0), (0, 1), (1, 0)])
    for window, stride, pad in uneven:
        if pad[0] < window[0] and pad[1] < window[1]:
            weight = rng.random((5, *window, c)) < 0.5
            check_bconv(rng, rng.random((6, 7, c)) < 0.5, weight, stride=stride, pad=pad)


@pytest.mark.parametrize(
    ("c", "out_c", "size", "stride"),
    [
        *((64, 64, 56, 1), (64, 128, 56, 2), (128, 128, 28, 1), (128, 256, 28, 2), (256, 256, 14, 1)),
        *((256, 512, 14, 2), (512, 512, 7, 1), (16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2)),
        *((64, 64, 8, 1), (96, 32, 12, 1), (104, 16, 16, 1)),
    ],
)
def test_bconv_of_the_networks(c: int, out_c: int, size: int, stride: int) -> None:
    """The layers of ResNet18 and cResNet20 and two widths between, with a residual, whole and in ranges."""
    rng = np.random.default_rng(c + out_c)
    x, weight = rng.random((size, size, c)) < 0.5, rng.random((out_c, 3, 3, c)) < 0.5
    residual = stream(rng, ((size - 1) // stride + 1,) * 2 + (out_c,))
    check_bconv(rng, x, weight, stride=(stride, stride), pad=(1, 1), residual=residual, splits=(0, 13, 96))


@pytest.mark.parametrize(("x_bit", "w_bit"), itertools.product([False, True], repeat=2))
def test_bconv_equal_and_different_bits(x_bit: bool, w_bit: bool) -> None:
    """All bits equal, or all different: the extremes of every counter."""
    rng = np.random.default_rng(0)
    for c, k, (h, w) in itertools.product((1, 16, 32, 63, 64, 65, 128, 256, 512), (1, 3), ((1, 1), (4, 5), (9, 9))):
        check_bconv(rng, np.full((h, w, c), x_bit), np.full((70, k, k, c), w_bit), pad=(k // 2, k // 2))


@pytest.mark.parametrize("c", [28, 29, 57, 448, 455, 456, 2048, 3640, 3641, 7281, 7282, 20000])
def test_bconv_counter_overflow(c: int) -> None:
    """Popcounts around what 8- and 16-bit counters hold: 9 * 29 > 255, 9 * 3641 > 32767, 9 * 7282 > 65535."""
    rng = np.random.default_rng(c)
    x = np.zeros((3, 3, c), np.bool_)
    weight = np.ones((70 if c == 7282 else 9, 3, 3, c), np.bool_)
    weight[1::2] = False
    check_bconv(rng, x, weight, pad=(1, 1), splits=(0, 4))
    check_bconv(rng, x, weight)


def conv_constants(rng: Rng, weight: np.ndarray, most: int) -> Constants:
    out_c = len(weight)
    size = np.abs(weight.reshape(out_c, -1).astype(np.int64)).sum(axis=1) * most
    shift = np.clip(np.round(np.log2(size + 1) - 15), 0, 31).astype(np.int64)
    room = 2**31 - 1 - size - size // 128 - 65536
    offset = np.clip(rng.integers(-(2**22), 2**22, out_c), -room, room)
    return {"shift": (shift, "u8"), "offset": (offset, "i32")}


def limited(rng: Rng, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Random int16 weights, as large as 32-bit sums with inputs up to `most` allow."""
    taps = int(np.prod(shape[1:]))
    limit = max(1, min(32767, int(0.98 * (2**31 - 2**24) / (most * taps))))
    weight = rng.integers(-limit, limit + 1, shape)
    if limit == 32767:
        weight.reshape(-1)[-1] = -32768
    return weight.astype(np.int16)


def check_pixels(
    rng: Rng,
    shape: tuple[int, int, int],
    out_c: int,
    k: Pair,
    unit: int = 1,
    pixels: Pair = (0, 255),
    extreme: Pair | None = None,
    **op: Any,
) -> None:
    """All weights are multiples of `unit`: 256 is what 8-bit ones come as. With `extreme` they are those two, and
    pixels the darkest and lightest of all."""
    x = rng.integers(pixels[0], pixels[1] + 1, shape).astype(np.uint8)
    weight = limited(rng, (out_c, *k, shape[2]), 2 * 255) // unit * unit
    mean = rng.uniform(0, 1, shape[2]).astype(np.float32)
    if extreme:
        x, mean = rng.choice(np.uint8(pixels), shape), np.zeros(shape[2], np.float32)
        weight = (rng.choice(extreme, weight.shape) * unit).astype(np.int16)
    constants = conv_constants(rng, weight, 255 if extreme else 2 * 255)
    check_op("integer", "conv", x, weight=weight, mean=mean.tolist(), constants=constants, **op)


@pytest.mark.parametrize("c", [1, 3, 4, 7])
def test_conv_of_pixels(c: int) -> None:
    """The stem: zero points, borders, any geometry."""
    rng = np.random.default_rng(c)
    for i, (size, k, geometry) in enumerate(geometries([*MAPS, (15, 14), (33, 30)], (1, 3, 5, 7), (0, 1, 3))):
        out_c, unit = (1, 8, 15, 16, 17, 64, 70)[i % 7], (1, 1, 256)[i % 3]
        check_pixels(rng, (*size, c), out_c, (k, k), unit, splits=((0, 5)[i % 2],), **geometry)


@pytest.mark.parametrize(("size", "k", "s", "p", "out_c"), [(224, 7, 2, 3, 64), (32, 3, 1, 1, 16), (64, 7, 2, 3, 64)])
def test_stems_of_the_networks(size: int, k: int, s: int, p: int, out_c: int) -> None:
    rng = np.random.default_rng(0)
    op: dict[str, Any] = {"stride": (s, s), "pad": (p, p), "act": "clamp", "clamp": (-20000, 20000)}
    for unit, pixels in itertools.product((1, 256), ((0, 255), (0, 0), (255, 255))):
        check_pixels(rng, (size, size, 3), out_c, (k, k), unit, pixels, **op)


WINDOWS = [((7, 7), (2, 2)), ((5, 5), (2, 2)), ((4, 4), (1, 1)), ((6, 3), (1, 1)), ((3, 8), (1, 2)), ((8, 7), (3, 2))]


@pytest.mark.parametrize("c", [1, 2, 3, 4])
@pytest.mark.parametrize(("k", "s"), WINDOWS)
def test_conv_of_pixels_with_8_bits(c: int, k: Pair, s: Pair) -> None:
    """Windows that a table may take apart: every width of a row and every place to start in it, and the extremes."""
    rng = np.random.default_rng(c)
    for w in range(k[1], 2 * k[1] + 8):
        op: dict[str, Any] = {"stride": s, "pad": (k[0] // 2, w % 3), "splits": ((0, 1, 5, 23, 30)[w % 5],)}
        extreme = (-128, 127) if w % 2 else None
        check_pixels(rng, (k[0] + w % 3, w, c), (1, 17, 40)[w % 3], k, 256, extreme=extreme, **op)


def check_conv(rng: Rng, x: np.ndarray, out_c: int, k: int, narrow: bool = False, split: int = 0, **op: Any) -> None:
    """On the stream; `narrow` weights have 8 bits, some of them their ends."""
    weight = limited(rng, (out_c, k, k, x.shape[2]), 32768)
    if narrow:
        most = min(127, int(np.abs(weight.astype(np.int32)).max()))
        least = -128 if most == 127 else -most
        weight = np.where(rng.random(weight.shape) < 0.2, least, rng.integers(least, most + 1, weight.shape))
        weight = weight.astype(np.int16)
    op |= {"weight": weight, "constants": conv_constants(rng, weight, 32768), "splits": (split,)}
    check_op("integer", "conv", x, out="i32", writes=("out",), **op)
    check_op("integer", "conv", x, act="clamp", clamp=(-16384, 16384), **op)


@pytest.mark.parametrize("c", [1, 3, 16, 33, 64])
def test_conv_of_the_stream(c: int) -> None:
    rng = np.random.default_rng(c)
    for i, (size, k, geometry) in enumerate(geometries(MAPS, (1, 3), (0, 1))):
        for narrow in (False, True):
            x = stream(rng, (*size, c))
            check_conv(rng, x, (1, 15, 16, 17, 130)[i % 5], k, narrow, (0, 3)[i % 2], **geometry)


@pytest.mark.parametrize(("c", "size"), [(64, 56), (128, 28), (256, 14)])
def test_shortcuts_of_the_networks(c: int, size: int) -> None:
    rng = np.random.default_rng(c)
    shape = (size, size, c)
    maps = [stream(rng, shape), stream(rng, shape), *(np.full(shape, n, np.int16) for n in (-32768, 32767))]
    for i, x in enumerate(maps):
        check_conv(rng, x, 2 * c, 1, i % 2 == 1, (0, 3)[i % 2], stride=(2, 2))


@pytest.mark.parametrize(("features", "out_c"), [(1, 1), (3, 5), (16, 4), (64, 10), (100, 17), (512, 1000), (8192, 10)])
def test_linear(features: int, out_c: int) -> None:
    """Sums of 64 bits, the rounding of halves and of the conversion to float."""
    rng = np.random.default_rng(features)
    for x_bits, w_bits in ((16, 16), (12, 9), (1, 2)):
        x = rng.integers(-(1 << x_bits) // 2, (1 << x_bits) // 2, (1, 1, features)).astype(np.int16)
        weight = rng.integers(-(1 << w_bits) // 2, (1 << w_bits) // 2, (out_c, features)).astype(np.int16)
        if x_bits == 16:
            x[:], weight[0] = -32768, -32768  # the largest sum there is
        most = 32768 * np.abs(weight.astype(np.int64)).sum(axis=1)
        shift = np.maximum(0, np.ceil(np.log2(most + 1)).astype(np.int64) - 29)
        shift[::3] = np.minimum(47, shift[::3] + 3)
        offset = rng.integers(-(2**30), 2**30, out_c)
        constants = {"shift": (shift, "u8"), "offset": (offset, "i32"), "scale": (np.float32([2.0**-20]), "f32")}
        op: dict[str, Any] = {"weight": weight, "constants": constants, "out": "f32", "writes": ("out",)}
        check_op("integer", "linear", x, splits=(x_bits % 2,), **op)


@pytest.mark.parametrize("c", [1, 3, 8, 16, 64, 70])
def test_pools(c: int) -> None:
    rng = np.random.default_rng(c)
    for size, k, geometry in geometries([*MAPS, (112, 10)], (1, 2, 3, 7), (0, 1)):
        if 2 * geometry["pad"][0] > k:
            continue
        x, op = stream(rng, (*size, c)), {"window": (k, k), "splits": (3,), **geometry}
        check_op("integer", "maxpool", x, act="clamp", clamp=(-16384, 20000), **op)
        scale, offset = rng.integers(-32768, 32768, c), rng.integers(-(2**31), 2**31, c)
        shift = np.full(c, 16 + int(np.log2(k * k)))
        shift[0] = 40
        constants = {"scale": (scale, "i16"), "shift": (shift, "u8"), "offset": (offset, "i32")}
        check_op("integer", "avgpool", x, constants=constants, **op)
