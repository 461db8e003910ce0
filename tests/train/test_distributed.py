"""Two gloo processes: the same step as one, ranks that never part, and no rank that hangs when another dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from support import HANGS, ROOT
from support.ranks import one_step
from support.training import metrics

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def launch(task: str, folder: Path) -> subprocess.Popen[str]:
    """A task of support/ranks.py in two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    alone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return subprocess.Popen(
        [*torchrun, *alone, "-m", "support.ranks", task, str(folder)],
        cwd=ROOT / "tests",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def complete(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors[-3000:]


def test_one_step_is_that_of_one_process(tmp_path: Path) -> None:
    """In float64 with batch norm over all ranks; float32 runs part within steps, as every binary network does."""
    pair = launch("one_step", tmp_path)
    try:
        one_step(tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
        complete(pair)
    alone, *ranks = (torch.load(tmp_path / name, weights_only=True) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    for rank in ranks:
        for part in ("grads", "state"):
            assert rank[part].keys() == alone[part].keys()
            for key, value in alone[part].items():
                torch.testing.assert_close(rank[part][key], value, atol=1e-9, rtol=1e-9, msg=f"{part} {key}")


@pytest.mark.slow
def test_ranks_stay_bit_identical(tmp_path: Path) -> None:
    """24 float32 steps: weights, statistics and OvSW's state; one set of files, written by rank 0, over both."""
    complete(launch("whole_run", tmp_path))
    first, second = (torch.load(tmp_path / f"rank-{r}.pt", weights_only=True) for r in (0, 1))
    different = [key for key in first if "running" not in key and not torch.equal(first[key], second[key])]
    assert different == []
    saved = torch.load(tmp_path / "last.pth", weights_only=True)
    assert saved["epoch"] == 3
    assert all(torch.equal(saved["state_dict"][key], value) for key, value in first.items())
    told = [json.loads((tmp_path / f"rank-{r}.json").read_text()) for r in (0, 1)]
    assert [[count for _, _, count in rank["batches"]] for rank in told] == [[8] * 24] * 2
    assert told[0]["batches"] != told[1]["batches"]
    rows = metrics(tmp_path)
    for epoch, row in enumerate(rows):
        batches = [batch for rank in told for batch in rank["batches"][8 * epoch : 8 * epoch + 8]]
        assert row["loss"] == pytest.approx(sum(loss for loss, _, _ in batches) / 16)
        assert row["train_acc1"] == pytest.approx(100 * sum(right for _, right, _ in batches) / 128)
    for place, column in enumerate(("test_acc1", "test_acc5")):
        assert rows[-1][column] == pytest.approx(100 * sum(rank["right"][place] for rank in told) / 300)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_rank_hangs_when_another_is_killed(tmp_path: Path, victim: int) -> None:
    process = launch("wait_to_be_killed", tmp_path)
    try:
        deadline = time.monotonic() + HANGS
        while len(list(tmp_path.glob("alive-*"))) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        pids = [int(pid) for pid in children if b"support.ranks" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(pids) == 2
        os.kill(pids[victim], signal.SIGKILL)
        process.communicate(timeout=HANGS)
        assert process.returncode != 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        process.kill()
        process.communicate()
