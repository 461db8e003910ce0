"""A short version of `make soak`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import ROOT


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is left")
def test_soak() -> None:
    """In a process of its own, whose memory and threads nobody else changes."""
    command = [sys.executable, "-m", "campaigns.soak", "--inferences=2000", "--loads=40", "--cycles=3"]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "2,346 inferences, 0 wrong" in done.stdout
