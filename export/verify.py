"""Proof before success: the packed models run in the engine and are compared with the source's reference.

The reference computes in float64, the engine in float32. A value so near to zero that rounding decides its sign changes
the logits of that image altogether, in a correct export too, and in networks of a million signs that is not rare. So
images are drawn until `count` of them agree; a wrong export agrees on none, a right one on almost all.

An integer file rounds more, so most images have such a value. There the engine has to give the bits of the simulation,
and how far both are from the reference is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovsw import format as bnn
from ovsw import numerics
from ovsw.engine import Engine
from ovsw.export.errors import ExportError, VerifyError
from ovsw.export.source import Source
from ovsw.networks import InputSpec

TOLERANCE = 1e-4  # of the largest logit, or of 1


class Candidate:
    """A model as the file that it may become, loaded by the engine. Raises ExportError if that refuses it."""

    def __init__(self, model: bnn.Model) -> None:
        self.model, self.data = model, bnn.to_bytes(model)
        try:
            if model.numerics == "integer":
                numerics.check(model)
            self.engine = Engine(self.data)
        except ValueError as e:
            raise ExportError(f"the engine refuses the result: {e}") from None


@dataclass
class Verification:
    """How many images agreed, how many were put aside as ties, and the largest difference among those that agreed."""

    images: int
    ties: int
    max_error: float


@dataclass
class IntegerVerification:
    """On how many images engine and simulation were equal and had PyTorch's top-1, and how far logits were off."""

    images: int
    same_top1: int
    max_difference: float
    mean_difference: float


def verify(source: Source, candidate: Candidate, count: int, seed: int = 0) -> Verification:
    """Compares a float model with the reference on random normalised images. Raises VerifyError."""
    rng = np.random.default_rng(seed)
    result = Verification(0, 0, 0.0)
    errors = []
    while result.images < count:
        x = rng.normal(size=(1, *source.input.shape)).astype(np.float32)
        expected = source.reference(x.astype(np.float64))[0]
        error = float(np.abs(candidate.engine.run(x)[0] - expected).max())
        errors.append(error)
        if error <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
            result.images += 1
            result.max_error = max(result.max_error, error)
        else:
            result.ties += 1
            if result.ties > max(3, count):
                shown = ", ".join(f"{e:.3g}" for e in errors)
                raise VerifyError(
                    f"the exported model differs from PyTorch on {result.ties} images (max error {shown})"
                )
    return result


def verify_integer(
    source: Source, spec: InputSpec, candidate: Candidate, count: int, seed: int = 0
) -> IntegerVerification:
    """Compares the engine with the simulation, and that with the reference, on random pixels. Raises VerifyError."""
    mean, std = (np.asarray(values, np.float32) for values in (spec.mean, spec.std))
    images = numerics.pixels(np.random.default_rng(seed).normal(size=(count, *spec.shape)), mean, std)
    logits = numerics.simulate(candidate.model, images)
    differing = int((candidate.engine.run(images) != logits).any(axis=1).sum())
    if differing:
        raise VerifyError(f"the engine differs from the simulation on {differing} of {count} images")
    expected = source.reference(spec.normalised(images).astype(np.float64))
    difference = np.abs(logits - expected)
    same = int((logits.argmax(axis=1) == expected.argmax(axis=1)).sum())
    return IntegerVerification(count, same, float(difference.max()), float(difference.mean()))
