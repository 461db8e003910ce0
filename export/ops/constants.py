"""Integer constants: how real ones become whole numbers that lose as little as their bounds allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

INT32 = 2**31 - 1
LIMIT = 32768  # the largest |x| of an i16 that is not clamped
PEAK = {16: 32767, 8: 127}  # largest weight, by bits
KIND = {16: "i16", 8: "i8"}
_ALIKE = 0.95  # correlation of neighbouring pixels, and of colours


@dataclass
class Constants:
    weight: np.ndarray
    offset: np.ndarray
    shift: np.ndarray
    fits: np.ndarray


def largest_shift(most: int, at: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Constants:
    """Per channel, the constants at the largest shift for which they fit; at 0 where they never do.

    `at` gets all shifts at once, as a column, and gives multipliers, offsets, and whether they fit, a row for each.
    """
    weight, offset, fits = at(np.arange(most + 1)[:, None])
    ever = np.logical_or.reduce(fits)
    shift = np.where(ever, most - np.argmax(fits[::-1], axis=0), 0)
    channel = np.arange(len(shift))
    return Constants(weight[shift, channel], offset[shift, channel], shift, ever)


def largest_shift_of_weights(most: int, at: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Constants:
    """The same for whole filters, of which only those for one shift are held at a time."""
    weight, offset, fits = at(most)
    shift = np.full(len(offset), most)
    for s in reversed(range(most)):
        if fits.all():
            break
        w, o, ok = at(s)
        left = ~fits
        weight[left], offset[left], shift[left] = w[left], o[left], s
        fits = fits | ok
    return Constants(weight, offset, shift, fits)


def rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest integer, within 62 bits: what is larger fits nowhere."""
    return np.rint(np.clip(x, -(2.0**62), 2.0**62)).astype(np.int64)


def floored(x: np.ndarray) -> np.ndarray:
    """As above, downwards. As the sums it is added to are whole, an offset loses nothing of what the shift keeps."""
    return np.floor(np.clip(x, -(2.0**62), 2.0**62)).astype(np.int64)


def like_pixels(window: tuple[int, int], std: np.ndarray) -> np.ndarray:
    """The upper triangular R for which |R e| is the size of what errors e of weights come to on an ordinary image.

    Neighbouring pixels and colours are correlated, with _ALIKE per pixel of distance and between colours.
    """
    places = np.indices(window).reshape(2, -1).T
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    colours = np.outer(std, std) * np.where(np.eye(len(std)) > 0, 1.0, _ALIKE)
    return np.linalg.cholesky(np.kron(_ALIKE**distance, colours)).T


def rounded_together(w: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Whole numbers near the rows of w: one by one, each such that it makes up for the errors of those before."""
    rows = np.clip(w.reshape(len(w), -1), -(2.0**62), 2.0**62)
    errors = np.zeros_like(rows)
    for i in reversed(range(len(r))):
        correction = errors[:, i + 1 :] @ r[i, i + 1 :] / -r[i, i]
        errors[:, i] = np.rint(rows[:, i] + correction) - rows[:, i]
    return rounded(rows + errors).reshape(w.shape)


@dataclass
class Line:
    """a * y + b, in steps, for whole y of at most `largest`.

    Rounding a errs by more the larger y is, and what counts are the y for which the result is near 0. So the offset is
    the one that is right at the y nearest to that, which with a mean far from 0 is several steps better.
    """

    a: np.ndarray
    b: np.ndarray
    largest: float

    def __post_init__(self) -> None:
        safe, most = np.where(self.a == 0, 1.0, self.a), np.floor(self.largest)
        self.y = np.where(self.a == 0, 0.0, np.clip(np.rint(-self.b / safe), -most, most))
        self.value = self.a * self.y + self.b

    def at(self, s: np.ndarray, unit: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Multipliers and offsets, in multiples of `unit`, for shifts of s, whether they fit or not."""
        m = np.clip(rounded(self.a * 2.0**s), -(1 << 31), 1 << 31)
        return m, (floored(self.value * 2.0**s) - m * self.y.astype(np.int64) + unit // 2) // unit


def shifted(sums: np.ndarray, s: np.ndarray) -> np.ndarray:
    return -(-sums >> s)


def integers(
    offset: np.ndarray, shift: np.ndarray, **others: tuple[str, np.ndarray]
) -> dict[str, tuple[str, np.ndarray]]:
    """The tensors of an op, in the order in which they are stored."""
    return {**others, "offset": ("i32", offset), "shift": ("u8", shift)}


def channels_last(weight: np.ndarray) -> np.ndarray:
    """From (out, in, height, width) to the file's (out, height, width, in)."""
    return weight.transpose(0, 2, 3, 1)
