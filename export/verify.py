"""Proof before success: the packed model runs in the engine and has to give PyTorch's logits.

PyTorch computes in float64, the engine in float32. A value so near to zero that rounding decides its sign changes the
logits of that image altogether, in a correct export too, and in networks of a million signs that is not rare. So
images are drawn until `count` of them agree; a wrong export agrees on none, a right one on almost all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

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
