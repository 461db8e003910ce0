"""Float kernels of every table against naive references, over sizes below, at and above each tile and word."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

from ovsw import _testing

from support import TABLES
from support.ops import check_op, one_op, run_op

CHANNELS = [*range(1, 131)]
WORD_CHANNELS = [1, 2, 3, 8, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 130]
MAPS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 4), (5, 7), (7, 5), (8, 8), (9, 9)]


def check_bconv(x: np.ndarray, w: np.ndarray, stride: tuple[int, int], pad: tuple[int, int]) -> None:
    """The raw dots, and their bits."""
    check_op("float", "bconv", x, weight=w, stride=stride, pad=pad)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_bconv_channels(k: int) -> None:
    """Every channel count up to 130, as input and as output."""
    rng = np.random.default_rng(k)
    for i, c in enumerate(CHANNELS):
        stride, pad = ((1, 1), (2, 2), (1, 2))[i % 3], (k // 2, k // 2)
        out_c = CHANNELS[(7 * i) % len(CHANNELS)]
        x = rng.random((*MAPS[i % len(MAPS)], c)) < 0.5
        check_bconv(x, rng.random((out_c, k, k, c)) < 0.5, stride, pad)


@pytest.mark.parametrize("c", WORD_CHANNELS)
def test_bconv_geometry(c: int) -> None:
    """Every kernel, stride, padding and map size, for channel counts around the word; and all bits equal or not."""
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS, (1, 3, 5), (1, 2), (0, 1)):
        if p < k and h + 2 * p >= k and w + 2 * p >= k:
            check_bconv(rng.random((h, w, c)) < 0.5, rng.random((9, k, k, c)) < 0.5, (s, s), (p, p))
    uneven = itertools.product([(1, 3), (3, 1), (2, 2), (4, 3)], [(1, 2), (3, 1)], [(0, 0), (0, 1), (1, 0)])
    for window, stride, pad in uneven:
        if pad[0] < window[0] and pad[1] < window[1]:
            check_bconv(rng.random((6, 7, c)) < 0.5, rng.random((5, *window, c)) < 0.5, stride, pad)
    for k, x_bit, w_bit in itertools.product((1, 3, 5), (False, True), (False, True)):
        check_bconv(np.full((9, 9, c), x_bit), np.full((10, k, k, c), w_bit), (1, 1), (k // 2, k // 2))


def test_sign_of_zero_is_plus() -> None:
    """0 and -0.0 are +1; the smallest negative number is -1."""
    x = np.array([0.0, -0.0, np.nextafter(np.float32(0), np.float32(-1)), 1e-45], np.float32).reshape(1, 1, 4)
    for isa in TABLES:
        assert run_op(isa, *one_op("float", "eltwise", x))["bits"].tolist() == [[[True, True, False, True]]]


@pytest.mark.parametrize("c", [1, 3, 5, 16, 33])
def test_conv(c: int) -> None:
    """The order of sums is fixed and contraction is off: the same bytes whatever the compiler vectorised."""
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product([*MAPS, (15, 14)], (1, 3, 7), (1, 2), (0, 1, 3)):
        if p >= k or h + 2 * p < k or w + 2 * p < k:
            continue
        x = rng.normal(size=(h, w, c)).astype(np.float32)
        weight = rng.normal(size=((1, 15, 16, 17, 64)[(h + k + s) % 5], k, k, c)).astype(np.float32)
        check_op("float", "conv", x, weight=weight, stride=(s, s), pad=(p, p), splits=(0, 1, 5))


@pytest.mark.parametrize("c", [1, 3, 16, 64, 70])
def test_pools_and_channel_pad(c: int) -> None:
    rng = np.random.default_rng(c)
    for (h, w), k, s, p in itertools.product(MAPS, (1, 2, 3), (1, 2), (0, 1)):
        if 2 * p <= k and h + 2 * p >= k and w + 2 * p >= k:
            x = rng.normal(size=(h, w, c)).astype(np.float32)
            op: dict[str, Any] = {"window": (k, k), "stride": (s, s), "pad": (p, p), "splits": (3,)}
            check_op("float", "maxpool", x, **op)
            check_op("float", "avgpool", x, **op)
    x, residual = (rng.normal(size=(3, 4, n)).astype(np.float32) for n in (c, c + 7))
    op = {"residual": residual, "act": "clamp", "clamp": (0.0, float("inf"))}
    check_op("float", "channel_pad", x, channels=(2, 5), splits=(5,), **op)


def test_thread_pool_visits_everything_once_per_job() -> None:
    for threads, parts in itertools.product((1, 2, 3, 8), (1, 2, 7, 1000)):
        assert set(_testing.pool_visits(threads, parts, 50)) == {50}


def test_crc32_is_that_of_zlib() -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 1000, np.uint8))
    for size in [*range(40), 999, 1000]:
        assert _testing.crc32(data[:size]) == zlib.crc32(data[:size])
