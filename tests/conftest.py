"""Fixtures of more than one room."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from support import TABLES

# Workers of pytest-xdist share the cores: one thread each. Read when torch is loaded, here and in child processes.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def as_many_torch_threads_as_before() -> Iterator[None]:
    """Commands that set torch's threads would slow down all tests after them, several times over in training."""
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    yield
    if before is not None:
        sys.modules["torch"].set_num_threads(before)


@pytest.fixture(params=TABLES)
def isa(request: pytest.FixtureRequest) -> str:
    """Each kernel table that this machine can run."""
    return str(request.param)


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Test runs beside each other spin at torch's barriers, and forked ones must not inherit its threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
