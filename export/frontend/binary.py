"""Which constant weights are binary: those that have two values in each output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SPREAD = 1e-5  # straight-through noise in float32 is below 1e-6; real filters of a few taps differ by 0.1 and more


@dataclass
class TwoValues:
    """weight = centre + scale * signs. Zeros among the signs are weights that are exactly 0 among others of +-scale."""

    signs: np.ndarray
    scale: np.ndarray
    centre: np.ndarray


def two_values(weight: np.ndarray) -> TwoValues | None:
    """The weights of each output channel as two values, or None if some channel has more."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    low, high = rows.min(axis=1), rows.max(axis=1)
    largest = np.maximum(np.abs(low), np.abs(high))
    near = SPREAD * largest[:, None]
    symmetric = (np.abs(np.abs(rows) - largest[:, None]) <= near).all(axis=1)
    with_zeros = ((np.abs(np.abs(rows) - largest[:, None]) <= near) | (rows == 0)).all(axis=1)
    two = ((rows - low[:, None] <= near) | (high[:, None] - rows <= near)).all(axis=1)
    if not (with_zeros | two).all():
        return None
    plain = symmetric | (with_zeros & ~two)
    # The mean of what should be equal: rounding errors cancel.
    zeroless = np.where(rows == 0, np.nan, np.abs(rows))
    counted = np.maximum((rows != 0).sum(axis=1), 1)
    magnitude = np.nansum(zeroless, axis=1) / counted
    centre = np.where(plain, 0.0, (low + high) / 2)
    scale = np.where(plain, magnitude, (high - low) / 2)
    signs = np.sign(rows - centre[:, None])
    signs[largest == 0] = 1.0  # a filter of zeros has a scale of 0
    return TwoValues(signs.reshape(weight.shape).astype(np.float32), scale, centre)
