"""A folder in which `ovsw-export` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.exporting import Folder


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)
