"""Random PyTorch networks full of exact zeros and ties: the float file is torch's, and every op of the integer file is
the network's. `campaigns.numbers` tries many more.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.module_judges import outcome

FEW, MANY = 60, 400
pytestmark = pytest.mark.usefixtures("one_torch_thread")


def check_all(seeds: range, folder: Path) -> None:
    found = Counter(outcome(seed, folder) for seed in seeds)
    assert found["integer"] > len(seeds) // 2, found
    assert found["ties"] < 1 + len(seeds) // 25, found


@pytest.mark.parametrize("part", range(4))
def test_random_modules(part: int, tmp_path: Path) -> None:
    check_all(range(FEW * part // 4, FEW * (part + 1) // 4), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_modules(part: int, tmp_path: Path) -> None:
    check_all(range(FEW + MANY * part // 4, FEW + MANY * (part + 1) // 4), tmp_path)
