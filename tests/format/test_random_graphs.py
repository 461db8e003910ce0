"""Random models over every op, drawn by hypothesis: the engine, on every table, against simulation and evaluator.

The examples are the same in every run: what fails on one machine fails on all. `test_saved_graphs.py` has a hundred
more.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support import TABLES
from support.agreement import check_float, check_integer
from support.graphs import FLOAT, INTEGER, Graph

DRAWS = st.randoms(use_true_random=False)
SOME, MANY = 150, 1000  # of each numerics


def examples(count: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=checks)


def compare_integer(rng: random.Random) -> None:
    graph = Graph(rng, INTEGER)
    check_integer(graph.model, graph.images(2), TABLES)


def compare_float(rng: random.Random) -> None:
    graph = Graph(rng, FLOAT)
    assume(check_float(graph.model, graph.images(1)[0], TABLES))


@given(DRAWS)
@examples(SOME)
def test_integer_graphs(rng: random.Random) -> None:
    compare_integer(rng)


@given(DRAWS)
@examples(SOME)
def test_float_graphs(rng: random.Random) -> None:
    compare_float(rng)


@pytest.mark.slow
@given(DRAWS)
@examples(MANY)
def test_many_integer_graphs(rng: random.Random) -> None:
    compare_integer(rng)


@pytest.mark.slow
@given(DRAWS)
@examples(MANY)
def test_many_float_graphs(rng: random.Random) -> None:
    compare_float(rng)
