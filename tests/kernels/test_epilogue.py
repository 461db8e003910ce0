"""What may follow an integer convolution, in every combination and on every table, against plain numpy, bit for bit.

Thresholds, one slope or two, steps, residuals of both widths; and before them the window scale of binary convolutions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.ops import run_op

Rng = np.random.Generator
ACTS = ("none", "clamp", "prelu", "two slopes", "step")
RESIDUALS = (None, "int16", "int32")
SLOPES = (4096, -32768, 32767, 0, 16384, -16384, 1, -1)
COMBINATIONS = list(itertools.product(ACTS, (False, True), RESIDUALS))


@dataclass
class Layer:
    """One convolution; `x` is (h, w, c), booleans for a binary one, `weight` (c', kh, kw, c)."""

    x: np.ndarray
    weight: np.ndarray
    stride: int = 1
    pad: int = 0
    window: np.ndarray | None = None  # scale

    def patches(self, values: np.ndarray) -> np.ndarray:
        """(h', w', kh * kw * c) numbers, zeros outside."""
        sides = (self.pad, self.pad)
        padded = np.pad(values.astype(np.int64), (sides, sides, (0, 0)))
        view = np.lib.stride_tricks.sliding_window_view(padded, self.weight.shape[1:3], axis=(0, 1))
        chosen = np.moveaxis(view[:: self.stride, :: self.stride], 2, -1)
        return chosen.reshape(*chosen.shape[:2], -1)

    def sums(self, scale: np.ndarray) -> np.ndarray:
        """Scaled sums of products, with those of the window."""
        binary = self.x.dtype == np.bool_
        x, w = (np.where(v, 1, -1) if binary else v.astype(np.int64) for v in (self.x, self.weight))
        patches, rows = self.patches(x), w.reshape(len(w), -1)
        total: np.ndarray = (patches.astype(np.float64) @ rows.T.astype(np.float64)).astype(np.int64) * scale
        if self.window is not None:
            total += patches.sum(axis=2, keepdims=True) * self.window.astype(np.int64)
        return total


def ends(rng: Rng, channels: int, some: Any) -> np.ndarray:
    """Numbers of 16 bits, half of them out of `some`."""
    return np.where(rng.random(channels) < 0.5, rng.choice(some, channels), rng.integers(-32768, 32768, channels))


def check(
    isa: str, rng: Rng, layer: Layer, act: str, threshold: bool, residual: str | None, split: int, wanted: str = "both"
) -> None:
    """One layer with these parts; `wanted` is out, bits or both."""
    channels, k = len(layer.weight), layer.weight[0].size
    record: dict[str, Any] = {"stride": (layer.stride,) * 2, "pad": (layer.pad,) * 2}
    constants: dict[str, tuple[np.ndarray, str]] = {}
    scale, shift = np.ones(channels, np.int64), np.zeros(channels, np.int64)
    if layer.x.dtype == np.bool_:
        scale = rng.integers(0, min(32767, 2**30 // k) + 1, channels)
        both = scale if layer.window is None else np.stack([scale, layer.window])
        constants["scale"] = both, "i16"
    offset = rng.integers(-(2**20), 2**20, channels)
    sums = layer.sums(scale) + offset
    bits = np.ceil(np.log2(np.abs(sums).max(axis=(0, 1)) + 1))
    shift += np.clip(bits - rng.integers(14, 17, channels), 0, 31).astype(np.int64)
    u = sums >> shift
    constants |= {"offset": (offset, "i32"), "shift": (shift, "u8")}
    given = None
    if residual is not None:
        most = 32767 if residual == "int16" else 60000
        given = rng.integers(-most, most, u.shape).astype(residual)
        u = u + given
    lo, hi = (int(n) for n in rng.integers(-32768, 32768, 2))
    v = np.clip(u, -32768, 32767)
    if act == "clamp":
        lo, hi = min(lo, hi), max(lo, hi)
        v = np.clip(u, lo, hi)
    elif act == "step":
        v = np.where(u >= 0, hi, lo)
    elif act != "none":
        slope = np.stack([ends(rng, channels, SLOPES) for _ in range(2)])
        scaled = np.clip(((2 * v + 1) * np.where(v < 0, *slope[:, None, None])) >> 15, -32768, 32767)
        v = scaled if act == "two slopes" else np.where(v < 0, scaled, v)
        constants["slope"] = (slope if act == "two slopes" else slope[0]), "i16"
    least = np.zeros(channels, np.int64)
    if threshold and wanted != "out":
        near = v[rng.integers(v.shape[0]), rng.integers(v.shape[1])]  # so that equality occurs
        least = np.where(rng.random(channels) < 0.5, near, ends(rng, channels, (-32768, 32767, 0, 1)))
        constants["threshold"] = least, "i16"
    record |= {"act": "prelu" if "slope" in constants else act}
    if act in ("clamp", "step"):
        record["clamp"] = (lo, hi)
    kind = "bconv" if layer.x.dtype == np.bool_ else "conv"
    got = run_op(isa, "integer", kind, layer.x, weight=layer.weight, constants=constants, residual=given,
                 out=None if wanted == "bits" else "i16", bits=wanted != "out", split=split, **record)  # fmt: skip
    label = f"{layer.x.shape} by {layer.weight.shape}, {record}, threshold {threshold}, residual {residual}, {split=}"
    for name, expected in (("out", v), ("bits", v >= least)):
        if name in got:
            np.testing.assert_array_equal(got[name], expected, err_msg=f"{name} of {label}")


def binary(rng: Rng, h: int, w: int, c: int, out: int, k: int = 3, window: bool = False, **geometry: int) -> Layer:
    density = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], p=[0.05, 0.1, 0.7, 0.1, 0.05])
    most = min(32767, 2**30 // (k * k * c))
    scale = rng.integers(-most - (most == 32767), most + 1, out) if window else None
    return Layer(rng.random((h, w, c)) < density, rng.random((out, k, k, c)) < 0.5, window=scale, **geometry)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("act", "threshold", "residual"), COMBINATIONS)
def test_every_combination(isa: str, act: str, threshold: bool, residual: str | None, window: bool) -> None:
    rng = np.random.default_rng(COMBINATIONS.index((act, threshold, residual)))
    for c, wanted in zip((16, 32, 64, 70, 128), ("both", "out", "bits", "both", "both")):
        layer = binary(rng, 5, 7, c, c, window=window, pad=1)
        check(isa, rng, layer, act, threshold, residual, split=int(rng.integers(36)), wanted=wanted)
        wide = binary(rng, 4, 5, c, c + 3, k=1, window=window)
        check(isa, rng, wide, act, threshold, residual, split=0, wanted=wanted)


@pytest.mark.parametrize("part", range(4))
def test_every_number_of_channels(isa: str, part: int) -> None:
    """With maps of 1 to 40 pixels: every tail of a tile of pixels, of a vector of channels and of a patch."""
    rng = np.random.default_rng(part)
    for out, pixels in zip(range(1, 131), itertools.cycle(range(1, 41))):
        act, threshold, residual = COMBINATIONS[int(rng.integers(len(COMBINATIONS)))]
        h = int(rng.choice([n for n in range(1, pixels + 1) if pixels % n == 0]))
        c, k = int(rng.integers(1, 131)), int(rng.choice([1, 3, 5]))
        layer = binary(rng, h, pixels // h, c, out, k, window=part % 2 == 1, pad=k // 2)
        check(isa, rng, layer, act, threshold, residual, split=int(rng.integers(pixels + 1)))


@pytest.mark.parametrize(("act", "threshold", "residual"), COMBINATIONS)
def test_real_convolutions(isa: str, act: str, threshold: bool, residual: str | None) -> None:
    """On pixels and on the stream."""
    rng = np.random.default_rng(COMBINATIONS.index((act, threshold, residual)))
    for out, c in ((1, 3), (16, 3), (16, 16), (17, 5), (64, 3), (100, 8), (130, 1)):
        h, w, k = int(rng.integers(3, 7)), int(rng.integers(3, 9)), int(rng.choice([1, 3]))
        weight = rng.integers(-300, 301, (out, k, k, c)).astype(np.int16)
        for dtype in (np.uint8, np.int16):
            x = rng.integers(*((0, 256) if dtype == np.uint8 else (-3000, 3001)), (h, w, c)).astype(dtype)
            layer = Layer(x, weight, stride=int(rng.integers(1, 3)), pad=k // 2)
            check(isa, rng, layer, act, threshold, residual, split=int(rng.integers(12)))


@pytest.mark.parametrize("channels", [5, 16, 64])
def test_every_value_with_two_slopes(isa: str, channels: int) -> None:
    """A 1x1 convolution that hands on what it reads: all numbers of 16 bits by all kinds of slopes."""
    rng = np.random.default_rng(channels)
    x = np.repeat(np.arange(-32768, 32768, dtype=np.int16), channels).reshape(256, 256, channels)
    slope = np.stack([np.resize(SLOPES, channels), np.resize(np.roll(SLOPES, 3), channels)])
    slope[:, channels // 2 :] = rng.integers(-32768, 32768, (2, channels - channels // 2))
    least = rng.integers(-32768, 32768, channels)
    nothing = np.zeros(channels, np.int64)
    constants = {"offset": (nothing, "i32"), "shift": (nothing, "u8"), "slope": (slope, "i16")}
    weight = np.eye(channels, dtype=np.int16).reshape(channels, 1, 1, channels)
    got = run_op(isa, "integer", "conv", x, weight=weight, act="prelu", split=4099,
                 constants={**constants, "threshold": (least, "i16")})  # fmt: skip
    v = x.astype(np.int64)
    v = np.clip(((2 * v + 1) * np.where(v < 0, *slope[:, None, None])) >> 15, -32768, 32767)
    np.testing.assert_array_equal(got["out"], v)
    np.testing.assert_array_equal(got["bits"], v >= least)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_window_terms(isa: str, sign: int) -> None:
    """Patches of nothing but ones, near what 16-bit counts hold and above it, with all of a sum in the window."""
    for c, k in ((64, 3), (1310, 5), (3640, 3), (7290, 3)):
        size = k * k * c
        scale = np.minimum(32767, [0, (2**31 - 2) // size // 2, (2**31 - 2) // size - 1])
        room = np.minimum(32767, (2**31 - 2) // size - scale)
        window, x = sign * room, np.ones((2, 3, c), np.bool_)
        layer = Layer(x, np.ones((3, k, k, c), np.bool_), pad=k // 2, window=window)
        sums = layer.sums(scale)
        shift = np.full(3, 16)
        constants = {
            "scale": (np.stack([scale, window]), "i16"),
            "offset": (np.zeros(3), "i32"),
            "shift": (shift, "u8"),
        }
        got = run_op(isa, "integer", "bconv", x, weight=layer.weight, constants=constants, pad=(k // 2, k // 2))
        np.testing.assert_array_equal(got["out"], sums >> shift)
