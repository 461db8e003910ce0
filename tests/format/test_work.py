"""The work of an image, counted when a file is loaded: multiply-adds, taps of pools, exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn

from support.hungry import Net
from support.models import small_model


def pooled() -> Net:
    """No multiply-adds, but windows of 255 x 255."""
    return Net("float", (1, 700, 700)).window("avgpool", 1, 255, "hw")


def exponentials() -> Net:
    net = Net("float", (1, 400, 400))
    for _ in range(50):
        net.add("softmax", net.shape)
    return net


def convolved() -> Net:
    return Net("float", (2, 40, 30)).window("conv", 3, 5, "hw", padded=1)


CASES = {  # what it is, in multiply-adds
    "pool": (pooled, 446 * 446 * 255 * 255),
    "softmax": (exponentials, 50 * 400 * 400 * 16),
    "convolution": (convolved, 3 * 44 * 34 * 2 * 25),
    "copies": (lambda: Net("float", (8, 100, 100)).add("eltwise", (8, 100, 100)), 8 * 100 * 100),
}


@pytest.mark.parametrize("name", CASES)
def test_work_is_counted(name: str) -> None:
    make, work = CASES[name]
    data, _ = make().done()
    with pytest.raises(ValueError, match=r"takes .* billion multiply-adds .*raise it with work_limit \(--work-limit"):
        Engine(data, work_limit=work - 1)
    Engine(data, work_limit=work)


def test_by_default_minutes() -> None:
    """Sixty pools of 255 x 255 would take minutes; a run of them need not be tried."""
    net = Net("float", (1, 700, 700))
    for _ in range(80):
        net.last = 0
        net.window("avgpool", 1, 255, "hw")
    data, _ = net.done()
    with pytest.raises(
        ValueError, match=r"takes 1034\.\d+ billion multiply-adds \(op '' 12\.9\d+\), the limit is 1000;"
    ):
        Engine(data)
    Engine(data, work_limit=1 << 200)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_limits_that_are_none(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"work_limit is .*, expected a number of multiply-adds"):
        Engine(bnn.to_bytes(small_model()), work_limit=limit)


def test_a_limit_is_of_one_image() -> None:
    engine = Engine(bnn.to_bytes(small_model()), work_limit=1000)
    assert engine.run(np.zeros((5000, 1, 1, 1), np.float32)).shape[0] == 5000
