"""Random networks over the whole list of nodes, through all passes: torch against the engine in float, the simulation
against the engine in integers, on every kernel table of this CPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from ovsw import Engine, cpu, numerics
from ovsw import format as bnn
from ovsw.export.passes import build
from ovsw.export.passes.scales import NotIntegerError

from support.interpret import interpret
from support.random_ir import random_graph

FEW, MANY = 150, 2000
UNSTABLE = 1e-3  # a network whose results jump by this much with the last bits of its image has a value next to a sign


def outputs(found: object) -> list[np.ndarray]:
    parts = found if isinstance(found, tuple) else (found,)
    return [np.asarray(part).reshape(len(part), -1) for part in parts]


def check(seed: int) -> tuple[bool, bool]:
    """Whether the network was stable enough to be compared, and whether it has an integer file."""
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    c, h, w = graph.input_shape
    pixels = rng.integers(0, 256, (2, h, w, c), np.uint8)
    mean, std = np.full(c, 0.5, np.float32), np.full(c, 0.25, np.float32)
    images = np.ascontiguousarray(((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2), np.float32)
    expected = [y.reshape(len(images), -1) for y in interpret(graph, images.astype(np.float64))]
    near = interpret(graph, images.astype(np.float64) * (1 + 1e-6))
    stable = all(
        np.abs(a - b.reshape(a.shape)).max() < UNSTABLE * max(1, np.abs(a).max()) for a, b in zip(expected, near)
    )
    model = build(graph, mean, std, {}).model
    data = bnn.to_bytes(model)
    for isa in cpu.supported_isas():
        for got, wanted in zip(outputs(Engine(data, isa=isa).run(images)), expected):
            error = np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max())
            assert error < 1e-4 or not stable, f"seed {seed}, {isa}: off by {error:.2g}"
    try:
        built = build(graph, mean, std, {}, "integer", calibration=images)
    except NotIntegerError:
        return stable, False
    data = bnn.to_bytes(built.model)
    simulated = outputs(numerics.simulate(built.model, pixels))
    for isa in cpu.supported_isas():
        for threads in (1, 2):
            for got, wanted in zip(outputs(Engine(data, isa=isa, threads=threads).run(pixels)), simulated):
                assert got.tobytes() == wanted.astype(np.float32).tobytes(), f"seed {seed}, {isa}: other bits"
    return stable, True


def check_all(seeds: range) -> None:
    results = np.array([check(seed) for seed in seeds])
    stable, integer = results.mean(axis=0)
    assert stable > 0.6, f"only {stable:.0%} of the networks could be compared"
    assert integer > 0.9, f"only {integer:.0%} of the networks have an integer file"


@pytest.mark.parametrize("part", range(5))
def test_random_networks(part: int) -> None:
    check_all(range(FEW * part // 5, FEW * (part + 1) // 5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_networks(part: int) -> None:
    check_all(range(FEW + MANY * part // 20, FEW + MANY * (part + 1) // 20))
