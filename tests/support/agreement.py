"""Whether engine and text agree on a whole model: integer files to the bit, float files as near as sums of f32 come."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ovsw import Engine, numerics
from ovsw import format as bnn

from support.evaluator import evaluate

NEAR = 1e-5


def outputs(found: Any) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else (found,)


def check_integer(model: bnn.Model, images: np.ndarray, isas: Iterable[str]) -> None:
    """The engine gives the bits of the simulation."""
    expected = outputs(numerics.simulate(model, images))
    data = bnn.to_bytes(model)
    for isa in isas:
        found = outputs(Engine(data, isa=isa).run(images))
        assert [v.shape for v in found] == [v.shape for v in expected], isa
        for i, (a, b) in enumerate(zip(found, expected)):
            assert a.tobytes() == b.tobytes(), f"{isa}: output {i} is {a}, expected {b}"


def check_float(model: bnn.Model, image: np.ndarray, isas: Iterable[str]) -> bool:
    """The engine gives what the evaluator computes, or a sign hangs on a rounding error: then False."""
    evaluation = evaluate(model, image)
    if evaluation.margin < NEAR:
        return False
    data = bnn.to_bytes(model)
    for isa in isas:
        with warnings.catch_warnings():  # of values that no pixels have
            warnings.simplefilter("ignore")
            found = outputs(Engine(data, isa=isa).run(image))
        assert len(found) == len(model.outputs)
        for i, (a, b) in enumerate(zip(found, outputs(evaluation.outputs))):
            assert a.shape == b.shape, isa
            error = np.abs(a - b).max() / max(1.0, np.abs(b).max())
            assert error <= NEAR, f"{isa}: output {i} is off by {error}: {a}, expected {b}"
    return True
