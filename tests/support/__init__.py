"""What the tests share: where data lies, the kernel tables that can run here; generators and judges beside it.

No test module imports another one: what two of them need is in this package.
"""

from __future__ import annotations

import os
from pathlib import Path

from ovsw import cpu

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
TABLES = os.environ.get("OVSW_TEST_TABLES", "").split() or cpu.supported_isas()
HANGS = 7200  # seconds after which a process counts as hung; at a load of 30 the slowest one takes a few hundred


def shared(*parts: str) -> Path:
    """A path in the folder of large test material beside the repository; the test is skipped where that is missing."""
    import pytest

    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared/{'/'.join(parts)} is not here")
    return path
