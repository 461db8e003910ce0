"""Proof before success: the packed model runs in the engine and has to give PyTorch's logits.

PyTorch computes in float64, the engine in float32. A value so near to zero that rounding decides its sign changes the
logits of that image altogether, in a correct export too, and in networks of a million signs that is not rare. So
images are drawn until `count` of them agree; a wrong export agrees on none, a right one on almost all.

An integer file rounds more, so most images have such a value. There the engine has to give the bits of the simulation,
and how far both are from PyTorch is reported.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ovsw import format as bnn
from ovsw import numerics
from ovsw.engine import Engine
from ovsw.export import ir
from ovsw.export.errors import VerifyError

TOLERANCE = 1e-4  # of the largest logit, or of 1


@dataclass
class Verification:
    """How many images agreed, how many were put aside as ties, and the largest difference among those that agreed."""

    images: int
    ties: int
    max_error: float


def verify(model: nn.Module, engine: Engine, input_shape: ir.Shape, count: int, seed: int = 0) -> Verification:
    """Compares the engine with `model`. Raises VerifyError."""
    reference = copy.deepcopy(model).double().eval()
    rng = np.random.default_rng(seed)
    result = Verification(0, 0, 0.0)
    errors = []
    while result.images < count:
        x = rng.normal(size=(1, *input_shape)).astype(np.float32)
        with torch.no_grad():
            expected = reference(torch.from_numpy(x).double()).flatten().numpy()
        error = float(np.abs(engine.run(x)[0] - expected).max())
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


@dataclass
class IntegerVerification:
    """On how many images engine and simulation were equal and had PyTorch's top-1, and how far logits were off."""

    images: int
    same_top1: int
    max_difference: float
    mean_difference: float


def verify_integer(
    model: nn.Module, packed: bnn.Model, engine: Engine | None, count: int, seed: int = 0
) -> IntegerVerification:
    """Compares the engine with the simulation, and that with `model`, on random pixels. Raises VerifyError."""
    mean, std = (packed.tensors[i].array for i in (packed.mean, packed.std))
    x = np.random.default_rng(seed).normal(size=(count, *packed.values[0].shape))
    images = numerics.pixels(x, mean, std)
    logits = numerics.simulate(packed, images)
    if engine is not None:
        differing = int((engine.run(images) != logits).any(axis=1).sum())
        if differing:
            raise VerifyError(f"the engine differs from the simulation on {differing} of {count} images")
    reference = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        expected = reference(torch.from_numpy(normalised(images, mean, std)).double()).flatten(1).numpy()
    difference = np.abs(logits - expected)
    same = int((logits.argmax(axis=1) == expected.argmax(axis=1)).sum())
    return IntegerVerification(count, same, float(difference.max()), float(difference.mean()))


def normalised(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """uint8 pixels (n, h, w, c) as a network takes them: float32 (n, c, h, w)."""
    x = (images.astype(np.float32) / np.float32(255) - mean) / std
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
