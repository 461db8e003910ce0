"""Integer models: the simulation against the text, the engine against the simulation."""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine, numerics
from ovsw import format as bnn
from ovsw.bench.random_nets import random_resnet

from support.integers import SEEDS, random_model, small
from support.models import FIRST
from support.second_reading import naive


def test_simulation_is_the_naive_reading() -> None:
    kinds = set()
    spread = 0
    for seed in SEEDS:
        model, images = random_model(seed)
        found = numerics.simulate_values(model, images)
        for n, image in enumerate(images):
            expected = naive(model, image)
            for i in range(len(model.values)):
                assert found[i][n].tolist() == np.array(expected[i]).tolist(), (seed, i)
        assert numerics.simulate(model, images).tolist() == found[model.output].reshape(2, -1).tolist()
        kinds.update((op.kind, None if op.out is None else model.values[op.out].kind) for op in model.ops)
        kinds.update((op.kind, "prelu") for op in model.ops if op.act == "prelu")
        spread += any(len(np.unique(v)) > 20 for i, v in found.items() if i)
    assert {kind for kind, _ in kinds} == set(FIRST)
    assert ("conv", "i32") in kinds
    assert {kind for kind, what in kinds if what == "prelu"} == set(FIRST) - {"linear"}
    assert spread > len(SEEDS) // 3  # not all saturated


def test_engine_gives_the_bits_of_the_simulation(isa: str) -> None:
    for seed in SEEDS:
        model, images = random_model(seed)
        expected = numerics.simulate(model, images)
        data = bnn.to_bytes(model)
        for threads in (1, 2):
            logits = Engine(data, threads=threads, isa=isa).run(images)
            assert logits.tolist() == expected.tolist(), (seed, isa, threads)


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
