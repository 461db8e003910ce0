"""Piecewise linear functions of one number, with jumps: the results of sign, clamp, masks and the like.

Binarisation can be written in many ways, so the exporter does not search for patterns. It follows every value that is
computed from one map by additions, products, comparisons, choices, clamps and rounding as a function of that map. If
the function has two levels in the end, it is a sign. All arithmetic is per channel and in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

_LEVELS = 16  # of a rounded value; more are no binary network's
_EQUAL = 1e-12


@dataclass(eq=False)
class Piecewise:
    """slope[k] * x + offset[k] between breaks[k - 1] and breaks[k], and at[k] where x is breaks[k].

    Each has a column per channel, or one for all. A break of infinity is none.
    """

    breaks: np.ndarray  # (k, channels), ascending
    slope: np.ndarray  # (k + 1, channels)
    offset: np.ndarray
    at: np.ndarray  # (k, channels)

    @staticmethod
    def line(slope: np.ndarray | float, offset: np.ndarray | float) -> Piecewise:
        a, b = np.broadcast_arrays(np.atleast_1d(slope).astype(float), np.atleast_1d(offset).astype(float))
        none = np.zeros((0, len(a)))
        return Piecewise(none, a[None].copy(), b[None].copy(), none)

    @property
    def channels(self) -> int:
        return self.slope.shape[1]

    @property
    def is_line(self) -> bool:
        return len(self.breaks) == 0

    @property
    def is_step(self) -> bool:
        """Whether it has nothing but levels."""
        return not self.slope.any()

    @property
    def is_continuous(self) -> bool:
        below, above = self.beside()
        return bool((np.isinf(self.breaks) | (_near(below, self.at) & _near(above, self.at))).all())

    def beside(self) -> tuple[np.ndarray, np.ndarray]:
        """The values just below and just above each break."""
        x = np.where(np.isfinite(self.breaks), self.breaks, 0.0)
        return self.slope[:-1] * x + self.offset[:-1], self.slope[1:] * x + self.offset[1:]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The value at one x per channel."""
        x = np.broadcast_to(x, np.broadcast_shapes(np.shape(x), (self.channels,)))
        x = np.where(np.isfinite(x), x, 0.0)
        piece = (self.breaks < x).sum(axis=0)
        value = _pick(self.slope, piece) * x + _pick(self.offset, piece)
        for break_, at in zip(self.breaks, self.at):
            value = np.where(x == break_, at, value)
        return value

    def widened(self, channels: int) -> Piecewise:
        return Piecewise(*(np.broadcast_to(a, (len(a), channels)) for a in self._parts()))

    def taken(self, channels: np.ndarray) -> Piecewise:
        """With the columns of these channels."""
        return Piecewise(*(a if self.channels == 1 else a[:, channels] for a in self._parts()))

    def _parts(self) -> tuple[np.ndarray, ...]:
        return self.breaks, self.slope, self.offset, self.at

    # Refinement: the same function with more breaks, which results then need.

    def _refined(self, points: np.ndarray, values: np.ndarray | None = None) -> Piecewise:
        """With breaks at `points` too, where it has `values`, or those it has anyway."""
        width = max(self.channels, points.shape[1])
        f, points = self.widened(width), np.broadcast_to(points, (len(points), width))
        at = np.array([f(p) for p in points]).reshape(points.shape) if values is None else values
        breaks = np.concatenate([f.breaks, points])
        every = np.concatenate([f.at, np.where(np.isfinite(points), at, 0.0)])
        order = np.argsort(breaks, axis=0, kind="stable")
        breaks, every = np.take_along_axis(breaks, order, 0), np.take_along_axis(every, order, 0)
        inside = _between(breaks)
        piece = (f.breaks[:, None] < inside).sum(axis=0)
        slope, offset = np.take_along_axis(f.slope, piece, 0), np.take_along_axis(f.offset, piece, 0)
        return Piecewise(breaks, slope, offset, every)

    def _cut(self, level: np.ndarray | float) -> Piecewise:
        """With breaks where it crosses a level, and there exactly that value."""
        level = np.broadcast_to(np.atleast_1d(level), (np.broadcast_shapes((self.channels,), np.shape(level) or (1,))))
        f = self.widened(len(level))
        with np.errstate(divide="ignore", invalid="ignore"):
            x = (level - f.offset) / f.slope
        lower, upper = _edges(f.breaks)
        crosses = (f.slope != 0) & np.isfinite(x) & (lower < x) & (x < upper)
        points = np.where(crosses, x, np.inf)
        keep = crosses.any(axis=1)
        return f._refined(points[keep], np.broadcast_to(level, points[keep].shape)) if keep.any() else f

    def _mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Piecewise:
        """A function of the values that does not change within a piece."""
        return Piecewise(self.breaks, np.zeros_like(self.slope), change(self._inside()), change(self.at)).simplified()

    def _inside(self) -> np.ndarray:
        """A value within each piece."""
        return self.slope * _between(self.breaks) + self.offset

    def simplified(self) -> Piecewise:
        """Without breaks at which nothing happens."""
        f = Piecewise(*(np.array(a) for a in self._parts()))
        twice = np.zeros(f.breaks.shape, bool)
        twice[:-1] = f.breaks[:-1] == f.breaks[1:]
        for k in range(len(f.breaks)):  # a piece of no length takes the form of the one before
            f.slope[k + 1], f.offset[k + 1] = (np.where(twice[k], a[k], a[k + 1]) for a in (f.slope, f.offset))
        same = _near(f.slope[:-1], f.slope[1:]) & _near(f.offset[:-1], f.offset[1:])
        idle = twice | ~np.isfinite(f.breaks) | (same & _near(f.beside()[0], f.at))
        used = (~idle).sum(axis=0)
        most = int(used.max()) if used.size else 0
        if most == len(f.breaks):
            return f
        order = np.argsort(idle, axis=0, kind="stable")[:most]  # those that matter first, in their order
        matter = np.arange(most)[:, None] < used
        breaks = np.where(matter, np.take_along_axis(f.breaks, order, 0), np.inf)
        at = np.where(matter, np.take_along_axis(f.at, order, 0), 0.0)
        after = np.where(matter, order + 1, 0)
        last = np.maximum.accumulate(np.concatenate([np.zeros((1, f.channels), int), after]), axis=0)
        return Piecewise(breaks, np.take_along_axis(f.slope, last, 0), np.take_along_axis(f.offset, last, 0), at)

    # Arithmetic.

    def scaled(self, factor: np.ndarray | float, term: np.ndarray | float = 0.0) -> Piecewise:
        factor, term = np.atleast_1d(factor), np.atleast_1d(term)
        width = len(np.broadcast_arrays(factor, term, self.slope[0])[0])
        f = self.widened(width)
        return Piecewise(f.breaks, f.slope * factor, f.offset * factor + term, f.at * factor + term).simplified()

    def __add__(self, other: Piecewise) -> Piecewise:
        f, g = _together(self, other)
        return Piecewise(f.breaks, f.slope + g.slope, f.offset + g.offset, f.at + g.at).simplified()

    def times(self, other: Piecewise) -> Piecewise | None:
        """The product, if it is piecewise linear."""
        f, g = _together(self, other)
        if ((f.slope != 0) & (g.slope != 0) & (_lengths(f.breaks) > 0)).any():
            return None
        slope = f.slope * g.offset + g.slope * f.offset
        return Piecewise(f.breaks, slope, f.offset * g.offset, f.at * g.at).simplified()

    def over(self, other: Piecewise) -> Piecewise | None:
        """The quotient, if it has only levels where the divisor is not constant. 0 / 0 counts as 0."""
        f, g = _together(self, other)
        real = _lengths(f.breaks) > 0
        level = (g.slope == 0) & (g.offset != 0)
        ratio = (g.slope != 0) & _near(f.slope * g.offset, f.offset * g.slope)
        if (real & ~level & ~ratio).any() or ((g.at == 0) & (f.at != 0)).any():
            return None
        slope = np.where(level, f.slope, 0.0) / np.where(level, g.offset, 1.0)
        offset = np.where(level, f.offset, f.slope) / np.where(level, g.offset, np.where(ratio, g.slope, 1.0))
        at = np.where(g.at == 0, 0.0, f.at) / np.where(g.at == 0, 1.0, g.at)
        return Piecewise(f.breaks, slope, offset, at).simplified()

    def of_levels(self, other: Piecewise, change: Callable[..., np.ndarray]) -> Piecewise | None:
        """Any function of two values that have only levels."""
        if not (self.is_step and other.is_step):
            return None
        f, g = _together(self, other)
        return Piecewise(f.breaks, np.zeros_like(f.slope), change(f.offset, g.offset), change(f.at, g.at)).simplified()

    def mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Piecewise | None:
        """Any function of a value that has only levels."""
        return self._mapped(change) if self.is_step else None

    def compared(self, op: str, level: np.ndarray | float) -> Piecewise:
        """1 where `self op level` holds, else 0."""
        return self._cut(level)._mapped(lambda values: COMPARISONS[op](values, np.atleast_1d(level)).astype(float))

    def sign(self) -> Piecewise:
        return self.compared("gt", 0.0) + self.compared("lt", 0.0).scaled(-1.0)

    def clamped(self, lo: np.ndarray | float, hi: np.ndarray | float) -> Piecewise:
        f = self
        for bound in (lo, hi):
            if np.isfinite(bound).all():
                f = f._cut(bound)
        inside, lo, hi = f._inside(), np.atleast_1d(lo), np.atleast_1d(hi)
        free = (inside > lo) & (inside < hi)
        slope = np.where(free, f.slope, 0.0)
        offset = np.where(free, f.offset, np.clip(inside, lo, hi))
        return Piecewise(f.breaks, slope, offset, np.clip(f.at, lo, hi)).simplified()

    def bent(self, below: np.ndarray | float, above: np.ndarray | float = 1.0) -> Piecewise:
        """Negative values times `below`, positive ones times `above`: ReLU, PReLU, abs."""
        below, above = np.atleast_1d(below), np.atleast_1d(above)
        f = self.widened(len(np.broadcast_arrays(below, above, self.slope[0])[0]))._cut(0.0)
        factor = np.where(f._inside() < 0, below, above)
        return Piecewise(
            f.breaks, f.slope * factor, f.offset * factor, f.at * np.where(f.at < 0, below, above)
        ).simplified()

    def rounded(self, how: str) -> Piecewise | None:
        """`how` is round (half to even), floor, ceil or trunc. None if it has more than a few levels."""
        if self.slope[0].any() or self.slope[-1].any():
            return None
        values = np.concatenate([np.ravel(e) for e in (self.offset[0], *self.beside(), self.at)])
        lo, hi = int(np.floor(values.min())), int(np.ceil(values.max()))
        if hi - lo > _LEVELS:
            return None
        f = self
        for n in range(lo, hi + 1):
            f = f._cut(n + 0.5 if how == "round" else float(n))
        return f._mapped(ROUNDINGS[how])

    @staticmethod
    def choice(condition: Piecewise, yes: Piecewise, no: Piecewise) -> Piecewise:
        """`yes` where the condition, which has only levels, is not 0."""
        c, y, n = _together(condition, yes, no)
        inside, there = c._inside() != 0, c.at != 0
        return Piecewise(
            c.breaks,
            np.where(inside, y.slope, n.slope),
            np.where(inside, y.offset, n.offset),
            np.where(there, y.at, n.at),
        ).simplified()

    def bounded(self, lo: float, hi: float) -> Piecewise:
        """The function where its argument is known to lie within lo and hi: breaks beyond do not matter.

        At a break on the bound itself, what lies beyond takes the value there.
        """
        f = Piecewise(*(np.array(a) for a in self._parts()))
        x, order = f.breaks, range(len(f.breaks))
        sides = [(k, slice(k + 1), k + 1, x[k] == lo, x[k] < lo) for k in order]
        sides += [(k, slice(k + 1, None), k, x[k] == hi, x[k] > hi) for k in reversed(order)]
        for k, beyond, inside, on_bound, outside in sides:
            for rows, flat in ((f.slope, np.zeros(1)), (f.offset, f.at[k])):
                rows[beyond] = np.where(outside, rows[inside], np.where(on_bound, flat, rows[beyond]))
        return replace(f, at=np.where((x < lo) | (x > hi), f.beside()[1], f.at)).simplified()

    def through(self, slope: np.ndarray, offset: np.ndarray) -> Piecewise:
        """The same values as a function of y = slope * x + offset, for slopes that are not 0."""
        width = len(np.broadcast_arrays(slope, offset, self.slope[0])[0])
        f = self.widened(width)
        a, b = (np.broadcast_to(v, (width,)) for v in (slope, offset))
        breaks = np.where(np.isfinite(f.breaks), f.breaks * a + b, np.inf)
        new = (f.slope / a, f.offset - f.slope * b / a)
        down = a < 0
        order = np.argsort(breaks, axis=0, kind="stable")
        finite = np.isfinite(breaks).sum(axis=0)
        pieces = np.arange(len(f.slope))[:, None]
        reverse = np.where(down & (pieces <= finite), finite - pieces, pieces)
        return Piecewise(
            np.take_along_axis(breaks, order, 0),
            np.take_along_axis(new[0], reverse, 0),
            np.take_along_axis(new[1], reverse, 0),
            np.take_along_axis(f.at, order, 0),
        )


COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round": np.round,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


def _near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a - b) <= _EQUAL * np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))


def _pick(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    rows = np.broadcast_to(rows, (len(rows), which.shape[-1]))
    return np.take_along_axis(rows, which[None], 0)[0]


def _edges(breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    end = np.full((1, breaks.shape[1]), np.inf)
    return np.concatenate([-end, breaks]), np.concatenate([breaks, end])


def _lengths(breaks: np.ndarray) -> np.ndarray:
    lower, upper = _edges(breaks)
    return np.where(lower < upper, 1, 0)


def _between(breaks: np.ndarray) -> np.ndarray:
    """A number within each piece; where there is none, the break itself, and 0 beyond infinity."""
    lower, upper = _edges(breaks)
    low, high = np.where(np.isfinite(lower), lower, 0.0), np.where(np.isfinite(upper), upper, 0.0)
    up, down = low + np.maximum(1.0, np.abs(low)), high - np.maximum(1.0, np.abs(high))
    below, above = np.isinf(lower), np.isinf(upper)
    return np.select([lower == np.inf, below & above, below, above], [0.0 * low, 0.0 * low, down, up], (low + high) / 2)


def _together(*functions: Piecewise) -> list[Piecewise]:
    """All with the breaks of all."""
    width = max(f.channels for f in functions)
    wide = [f.widened(width) for f in functions]
    result = []
    for f in wide:
        others = np.concatenate([g.breaks for g in wide if g is not f])
        result.append(f._refined(others) if len(others) else f)
    return result
