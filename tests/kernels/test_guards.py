"""The pages around the buffers of kernel tests: whoever touches one is stopped, and told how far it went.

`support.ops.run_op` runs every op with each buffer at the end of such pages and again at their beginning.
"""

from __future__ import annotations

import pytest

from ovsw import _testing

SIZES = [64, 4096, 5056, 65536]


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_data_that_ends_at_a_page(size: int, write: bool) -> None:
    assert _testing.probe(size, 64, True, 0, write) == _testing.probe(size, 64, True, size - 1, write) == ""
    assert _testing.probe(size, 64, True, size, write) == "stopped at 0"
    assert _testing.probe(size, 64, True, size + 4095, write) == "stopped at 4095"


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("size", [1, *SIZES])
def test_data_that_begins_at_a_page(size: int, write: bool) -> None:
    assert _testing.probe(size, 64, False, 0, write) == _testing.probe(size, 64, False, size - 1, write) == ""
    assert _testing.probe(size, 64, False, -1, write) == "stopped at -1"
    assert _testing.probe(size, 64, False, -4096, write) == "stopped at -4096"


def test_what_lies_between_data_and_page_is_watched() -> None:
    """There is as little of it as the alignment allows; it can be read, but a change is seen."""
    assert _testing.probe(72, 8, True, 72, False) == "stopped at 0"
    assert _testing.probe(72, 64, True, 72, False) == ""
    assert _testing.probe(72, 64, True, 72, True) == "overwritten"
    assert _testing.probe(72, 64, True, 128, False) == "stopped at 56"
    assert _testing.probe(72, 64, True, -1, True) == "overwritten"
    assert _testing.probe(72, 64, False, 72, True) == "overwritten"
