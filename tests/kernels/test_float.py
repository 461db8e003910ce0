"""Every kernel of every table against naive references, over sizes below, at and above each tile and word."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ovsw import _testing

from support.ops import run_op

CHANNELS = [*range(1, 131)]
WORD_CHANNELS = [1, 2, 3, 8, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 130]
MAPS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 4), (5, 7), (7, 5), (8, 8), (9, 9)]


def kernel(isa: str, op: str, x: np.ndarray, **changes: Any) -> tuple[Any, Any]:
    """Runs one kernel; `x` is (h, w, c): booleans for bconv, else float32. Gives back the map and its bits."""
    e = {key: changes.pop(key, None) for key in ("scale", "offset", "slope", "act", "lo", "hi")}
    dtypes = {"scale": "f64", "offset": "f64", "slope": "f32"}
    constants = {key: (e[key], dtype) for key, dtype in dtypes.items() if e[key] is not None}
    if e["act"] != "prelu":
        constants.pop("slope", None)
    changes.update(act=e["act"] or "none", clamp=(e["lo"] or 0.0, e["hi"] or 0.0))
    result = run_op(isa, "float", op, x, constants=constants, **{"out": "f32", **changes})
    return result.get("out"), result.get("bits")


def epilogue(core: np.ndarray, **e: Any) -> np.ndarray:
    """What the kernels promise: in double, rounded once, then the activation."""
    z = core.astype(np.float64)
    if e.get("scale") is not None:
        z = z * e["scale"] + e["offset"]
    if e.get("residual") is not None:
        z = z + e["residual"]
    f = z.astype(np.float32)
    if e.get("act") == "clamp":
        f = np.clip(f, np.float32(e["lo"]), np.float32(e["hi"]))
    if e.get("act") == "prelu":
        f = np.where(f >= 0, f, f * e["slope"].astype(np.float32))
    return f


def signs(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1, -1).astype(np.int8)


def dots(x: np.ndarray, w: np.ndarray, stride: tuple[int, int], pad: tuple[int, int]) -> np.ndarray:
    return _testing.reference_bconv(signs(x), signs(w), list(stride), list(pad))


def check_bconv(isa: str, x: np.ndarray, w: np.ndarray, stride: tuple[int, int], pad: tuple[int, int]) -> None:
    """The raw dots, and their bits."""
    expected = dots(x, w, stride, pad)
    out, bits = kernel(isa, "bconv", x, weight=w, stride=stride, pad=pad)
    label = f"x {x.shape}, w {w.shape}, stride {stride}, pad {pad}"
    np.testing.assert_array_equal(out, expected.astype(np.float32), err_msg=label)
    np.testing.assert_array_equal(bits, expected >= 0, err_msg=label)


def test_reference_against_numpy() -> None:
    """The oracle itself, on a case small enough to write out."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 2, shape) == 1 for shape in ((4, 5, 3), (2, 3, 3, 3)))
    padded = np.zeros((6, 7, 3), np.int64)
    padded[1:5, 1:6] = signs(x)
    out = dots(x, w, (2, 1), (1, 1))
    for y, col, c in np.ndindex(2, 5, 2):
        assert out[y, col, c] == (padded[2 * y : 2 * y + 3, col : col + 3] * signs(w[c]).astype(np.int64)).sum()


@pytest.mark.parametrize("k", [1, 3, 5])
def test_bconv_channels(isa: str, k: int) -> None:
    """Every channel count up to 130, as input and as output."""
    rng = np.random.default_rng(k)
    for i, c in enumerate(CHANNELS):
        h, w = MAPS[i % len(MAPS)]
        stride, pad = ((1, 1), (2, 2), (1, 2))[i % 3], (k // 2, k // 2)
        out_c = CHANNELS[(7 * i) % len(CHANNELS)]
        check_bconv(isa, rng.random((h, w, c)) < 0.5, rng.random((out_c, k, k, c)) < 0.5, stride, pad)


@pytest.mark.parametrize("c", WORD_CHANNELS)
def test_bconv_geometry(isa: str, c: int) -> None:
    """Every kernel, stride, padding and map size, for channel counts around the word."""
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS, (1, 3, 5), (1, 2), (0, 1)):
        if p < k and h + 2 * p >= k and w + 2 * p >= k:
            check_bconv(isa, rng.random((h, w, c)) < 0.5, rng.random((9, k, k, c)) < 0.5, (s, s), (p, p))


def test_bconv_uneven_kernels(isa: str) -> None:
    rng = np.random.default_rng(0)
    for (kh, kw), (sh, sw), (ph, pw) in itertools.product(
        [(1, 3), (3, 1), (2, 2), (4, 3)], [(1, 2), (3, 1)], [(0, 0), (0, 1), (1, 0)]
    ):
        if ph < kh and pw < kw:
            check_bconv(isa, rng.random((6, 7, 40)) < 0.5, rng.random((5, kh, kw, 40)) < 0.5, (sh, sw), (ph, pw))


@pytest.mark.parametrize(("x_bit", "w_bit"), itertools.product([False, True], repeat=2))
@pytest.mark.parametrize("c", [1, 16, 32, 63, 64, 65, 128, 130])
def test_bconv_equal_and_different_bits(isa: str, c: int, x_bit: bool, w_bit: bool) -> None:
    """All bits equal, or all different: the extremes of every counter."""
    for k, (h, w) in itertools.product((1, 3, 5), ((1, 1), (4, 5), (9, 9))):
        check_bconv(isa, np.full((h, w, c), x_bit), np.full((10, k, k, c), w_bit), (1, 1), (k // 2, k // 2))


@pytest.mark.parametrize("c", [28, 29, 57, 2048, 3640, 3641, 7281, 7282, 8192, 20000])
def test_bconv_counter_overflow(isa: str, c: int) -> None:
    """Popcounts just below and above 8- and 16-bit counters: 9 * 29 > 255, 9 * 3641 > 32767, 9 * 7282 > 65535."""
    x = np.zeros((3, 3, c), np.bool_)
    w = np.ones((9, 3, 3, c), np.bool_)
    w[1::2] = False
    check_bconv(isa, x, w, (1, 1), (1, 1))
    check_bconv(isa, x, w, (1, 1), (0, 0))


@pytest.mark.parametrize("c", [5, 16, 64, 100])
@pytest.mark.parametrize("act", ["none", "clamp", "prelu"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("residual", [None, "own", "in place"])
def test_bconv_epilogue(isa: str, c: int, act: str, affine: bool, residual: str | None) -> None:
    """The fused block to the last bit: border, scale, offset, residual, activation, store, binarize."""
    rng = np.random.default_rng(c)
    x, w = rng.random((5, 6, c)) < 0.5, rng.random((c + 3, 3, 3, c)) < 0.5
    core = dots(x, w, (1, 1), (1, 1))
    e: dict[str, Any] = {"act": act, "lo": -1.0, "hi": 1.0, "slope": rng.normal(size=c + 3)}
    if affine:
        e["scale"], e["offset"] = rng.normal(size=c + 3) / np.sqrt(c), rng.normal(size=c + 3)
        e["scale"][0], e["offset"][1], e["scale"][2:4] = 0.0, 0.0, 1e-8
    if residual:
        e["residual"] = rng.uniform(-1, 1, core.shape).astype(np.float32)
    expected = epilogue(core, **e)
    for split in (0, 1, 7):
        out, bits = kernel(isa, "bconv", x, weight=w, pad=(1, 1), in_place=residual == "in place", split=split, **e)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(bits, expected >= 0)
    only_bits = kernel(isa, "bconv", x, weight=w, pad=(1, 1), out=None, **e)
    assert only_bits[0] is None
    np.testing.assert_array_equal(only_bits[1], expected >= 0)
    only_map = kernel(isa, "bconv", x, weight=w, pad=(1, 1), bits=False, **e)
    assert only_map[1] is None
    np.testing.assert_array_equal(only_map[0], expected)


def test_sign_of_zero_is_plus(isa: str) -> None:
    """0 and -0.0 are +1; the smallest negative number is -1."""
    x = np.array([0.0, -0.0, np.nextafter(np.float32(0), np.float32(-1)), 1e-45], np.float32).reshape(1, 1, 4)
    assert kernel(isa, "eltwise", x)[1].tolist() == [[[True, True, False, True]]]


@pytest.mark.parametrize("c", [1, 3, 5, 16, 33])
def test_conv(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS + [(15, 14)], (1, 3, 7), (1, 2), (0, 1, 3)):
        if p >= k or h + 2 * p < k or w + 2 * p < k:
            continue
        out_c = (1, 15, 16, 17, 64)[(h + k + s) % 5]
        x = rng.normal(size=(h, w, c)).astype(np.float32)
        weight = rng.normal(size=(out_c, k, k, c)).astype(np.float32)
        exact = _testing.reference_conv(x, weight, [s, s], [p, p])
        terms = _testing.reference_conv(np.abs(x), np.abs(weight), [s, s], [p, p])
        out, _ = kernel(isa, "conv", x, weight=weight, stride=(s, s), pad=(p, p))
        assert np.all(np.abs(out - exact) <= 4e-7 * terms + 1e-30), (h, w, k, s, p)
        for split in (1, 5):
            again, _ = kernel(isa, "conv", x, weight=weight, stride=(s, s), pad=(p, p), split=split)
            np.testing.assert_array_equal(again, out)


def test_conv_is_the_same_on_every_table() -> None:
    """Contraction is off and the order of sums is fixed: the same bytes whatever the compiler vectorised."""
    from support import TABLES

    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 11, 21)).astype(np.float32)
    weight = rng.normal(size=(37, 3, 3, 21)).astype(np.float32)
    e = {"scale": rng.normal(size=37), "offset": rng.normal(size=37), "act": "prelu", "slope": rng.normal(size=37)}
    results = [kernel(isa, "conv", x, weight=weight, pad=(1, 1), **e)[0].tobytes() for isa in TABLES]
    assert set(results) == {results[0]}


@pytest.mark.parametrize("c", [1, 3, 16, 64, 70])
def test_pools(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS, (1, 2, 3), (1, 2), (0, 1)):
        if 2 * p > k or h + 2 * p < k or w + 2 * p < k:
            continue
        x = rng.normal(size=(h, w, c)).astype(np.float32)
        padded = np.full((h + 2 * p, w + 2 * p, c), -np.inf)
        padded[p : p + h, p : p + w] = x
        windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(0, 1))[::s, ::s]
        geometry: dict[str, Any] = {"window": (k, k), "stride": (s, s), "pad": (p, p), "split": 3}
        out, bits = kernel(isa, "maxpool", x, **geometry)
        np.testing.assert_array_equal(out, windows.max(axis=(-2, -1)))
        np.testing.assert_array_equal(bits, windows.max(axis=(-2, -1)) >= 0)
        if p == 0:
            mean, _ = kernel(isa, "avgpool", x, **geometry)
            np.testing.assert_allclose(mean, windows.mean(axis=(-2, -1)), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("c", [1, 16, 64, 70])
def test_channel_pad_and_eltwise(isa: str, c: int) -> None:
    rng = np.random.default_rng(c)
    x = rng.normal(size=(3, 4, c)).astype(np.float32)
    padded = np.concatenate([np.zeros((3, 4, 2)), x, np.zeros((3, 4, 5))], axis=2)
    e = {"residual": rng.normal(size=padded.shape).astype(np.float32), "act": "clamp", "lo": 0.0, "hi": float("inf")}
    out, _ = kernel(isa, "channel_pad", x, channels=(2, 5), split=5, **e)
    np.testing.assert_array_equal(out, epilogue(padded, **e))
    scaled = {"scale": rng.normal(size=c), "offset": rng.normal(size=c), "residual": x}
    out, bits = kernel(isa, "eltwise", x, **scaled)
    np.testing.assert_array_equal(out, epilogue(x, **scaled))
    np.testing.assert_array_equal(bits, out >= 0)


def test_thread_pool_visits_everything_once_per_job() -> None:
    for threads, parts in itertools.product((1, 2, 3, 8), (1, 2, 7, 1000)):
        assert set(_testing.pool_visits(threads, parts, 50)) == {50}


def test_crc32_is_that_of_zlib() -> None:
    import zlib

    data = bytes(np.random.default_rng(0).integers(0, 256, 1000, np.uint8))
    for size in [*range(40), 999, 1000]:
        assert _testing.crc32(data[:size]) == zlib.crc32(data[:size])
