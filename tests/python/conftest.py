"""What the tests share: where data lies, and the kernel tables that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ovsw import _core

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
TABLES = [name for name, supported in _core.tables() if supported]


def shared(*parts: str) -> Path:
    """A path in the folder of large test material beside the repository; the test is skipped where that is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared/{'/'.join(parts)} is not here")
    return path


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
