"""What the simulation of integer models takes for an image; `test_saved_graphs.py` has its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet

from support.integers import small


def test_images_of_the_wrong_kind() -> None:
    for images in (np.zeros((1, 6, 6, 3), np.uint8), np.zeros((1, 6, 6, 2)), np.zeros((6, 6, 2), np.uint8)):
        with pytest.raises(ValueError, match="expected uint8"):
            numerics.simulate(small(), images)
    with pytest.raises(bnn.FormatError, match="numerics is float"):
        numerics.simulate(random_resnet("cresnet20"), np.zeros((1, 32, 32, 3), np.uint8))


def test_no_images() -> None:
    assert numerics.simulate(small(), np.zeros((0, 6, 6, 2), np.uint8)).shape == (0, 4)


def test_pixels_of_normalised_values(isa: str) -> None:
    model = small()
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 6, 2), np.uint8)
    x = ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    assert (numerics.pixels(x, mean, std) == images).all()
    halves = (np.array([0.5, 1.5, 254.5, -3.0, 300.0]) / 255).reshape(1, 1, 1, 5)
    assert numerics.pixels(halves, np.zeros(1), np.ones(1)).ravel().tolist() == [0, 2, 254, 0, 255]
    wild = np.random.default_rng(3).normal(0, 3, (2, 2, 6, 6)).astype(np.float32)
    expected = numerics.simulate(model, numerics.pixels(wild, mean, std))
    assert Engine(bnn.to_bytes(model), isa=isa).run(wild).tolist() == expected.tolist()
