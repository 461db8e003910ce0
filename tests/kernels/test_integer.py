"""Every integer kernel of every table against docs/numerics.md in plain numpy, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.ops import run_op

Pair = tuple[int, int]
Rng = np.random.Generator
MAPS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 4), (5, 7), (7, 5), (7, 7), (8, 8), (9, 9), (3, 17)]
CHANNELS = [1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 256]


def run(isa: str, name: str, x: np.ndarray, **changes: Any) -> dict[str, np.ndarray]:
    """One kernel; `x` is (h, w, c): booleans for bconv, uint8 for conv_u8, int16 for the others.

    `wanted` names what it writes: out (i16), out32, bits, logits.
    """
    dtypes = {"scale": "i16", "offset": "i32", "slope": "i16", "shift": "u8"}
    constants = {key: (changes.pop(key), dtype) for key, dtype in dtypes.items() if key in changes}
    if name == "linear":
        constants["scale"] = (np.float32([changes.pop("logit_scale")]), "f32")
    wanted = changes.pop("wanted", ["out", "bits"])
    kinds = {"out": "i16", "out32": "i32", "logits": "f32"}
    first = next((key for key in kinds if key in wanted), None)
    limits = changes.pop("lo", None), changes.pop("hi", None)
    if "slope" in constants:
        changes.update(act="prelu")
    elif limits != (None, None):
        changes.update(act="clamp", clamp=limits)
    residual = changes.pop("residual", None)
    residual32 = changes.pop("residual32", None)
    changes["residual"] = residual if residual is not None else residual32
    out, bits = first and kinds[first], "bits" in wanted
    result = run_op(isa, "integer", name.split("_")[0] if "conv_" in name else name, x, constants=constants,
                    out=out, bits=bits, **changes)  # fmt: skip
    return {first if key == "out" and first else key: value for key, value in result.items()}


def taps(x: np.ndarray, kernel: Pair, stride: Pair, pad: Pair, fill: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(h', w', kh, kw, c) int64 values under each window, and (h', w', kh, kw) whether they are inside."""
    (h, w), (ph, pw) = x.shape[:2], pad
    padded = np.full((h + 2 * ph, w + 2 * pw, x.shape[2]), fill, np.int64)
    padded[ph : ph + h, pw : pw + w] = x
    inside = np.zeros((h + 2 * ph, w + 2 * pw), np.bool_)
    inside[ph : ph + h, pw : pw + w] = True
    view = np.lib.stride_tricks.sliding_window_view
    windows = view(padded, kernel, axis=(0, 1))[:: stride[0], :: stride[1]]
    return np.moveaxis(windows, 2, -1), view(inside, kernel)[:: stride[0], :: stride[1]]


def dots(x: np.ndarray, w: np.ndarray, stride: Pair, pad: Pair) -> np.ndarray:
    """Sums of products over the taps inside, in int64."""
    windows, _ = taps(x, w.shape[1:3], stride, pad)
    flat = windows.reshape(*windows.shape[:2], -1).astype(np.float64)
    result = flat @ w.reshape(len(w), -1).T.astype(np.float64)  # exact: far below 2^53
    return result.astype(np.int64)


def expect(q: np.ndarray, got: dict[str, np.ndarray], label: Any, lo: int = -32768, hi: int = 32767, **e: Any) -> None:
    v = q.copy()
    for key in ("residual", "residual32"):
        if e.get(key) is not None:
            v += e[key]
    v = np.clip(v, lo, hi)
    if e.get("slope") is not None:
        v = np.where(v >= 0, v, np.clip(((2 * v + 1) * e["slope"].astype(np.int64)) >> 15, -32768, 32767))
    for key, value in (("out", v), ("bits", v >= 0), ("out32", q)):
        if key in got:
            np.testing.assert_array_equal(got[key], value, err_msg=f"{key} of {label}")


def signs(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1, -1)


def bconv_constants(rng: Rng, out_c: int, k: int) -> dict[str, np.ndarray]:
    """Multipliers of 15 bits with results of about the stream's size, and some extremes; sums stay within 32 bits."""
    mult = rng.integers(1 << 14, 1 << 15, out_c)
    mult[0] = 32767
    mult[out_c // 2] = 0
    mult = np.minimum(mult, (2**31 - 1 - 2**24) // k)
    shift = np.clip(np.round(np.log2(mult * np.sqrt(k) + 1) - 13), 0, 31).astype(np.int64)
    shift[-1] = 31 if rng.random() < 0.2 else shift[-1]
    offset = rng.integers(-(2**24), 2**24, out_c) + (1 << shift >> 1)
    offset = np.clip(offset, -(2**31 - 1 - mult * k), 2**31 - 1 - mult * k)
    return {"scale": mult.astype(np.int16), "shift": shift.astype(np.int32), "offset": offset.astype(np.int32)}


def check_bconv(
    isa: str,
    x: np.ndarray,
    w: np.ndarray,
    stride: Pair,
    pad: Pair,
    rng: Rng,
    splits: tuple[int, ...] = (0,),
    **extra: Any,
) -> None:
    constants = bconv_constants(rng, len(w), w[0].size)
    m, o, s = (constants[k].astype(np.int64) for k in ("scale", "offset", "shift"))
    q = (m * dots(signs(x), signs(w), stride, pad) + o) >> s
    for split in splits:
        got = run(isa, "bconv", x, weight=w, stride=stride, pad=pad, split=split, **constants, **extra)
        expect(q, got, f"x {x.shape}, w {w.shape}, stride {stride}, pad {pad}, split {split}", **extra)


def test_bconv_channels(isa: str) -> None:
    """Many channel counts, as input and as output."""
    rng = np.random.default_rng(1)
    for i, (c, out_c) in enumerate(itertools.product(CHANNELS, CHANNELS[::2])):
        h, w = MAPS[i % len(MAPS)]
        k, stride = (1, 3, 3, 5)[i % 4], ((1, 1), (2, 2), (1, 2))[i % 3]
        check_bconv(isa, rng.random((h, w, c)) < 0.5, rng.random((out_c, k, k, c)) < 0.5, stride, (k // 2, k // 2), rng)


@pytest.mark.parametrize("c", [1, 16, 32, 33, 64, 65, 128, 130])
def test_bconv_geometry(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS, (1, 3, 5), (1, 2), (0, 1)):
        if p < k and h + 2 * p >= k and w + 2 * p >= k:
            out_c = (9, 64, 40)[(h + k) % 3]
            check_bconv(isa, rng.random((h, w, c)) < 0.5, rng.random((out_c, k, k, c)) < 0.5, (s, s), (p, p), rng)
    for (kh, kw), (sh, sw), (ph, pw) in itertools.product(
        [(1, 3), (3, 1), (2, 2), (4, 3)], [(1, 2), (3, 1)], [(0, 0), (0, 1), (1, 0)]
    ):
        if ph < kh and pw < kw:
            weight = rng.random((5, kh, kw, c)) < 0.5
            check_bconv(isa, rng.random((6, 7, c)) < 0.5, weight, (sh, sw), (ph, pw), rng)


@pytest.mark.parametrize(
    ("c", "out_c", "size", "stride"),
    [
        *((64, 64, 56, 1), (64, 128, 56, 2), (128, 128, 28, 1), (128, 256, 28, 2), (256, 256, 14, 1)),
        *((256, 512, 14, 2), (512, 512, 7, 1), (16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2)),
        *((64, 64, 8, 1), (96, 32, 12, 1), (104, 16, 16, 1)),
    ],
)
def test_bconv_of_the_networks(isa: str, c: int, out_c: int, size: int, stride: int) -> None:
    """The layers of ResNet18 and cResNet20 and two widths between, with residual and clamp, whole and in ranges."""
    rng = np.random.default_rng(c + out_c)
    x, w = rng.random((size, size, c)) < 0.5, rng.random((out_c, 3, 3, c)) < 0.5
    shape = ((size - 1) // stride + 1,) * 2 + (out_c,)
    extra = {"residual": rng.integers(-32768, 32768, shape).astype(np.int16), "lo": -32768, "hi": 32767}
    check_bconv(isa, x, w, (stride, stride), (1, 1), rng, splits=(0, 13, 96), **extra)


@pytest.mark.parametrize(("x_bit", "w_bit"), itertools.product([False, True], repeat=2))
def test_bconv_equal_and_different_bits(isa: str, x_bit: bool, w_bit: bool) -> None:
    """All bits equal, or all different: the extremes of every counter."""
    rng = np.random.default_rng(0)
    for c, k, (h, w) in itertools.product((1, 16, 32, 63, 64, 65, 128, 256, 512), (1, 3), ((1, 1), (4, 5), (9, 9))):
        x, weight = np.full((h, w, c), x_bit), np.full((70, k, k, c), w_bit)
        check_bconv(isa, x, weight, (1, 1), (k // 2, k // 2), rng)


@pytest.mark.parametrize("c", [28, 29, 57, 448, 455, 456, 2048, 3640, 3641, 7281, 7282, 20000])
def test_bconv_counter_overflow(isa: str, c: int) -> None:
    """Popcounts around what 8- and 16-bit counters hold: 9 * 29 > 255, 9 * 3641 > 32767, 9 * 7282 > 65535."""
    rng = np.random.default_rng(c)
    x = np.zeros((3, 3, c), np.bool_)
    w = np.ones((70 if c == 7282 else 9, 3, 3, c), np.bool_)
    w[1::2] = False
    check_bconv(isa, x, w, (1, 1), (1, 1), rng, splits=(0, 4))
    check_bconv(isa, x, w, (1, 1), (0, 0), rng)


@pytest.mark.parametrize("c", [5, 16, 64, 100, 128])
@pytest.mark.parametrize("residual", [None, "own", "in place", "wide", "far"])
@pytest.mark.parametrize("limits", [(-32768, 32767), (-16384, 16384), (-3, 9000), (100, 200), (-300, -5), (0, 0)])
def test_bconv_epilogue(isa: str, c: int, residual: str | None, limits: Pair) -> None:
    """Residuals of both widths, also those whose sum with q leaves 16 bits, and every kind of clamp."""
    rng = np.random.default_rng(c)
    x, w = rng.random((5, 6, c)) < 0.5, rng.random((c + 3, 3, 3, c)) < 0.5
    extra: dict[str, Any] = {"lo": limits[0], "hi": limits[1]}
    shape = (5, 6, c + 3)
    if residual in ("own", "in place"):
        extra["residual"] = rng.integers(-16384, 16385, shape).astype(np.int16)
    if residual == "far":
        extra["residual"] = rng.choice(np.array([-32768, -32767, 0, 32767], np.int16), shape)
    if residual == "wide":
        extra["residual32"] = rng.integers(-(2**20), 2**20, shape).astype(np.int32)
        extra["residual32"][0] = rng.integers(-(2**30), 2**30, shape[1:])
    for split, wanted in ((0, ["out", "bits"]), (7, ["out"]), (1, ["bits"])):
        extra["wanted"] = ["out"] if residual == "in place" else wanted
        extra["in_place"] = residual == "in place"
        check_bconv(isa, x, w, (1, 1), (1, 1), np.random.default_rng(7), splits=(split,), **extra)


def slopes(rng: Rng, channels: int) -> np.ndarray:
    """Of prelu, in steps of 2^-14: the usual ones, and the ends of what 16 bits hold."""
    ends = np.resize([4096, -32768, 32767, 0, 16384, -1], channels)
    return np.where(rng.random(channels) < 0.5, ends, rng.integers(-32768, 32768, channels)).astype(np.int16)


@pytest.mark.parametrize("c", [5, 16, 64, 100, 128])
@pytest.mark.parametrize("residual", [None, "own", "wide"])
def test_bconv_prelu(isa: str, c: int, residual: str | None) -> None:
    rng = np.random.default_rng(c)
    x, w = rng.random((5, 6, c)) < 0.5, rng.random((c + 3, 3, 3, c)) < 0.5
    shape = (5, 6, c + 3)
    extra: dict[str, Any] = {"slope": slopes(rng, c + 3)}
    if residual == "own":
        extra["residual"] = rng.integers(-32768, 32768, shape).astype(np.int16)
    if residual == "wide":
        extra["residual32"] = rng.integers(-(2**20), 2**20, shape).astype(np.int32)
    for split, wanted in ((0, ["out", "bits"]), (7, ["out"]), (1, ["bits"])):
        check_bconv(isa, x, w, (1, 1), (1, 1), rng, splits=(split,), wanted=wanted, **extra)


@pytest.mark.parametrize("c", [1, 16, 70])
def test_prelu_everywhere(isa: str, c: int) -> None:
    """Every value of 16 bits with every kind of slope, and the other kernels' epilogues."""
    rng = np.random.default_rng(c)
    x = np.resize(np.arange(-32768, 32768), (1 << 16, 1, c)).astype(np.int16)
    slope = slopes(rng, c)
    expect(x.astype(np.int64), run(isa, "eltwise", x, slope=slope, split=4099), c, slope=slope)
    x = rng.integers(-32768, 32768, (6, 5, c)).astype(np.int16)
    windows, _ = taps(x, (2, 2), (2, 2), (0, 0))
    geometry: dict[str, Any] = {"window": (2, 2), "stride": (2, 2)}
    expect(windows.max(axis=(2, 3)), run(isa, "maxpool", x, slope=slope, **geometry), c, slope=slope)
    weight = limited(rng, (c + 2, 3, 3, c), 32768)
    constants = conv_constants(rng, weight, 32768)
    q = (dots(x, weight, (1, 1), (1, 1)) + constants["offset"]) >> constants["shift"]
    slope = slopes(rng, c + 2)
    got = run(isa, "conv_i16", x, weight=weight, pad=(1, 1), slope=slope, split=7, **constants)
    expect(q, got, c, slope=slope)


def conv_constants(rng: Rng, weight: np.ndarray, most: int) -> dict[str, np.ndarray]:
    out_c = len(weight)
    size = np.abs(weight.reshape(out_c, -1).astype(np.int64)).sum(axis=1) * most
    shift = np.clip(np.round(np.log2(size + 1) - 15), 0, 31).astype(np.int64)
    room = 2**31 - 1 - size - size // 128 - 65536
    offset = np.clip(rng.integers(-(2**22), 2**22, out_c), -room, room)
    return {"shift": shift.astype(np.int32), "offset": offset.astype(np.int32)}


def limited(rng: Rng, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Random int16 weights, as large as 32-bit sums with inputs up to `most` allow."""
    taps_ = int(np.prod(shape[1:]))
    limit = max(1, min(32767, int(0.98 * (2**31 - 2**24) / (most * taps_))))
    weight = rng.integers(-limit, limit + 1, shape)
    if limit == 32767:
        weight.reshape(-1)[-1] = -32768
    return weight.astype(np.int16)


@pytest.mark.parametrize("c", [1, 3, 4, 7])
def test_conv_u8(isa: str, c: int) -> None:
    """The stem: zero points, borders, any geometry."""
    rng = np.random.default_rng(c)
    for i, ((h, w), k, s, p) in enumerate(
        itertools.product([*MAPS, (15, 14), (33, 30)], (1, 3, 5, 7), (1, 2), (0, 1, 3))
    ):
        if p >= k or h + 2 * p < k or w + 2 * p < k:
            continue
        out_c, unit = (1, 8, 15, 16, 17, 64, 70)[i % 7], (1, 1, 256)[i % 3]
        check_conv_u8(isa, rng, (h, w, c), out_c, (k, k), (s, s), (p, p), unit=unit, split=(0, 5)[i % 2])


@pytest.mark.parametrize(("size", "k", "s", "p", "out_c"), [(224, 7, 2, 3, 64), (32, 3, 1, 1, 16), (64, 7, 2, 3, 64)])
def test_conv_u8_of_the_networks(isa: str, size: int, k: int, s: int, p: int, out_c: int) -> None:
    rng = np.random.default_rng(0)
    for unit, pixels in itertools.product((1, 256), ((0, 255), (0, 0), (255, 255))):
        check_conv_u8(isa, rng, (size, size, 3), out_c, (k, k), (s, s), (p, p), unit, pixels, lo=-20000, hi=20000)


WINDOWS = [((7, 7), (2, 2)), ((5, 5), (2, 2)), ((4, 4), (1, 1)), ((6, 3), (1, 1)), ((3, 8), (1, 2)), ((8, 7), (3, 2))]


@pytest.mark.parametrize("c", [1, 2, 3, 4])
@pytest.mark.parametrize(("k", "s"), WINDOWS)
def test_conv_u8_of_8_bits(isa: str, c: int, k: Pair, s: Pair) -> None:
    """Windows that a table may take apart: every width of a row and every place to start in it, and the extremes."""
    rng = np.random.default_rng(c)
    for w in range(k[1], 2 * k[1] + 8):
        p, split = (k[0] // 2, w % 3), (0, 1, 5, 23, 30)[w % 5]
        extreme = (-128, 127) if w % 2 else None
        check_conv_u8(isa, rng, (k[0] + w % 3, w, c), (1, 17, 40)[w % 3], k, s, p, 256, extreme=extreme, split=split)


def check_conv_u8(
    isa: str,
    rng: Rng,
    shape: tuple[int, int, int],
    out_c: int,
    k: Pair,
    s: Pair,
    p: Pair,
    unit: int = 1,
    pixels: Pair = (0, 255),
    extreme: Pair | None = None,
    **e: Any,
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
    zero = np.floor(mean.astype(np.float64) * 65280 + 0.5).astype(np.int64)
    _, inside = taps(x, k, s, p)
    per_tap = weight.astype(np.int64) @ zero
    zeros = np.tensordot(inside.astype(np.int64), per_tap, axes=([2, 3], [1, 2]))
    y = dots(x, weight, s, p) - ((zeros + 128) >> 8)
    q = (y + constants["offset"]) >> constants["shift"]
    got = run(isa, "conv_u8", x, weight=weight, stride=s, pad=p, mean=mean.tolist(), **constants, **e)
    expect(q, got, (shape, out_c, k, s, p), **e)


@pytest.mark.parametrize("c", [1, 3, 16, 33, 64])
def test_conv_i16(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for i, ((h, w), k, s, p) in enumerate(itertools.product(MAPS, (1, 3), (1, 2), (0, 1))):
        if p >= k or h + 2 * p < k or w + 2 * p < k:
            continue
        x = rng.integers(-32768, 32768, (h, w, c)).astype(np.int16)
        out_c = (1, 15, 16, 17, 130)[i % 5]
        check_conv_i16(isa, rng, x, out_c, k, s, p, i)
        check_conv_i16(isa, rng, x, out_c, k, s, p, i, narrow=True)


@pytest.mark.parametrize(("c", "size"), [(64, 56), (128, 28), (256, 14)])
def test_conv_i16_of_the_networks(isa: str, c: int, size: int) -> None:
    rng = np.random.default_rng(c)
    check_conv_i16(isa, rng, rng.integers(-32768, 32768, (size, size, c)).astype(np.int16), 2 * c, 1, 2, 0, 0)
    for value in (-32768, 32767):
        check_conv_i16(isa, rng, np.full((size, size, c), value, np.int16), 2 * c, 1, 2, 0, 0, narrow=value > 0)
    check_conv_i16(isa, rng, rng.integers(-32768, 32768, (size, size, c)).astype(np.int16), 2 * c, 1, 2, 0, 1, True)


def check_conv_i16(
    isa: str, rng: Rng, x: np.ndarray, out_c: int, k: int, s: int, p: int, i: int, narrow: bool = False
) -> None:
    """`narrow` weights have 8 bits, some of them their ends."""
    weight = limited(rng, (out_c, k, k, x.shape[2]), 32768)
    if narrow:
        most = min(127, int(np.abs(weight.astype(np.int32)).max()))
        least = -128 if most == 127 else -most
        weight = np.where(rng.random(weight.shape) < 0.2, least, rng.integers(least, most + 1, weight.shape))
        weight = weight.astype(np.int16)
    constants = conv_constants(rng, weight, 32768)
    q = (dots(x, weight, (s, s), (p, p)) + constants["offset"]) >> constants["shift"]
    call: dict[str, Any] = {"weight": weight, "stride": (s, s), "pad": (p, p), "split": (0, 3)[i % 2], **constants}
    expect(q, run(isa, "conv_i16", x, wanted=["out32"], **call), (x.shape, out_c, k, s, p))
    extra = {"residual": rng.integers(-16384, 16385, q.shape).astype(np.int16), "lo": -16384, "hi": 16384}
    expect(q, run(isa, "conv_i16", x, **call, **extra), (x.shape, out_c, k, s, p), **extra)


@pytest.mark.parametrize(("features", "out_c"), [(1, 1), (3, 5), (16, 4), (64, 10), (100, 17), (512, 1000), (8192, 10)])
def test_linear(isa: str, features: int, out_c: int) -> None:
    """Sums of 64 bits, the rounding of halves and of the conversion to float."""
    rng = np.random.default_rng(features)
    for x_bits, w_bits in ((16, 16), (12, 9), (1, 2)):
        x = rng.integers(-(1 << x_bits) // 2, (1 << x_bits) // 2, (1, 1, features)).astype(np.int16)
        weight = rng.integers(-(1 << w_bits) // 2, (1 << w_bits) // 2, (out_c, features)).astype(np.int16)
        if x_bits == 16:
            x[:], weight[0] = -32768, -32768  # the largest sum there is
        total = weight.astype(np.int64) @ x.reshape(-1).astype(np.int64)
        most = 32768 * np.abs(weight.astype(np.int64)).sum(axis=1)
        shift = np.maximum(0, np.ceil(np.log2(most + 1)).astype(np.int64) - 29)
        shift[::3] = np.minimum(47, shift[::3] + 3)
        offset = rng.integers(-(2**30), 2**30, out_c)
        rounding = np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
        q = ((total + rounding) >> shift) + offset
        scale = np.float32(2.0**-20)
        got = run(
            isa, "linear", x, weight=weight, shift=shift.astype(np.int32), offset=offset.astype(np.int32),
            logit_scale=float(scale), wanted=["logits"], split=x_bits % 2,
        )  # fmt: skip
        np.testing.assert_array_equal(got["logits"].reshape(-1), q.astype(np.float32) * scale)


@pytest.mark.parametrize("c", [1, 3, 8, 16, 64, 70])
def test_pools(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product([*MAPS, (112, 10)], (1, 2, 3, 7), (1, 2), (0, 1)):
        if 2 * p > k or h + 2 * p < k or w + 2 * p < k:
            continue
        x = rng.integers(-32768, 32768, (h, w, c)).astype(np.int16)
        geometry: dict[str, Any] = {"window": (k, k), "stride": (s, s), "pad": (p, p), "split": 3}
        windows, _ = taps(x, (k, k), (s, s), (p, p), fill=-(1 << 20))
        limits = {"lo": -16384, "hi": 20000}
        expect(windows.max(axis=(2, 3)), run(isa, "maxpool", x, **geometry, **limits), (h, w, k, s, p), **limits)
        if p == 0:
            mult = rng.integers(-32768, 32768, c)
            shift = np.full(c, 16 + int(np.log2(k * k)))
            shift[0] = 40
            offset = rng.integers(-(2**31), 2**31, c)
            q = (mult * windows.sum(axis=(2, 3)) + offset) >> shift
            constants = {
                "scale": mult.astype(np.int16), "shift": shift.astype(np.int32), "offset": offset.astype(np.int32)
            }  # fmt: skip
            expect(q, run(isa, "avgpool", x, **geometry, **constants), (h, w, k, s, p))


@pytest.mark.parametrize("c", [1, 16, 64, 70])
def test_channel_pad_and_eltwise(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    x = rng.integers(-32768, 32768, (3, 4, c)).astype(np.int16)
    padded = np.concatenate([np.zeros((3, 4, 2)), x, np.zeros((3, 4, 5))], axis=2).astype(np.int64)
    extra: dict[str, Any] = {"residual": rng.integers(-32768, 32768, padded.shape).astype(np.int16), "lo": -9, "hi": 99}
    expect(padded, run(isa, "channel_pad", x, channels=(2, 5), split=5, **extra), c, **extra)
    wide = {"residual32": rng.integers(-(2**30), 2**30, x.shape).astype(np.int32), "lo": -16384, "hi": 16384}
    expect(x.astype(np.int64), run(isa, "eltwise", x, split=5, **wide), c, **wide)
