"""Proof before success: the packed models run in the engine and are compared with the source's reference.

The reference computes in float64 where the original can, the engine in float32. A value so near to zero that rounding
decides its sign changes the logits of that image altogether, in a correct export too, and in networks of a million
signs that is not rare. So images are drawn until `count` of them agree; a wrong export agrees on none, a right one on
almost all.

An integer file rounds more, so most images have such a value. There the engine has to give the bits of the simulation,
and how far both are from the reference is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw import numerics
from ovsw.engine import NO_LIMIT, Engine, default_memory_limit
from ovsw.export.calibration import Calibration
from ovsw.export.errors import ExportError, VerifyError
from ovsw.export.passes import Built
from ovsw.export.source import Source
from ovsw.networks import InputSpec

TOLERANCE = 1e-4  # of the largest logit, or of 1


class Candidate:
    """A model as the file that it may become, loaded by the engine. Raises ExportError if that refuses it."""

    def __init__(self, built: Built) -> None:
        self.model, self.lowered = built.model, built.lowered
        self.data = bnn.to_bytes(built.model)
        try:
            if built.model.numerics == "integer":
                numerics.check(built.model)
            self.engine = Engine(self.data, memory_limit=NO_LIMIT)
        except ValueError as e:
            raise ExportError(f"the engine refuses the result: {e}") from None

    def memory_warnings(self) -> list[str]:
        """What those should know who are going to load it."""
        needs, limit = self.engine.memory.total, default_memory_limit(len(self.data))
        if needs <= limit:
            return []
        return [f"it needs {needs:,} bytes of memory: engines load it with a memory_limit only, as {limit:,} is theirs"]

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """All that the network returns for a batch, each output flattened, one after the other."""
        return _joined(self.engine.run(images))

    def logits(self, images: np.ndarray) -> np.ndarray:
        """The first output for a batch."""
        found = self.engine.run(images)
        first: np.ndarray = found[0] if isinstance(found, tuple) else found
        return first.reshape(len(images), -1)


class IntegerCandidate(Candidate):
    """One in integers, with what its scales were measured on."""

    def __init__(self, built: Built, measured_on: Calibration) -> None:
        super().__init__(built)
        self.warnings = list(built.warnings)
        self.measured = built.measured
        self.calibration = measured_on

    @property
    def origin(self) -> str | None:
        return self.calibration.origin if self.measured else None


@dataclass
class Verification:
    """How many images agreed, how many were put aside as ties, and the largest difference among those that agreed."""

    images: int
    ties: int
    max_error: float


@dataclass
class IntegerVerification:
    """On how many images engine and simulation were equal and had PyTorch's top-1, and how far logits were off.

    `saturated` is the share of numbers that did not fit the scale that was measured for them.
    """

    images: int
    same_top1: int
    max_difference: float
    mean_difference: float
    saturated: float


def verify(source: Source, candidate: Candidate, count: int, seed: int = 0) -> Verification:
    """Compares a float model with the reference on random normalised images. Raises VerifyError."""
    rng = np.random.default_rng(seed)
    result = Verification(0, 0, 0.0)
    errors = []
    while result.images < count:
        x = rng.normal(size=(1, *source.input.shape)).astype(np.float32)
        expected = _joined(source.reference(x.astype(np.float64)))[0]
        error = float(np.abs(candidate.outputs(x)[0] - expected).max())
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
    source: Source, spec: InputSpec, candidate: IntegerCandidate, count: int, seed: int = 0
) -> IntegerVerification:
    """Compares the engine with the simulation, and that with the reference. Raises VerifyError.

    The images are those of the calibration, if any were given, else random pixels.
    """
    mean, std = (np.asarray(values, np.float32) for values in (spec.mean, spec.std))
    given = candidate.calibration
    noise = np.random.default_rng(seed).normal(size=(count, *spec.shape))
    images = numerics.pixels(noise if given.synthetic else given.images[:count], mean, std)
    values = numerics.simulate_values(candidate.model, images)
    logits = _joined(tuple(values[i].transpose(0, 3, 1, 2) for i in candidate.model.outputs))
    differing = int((candidate.outputs(images) != logits).any(axis=1).sum())
    if differing:
        raise VerifyError(f"the engine differs from the simulation on {differing} of {count} images")
    expected = _joined(source.reference(spec.normalised(images).astype(np.float64)))
    if not np.isfinite(expected).all():
        raise VerifyError("the original gives values that are not finite")
    difference = np.abs(logits - expected)
    first = candidate.model.values[candidate.model.output]
    answers = (each[:, : first.c * first.h * first.w].argmax(axis=1) for each in (logits, expected))
    return IntegerVerification(
        images=len(images),
        same_top1=int(np.equal(*answers).sum()),
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        saturated=_saturated(candidate, values),
    )


def _saturated(candidate: IntegerCandidate, values: dict[int, np.ndarray]) -> float:
    """The share of stored numbers that lie at an end of their range."""
    count = total = 0
    for op in candidate.measured:
        if op.out is not None:
            lo, hi = op.clamp if op.act == "clamp" else (-32768, 32767)
            v = values[op.out]
            count += int(((v <= lo) & (lo != 0)).sum() + (v >= hi).sum())  # at 0 a ReLU ends what it should
            total += v.size
    return count / max(1, total)


def _joined(outputs: Any) -> np.ndarray:
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
