"""The training kernels without torch, so that sanitizers can look at them: tables and threads change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from support.native_unit import NativeUnit


@pytest.mark.parametrize("size", [(1, 16, 1), (3, 16, 8), (5, 32, 7), (9, 48, 16), (2, 16, 31)])
def test_units(isa: str, size: tuple[int, int, int]) -> None:
    """Images, channels, side: full packs and rests of every kind."""
    expected = NativeUnit(*size, threads=1, isa="portable").run()
    for threads in (1, 3):
        for got, first in zip(NativeUnit(*size, threads=threads, isa=isa).run(), expected):
            np.testing.assert_array_equal(got, first)


@pytest.mark.parametrize(("place", "size"), [(0, 0), (1, 8), (2, 24), (3, 0), (4, 0), (4, 1 << 20), (5, 3)])
def test_sizes_that_have_no_kernels(place: int, size: int) -> None:
    """Images, channels in and out, height, width, stride: each is looked at."""
    unit = NativeUnit()
    shape = list(unit.shape)
    shape[place] = size
    with pytest.raises(ValueError, match="no training kernels for a unit of these sizes"):
        unit.kernels.forward(tuple(shape), 1, (0,) * 5 + (0.0,), None, 0, (), (), ())
