"""The engine and the training kernels in bad circumstances: forks while they run, no more threads, a sudden end."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.processes import child

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and Linux's limits")
WHAT = pytest.mark.parametrize("what", ["engine", "train"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("what", ["engine", "train", "picture"])
def test_fork_while_other_threads_run(what: str) -> None:
    """No lock that another thread held when the process forked is waited for in the child."""
    done = child("forks", what, "60")
    assert (done.returncode, done.stdout) == (0, "60 children\n"), done.stderr


@LINUX
@WHAT
@pytest.mark.parametrize("how", ["processes", "memory"])
def test_threads_that_the_system_refuses(what: str, how: str) -> None:
    done = child("refused", what, how)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "of 8" in line
        assert "cannot start thread" in line


@WHAT
@pytest.mark.parametrize("threads", [1, 2])
def test_exit_while_daemon_threads_run(what: str, threads: int) -> None:
    """Nothing is printed, nothing aborts."""
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda _: child("leave", what, str(threads)), range(8)))
    assert [(done.returncode, done.stderr) for done in ends] == [(0, "")] * 8
