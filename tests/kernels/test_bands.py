"""Convolutions over maps so large that their padded rows are copied in several bands: the same as without any."""

from __future__ import annotations

import numpy as np
import pytest

from support import TABLES
from support.ops import one_op, run_op

BAND = 2 << 20  # bytes of padded rows, as kernels/x86/padding.h has it

# kind, input (h, w, c), output channels, window, stride, pad; a padded row's bytes per pixel
CASES = {
    "pixels": ("u8", (900, 700, 3), 4, (3, 3), (1, 1), (1, 1), 6),
    "pixels, stride": ("u8", (900, 700, 3), 17, (7, 7), (2, 2), (3, 3), 6),
    "stride over a band": ("u8", (3000, 400, 1), 3, (3, 3), (2700, 1), (2, 1), 2),
    "stream": ("i16", (500, 80, 33), 5, (3, 5), (2, 1), (1, 2), 66),
    "one row to a band": ("i16", (6, 30_000, 20), 2, (3, 3), (1, 7), (1, 1), 40),
    "bits": ("bits", (800, 400, 64), 40, (3, 3), (1, 1), (1, 1), 8),
    "bits, up to 16 channels": ("bits", (700, 500, 70), 9, (3, 3), (1, 2), (1, 1), 9),
    "bits, several panels": ("bits", (500, 300, 130), 200, (1, 3), (2, 2), (0, 1), 17),
    "bits, wide patches that just pass a cache line": ("bits", (100, 100, 3648), 3, (3, 3), (3, 3), (1, 1), 456),
}


@pytest.mark.parametrize("case", CASES)
def test_bands(case: str) -> None:
    kind, shape, out_c, window, stride, pad, pixel = CASES[case]
    row = (shape[1] + 2 * pad[1]) * pixel
    assert (shape[0] + 2 * pad[0]) * row > BAND
    assert (window[0] * row > BAND) == (case == "one row to a band")
    rng = np.random.default_rng(7)
    weight_shape = (out_c, *window, shape[2])
    constants = {"offset": (rng.integers(-900, 900, out_c), "i32"), "shift": (np.full(out_c, 3), "u8")}
    if kind == "bits":
        x, weight = rng.random(shape) < 0.5, rng.random(weight_shape) < 0.5
        constants["scale"] = (rng.integers(1, 5, out_c), "i16")
    elif kind == "u8":
        x = rng.integers(0, 256, shape, np.uint8)
        weight = rng.integers(-300, 300, weight_shape).astype(np.int16)
    else:
        x = rng.integers(-32768, 32768, shape).astype(np.int16)
        weight = rng.integers(-30, 30, weight_shape).astype(np.int16)
    op = {"weight": weight, "constants": constants, "stride": stride, "pad": pad, "mean": (0.4,) * shape[2]}
    model, maps = one_op("integer", "bconv" if kind == "bits" else "conv", x, out="i16", **op)
    expected = run_op("portable", model, maps)
    for isa in TABLES:
        for split in (0, 12_345):
            found = run_op(isa, model, maps, split=split)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, f"{isa} {split} {name}")
