"""Random networks over the whole list of nodes, through all passes: torch against the engine in float, the simulation
against the engine in integers, on every kernel table of this CPU. `campaigns.numbers` tries many more.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.random_networks import Network, check_float, check_integer

FEW, MANY = 150, 2000


def check_all(seeds: range) -> None:
    results = []
    for seed in seeds:
        network = Network.of(seed)
        check_float(network)
        results.append((network.stable, check_integer(network)))
    stable, integer = np.mean(results, axis=0)
    assert stable > 0.6, f"only {stable:.0%} of the networks could be compared"
    assert integer > 0.9, f"only {integer:.0%} of the networks have an integer file"


@pytest.mark.parametrize("part", range(5))
def test_random_networks(part: int) -> None:
    check_all(range(FEW * part // 5, FEW * (part + 1) // 5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_networks(part: int) -> None:
    check_all(range(FEW + MANY * part // 20, FEW + MANY * (part + 1) // 20))
