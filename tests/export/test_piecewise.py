"""Piecewise linear functions, beyond what networks need of them (test_spellings.py): known ranges, another argument,
and no break left that does not matter. The judge evaluates the arrays themselves, one number at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ovsw.export.frontend.piecewise import Piecewise

CHANNELS = 3


def drawn(seed: int, channels: int = CHANNELS) -> Piecewise:
    """Breaks on whole and half numbers, so that many lie on the bounds; slopes and jumps of all kinds, 0 among them."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 5))
    breaks = np.sort(np.array([rng.permutation(13)[:k] / 2.0 - 3.0 for _ in range(channels)]).T, axis=0)
    slope, offset = (rng.integers(-1, 2, (k + 1, channels)).astype(float) for _ in range(2))
    return Piecewise(breaks, slope, offset, rng.integers(-2, 3, (k, channels)).astype(float))


def value(f: Piecewise, x: float, channel: int) -> float:
    for k, at in enumerate(f.breaks[:, channel]):
        if x == at:
            return float(f.at[k, channel])
        if x < at:
            return float(f.slope[k, channel] * x + f.offset[k, channel])
    return float(f.slope[-1, channel] * x + f.offset[-1, channel])


POINTS = np.arange(-16, 17) / 4.0


def test_bounded_is_the_same_within_and_has_no_breaks_beyond() -> None:
    for seed in range(60):
        f = drawn(seed)
        lo, hi = sorted(np.random.default_rng(seed).permutation(9)[:2] / 2.0 - 2.0)
        g = f.bounded(lo, hi)
        for channel, x in itertools.product(range(CHANNELS), POINTS):
            assert not lo <= x <= hi or value(g, x, channel) == value(f, x, channel), (seed, x, channel)
        alone = drawn(seed, 1).bounded(lo, hi)
        assert ((alone.breaks >= lo) & (alone.breaks <= hi)).all(), seed


def test_through_is_the_same_function_of_another_argument() -> None:
    slope, offset = np.array([2.0, -0.5, -4.0]), np.array([1.0, 0.0, -3.0])
    for seed in range(20):
        f = drawn(seed)
        g = f.through(slope, offset)
        for channel, x in itertools.product(range(CHANNELS), POINTS):
            assert value(g, x * slope[channel] + offset[channel], channel) == value(f, x, channel), (seed, x)


def test_simplified_keeps_the_breaks_that_matter() -> None:
    for seed in range(20):
        f = drawn(seed, 1)
        g = f.simplified()
        matter = [
            at
            for k, at in enumerate(f.breaks[:, 0])
            if (f.slope[k, 0], f.offset[k, 0]) != (f.slope[k + 1, 0], f.offset[k + 1, 0])
            or f.slope[k, 0] * at + f.offset[k, 0] != f.at[k, 0]
        ]
        assert list(g.breaks[:, 0]) == matter, seed
        assert [value(g, x, 0) for x in POINTS] == [value(f, x, 0) for x in POINTS], seed


@pytest.mark.parametrize(
    ("how", "judge"), [("round", np.round), ("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc)]
)
def test_rounded_has_few_levels_or_is_refused(how: str, judge: np.ufunc) -> None:
    """A ramp of 16 levels is rounded, one of 17 is not, nor one that never ends."""
    ramp = Piecewise.line(1.0, 0.0).clamped(-8.0, 8.0)
    made = ramp.rounded(how)
    assert made is not None
    for x in np.arange(-40, 41) / 4.0:
        assert value(made, x, 0) == judge(np.clip(x, -8.0, 8.0)), x
    assert Piecewise.line(1.0, 0.0).clamped(-8.0, 9.0).rounded(how) is None
    assert Piecewise.line(1.0, 0.0).bent(0.0).rounded(how) is None
    assert Piecewise.line(1.0, 0.0).bent(1.0, 0.0).rounded(how) is None


def test_quotients() -> None:
    x = Piecewise.line(1.0, 0.0)
    halved = x.over(Piecewise.line(0.0, 2.0))
    sign = x.over(x.bent(-1.0))
    assert halved is not None
    assert sign is not None
    assert [value(halved, v, 0) for v in (-3.0, 0.0, 5.0)] == [-1.5, 0.0, 2.5]
    assert [value(sign, v, 0) for v in (-3.0, 0.0, 5.0)] == [-1.0, 0.0, 1.0]
    assert Piecewise.line(0.0, 1.0).over(x) is None
    assert x.scaled(1.0, 1.0).over(x.bent(-1.0)) is None


def test_products() -> None:
    x = Piecewise.line(1.0, 0.0)
    size = x.times(x.sign())
    assert size is not None
    assert [value(size, v, 0) for v in (-3.0, 0.0, 5.0)] == [3.0, 0.0, 5.0]
    assert x.times(x) is None
    assert x.bent(0.0).times(x.bent(1.0, 0.0)) is not None  # at no point do both rise
    assert x.bent(0.0).times(x) is None


@pytest.mark.parametrize(("at", "offset", "expected"), [(2.5, 1.5, True), (2.5, 1.0, False), (2.0, 1.5, False)])
def test_continuity_is_asked_of_both_sides(at: float, offset: float, expected: bool) -> None:
    """2 x + 0.5 up to 1, then x + offset; the value at 1 itself may be another one."""
    column = (np.array([[v] for v in values]) for values in ([1.0], [2.0, 1.0], [0.5, offset], [at]))
    assert Piecewise(*column).is_continuous == expected
