"""What the pictures of experiments show, read back from their axes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ovsw.repro import figures
from ovsw.repro.results import Results


def test_landscape_lies_over_its_two_directions() -> None:
    """a from -1 to 1, b from -3 to 5, the loss from 10 to 20: each is where it belongs, in both pictures."""
    a, b = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-3, 5, 5), indexing="ij")
    loss = np.linspace(10, 20, 25).reshape(5, 5)
    run = SimpleNamespace(seed=7, landscape=np.stack([a.ravel(), b.ravel(), loss.ravel()], axis=1))
    results = Results({"title": "t", "about": "a", "seeds": [7]}, [SimpleNamespace(label="x", runs=[run])], {})  # type: ignore[list-item]
    figure = figures.KINDS["landscape"](results)
    surface, flat, bar = figure.axes
    assert surface.get_zlim() == pytest.approx((10, 20))
    assert (flat.get_xlim(), flat.get_ylim()) == (pytest.approx((-1, 1)), pytest.approx((-3, 5)))
    assert bar.get_ylim() == pytest.approx((10, 20))
    (filled,) = (c for c in flat.collections if hasattr(c, "levels"))
    assert (filled.zmin, filled.zmax) == (10, 20)
    assert surface.get_title() == "x, seed 7\nloss 10.00 to 20.00"
