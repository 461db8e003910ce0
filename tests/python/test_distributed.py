"""Two gloo processes: the same step as one, ranks that never part, and no rank that hangs when another dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("ranks.py")


def command(task: str, folder: Path, processes: int) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "0"]
    alone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    launcher = [*torchrun, *alone] if processes > 1 else []
    return [sys.executable, *launcher, str(SCRIPT), task, str(folder)]


def launch(task: str, folder: Path, processes: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(task, folder, processes), capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_one_step_is_that_of_one_process(tmp_path: Path) -> None:
    """In float64 with batch norm over all ranks; float32 runs part within steps, as every binary network does."""
    launch("one_step", tmp_path, 1)
    launch("one_step", tmp_path, 2)
    alone, *ranks = (torch.load(tmp_path / name, weights_only=True) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    for rank in ranks:
        for part in ("grads", "state"):
            assert rank[part].keys() == alone[part].keys()
            for key, value in alone[part].items():
                torch.testing.assert_close(rank[part][key], value, atol=1e-9, rtol=1e-9, msg=f"{part} {key}")


def test_ranks_stay_bit_identical(tmp_path: Path) -> None:
    """56 float32 steps: weights, statistics and OvSW's state; one set of files, written by rank 0."""
    launch("whole_run", tmp_path, 2)
    first, second = (torch.load(tmp_path / f"rank-{r}.pt", weights_only=True) for r in (0, 1))
    different = [key for key in first if "running" not in key and not torch.equal(first[key], second[key])]
    assert different == []
    saved = torch.load(tmp_path / "last.pth", weights_only=True)
    assert saved["epoch"] == 7
    assert all(torch.equal(saved["state_dict"][key], value) for key, value in first.items())


@pytest.mark.parametrize("victim", [0, 1])
def test_no_rank_hangs_when_another_is_killed(tmp_path: Path, victim: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command("wait_to_be_killed", tmp_path, 2), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("alive-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        children = [
            int(pid)
            for pid in subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
            ).stdout.split()
        ]
        ranks = [pid for pid in children if b"ranks.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(ranks) == 2
        os.kill(ranks[victim], signal.SIGKILL)
        assert process.wait(timeout=60) != 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    finally:
        process.kill()
