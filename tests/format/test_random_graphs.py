"""Random models over every op, their seeds drawn by hypothesis: the engine, on every table, against both judges.

The examples are the same in every run: what fails on one machine fails on all. To make one smaller, give `model_of`
fewer draws. `test_saved_graphs.py` has a hundred more.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from support import TABLES
from support.agreement import check_float, check_integer
from support.graphs import FLOAT, INTEGER, model_of

SEEDS = st.integers(0, 2**32)
SOME, MANY = 150, 1000  # of each numerics


def examples(count: int) -> settings:
    """Without shrinking: a smaller seed is not a smaller model."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def compare_integer(seed: int) -> None:
    model, images = model_of(seed, INTEGER)
    check_integer(model, images, TABLES)


def compare_float(seed: int) -> None:
    model, images = model_of(seed, FLOAT)
    assume(check_float(model, images[0], TABLES))


@given(SEEDS)
@examples(SOME)
def test_integer_graphs(seed: int) -> None:
    compare_integer(seed)


@given(SEEDS)
@examples(SOME)
def test_float_graphs(seed: int) -> None:
    compare_float(seed)


@pytest.mark.slow
@given(SEEDS)
@examples(MANY)
def test_many_integer_graphs(seed: int) -> None:
    compare_integer(seed)


@pytest.mark.slow
@given(SEEDS)
@examples(MANY)
def test_many_float_graphs(seed: int) -> None:
    compare_float(seed)
