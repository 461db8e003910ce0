"""A short run of the campaign of faults, with a fixed seed; `make faults` is the long one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support import ROOT


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux")
@pytest.mark.parametrize(
    ("job", "faults", "count", "least"),
    [
        ("replace_file", ["kill", "full_disk", "memory", "open_files", "processes", "signals", "read_only"], 3, 18),
        ("ovsw-export", ["kill", "full_disk", "open_files"], 1, 3),
        ("ovsw-train", ["kill", "full_disk"], 1, 2),
    ],
)
def test_faults(job: str, faults: list[str], count: int, least: int) -> None:
    command = [sys.executable, "-m", "campaigns.faults", "--count", str(count), "--jobs", job, "--faults", *faults]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    total, findings = re.findall(r"^(\d+) faults, (\d+) findings$", done.stdout, re.MULTILINE)[0]
    assert int(total) >= least
    assert findings == "0"
