"""Runs child processes, a number at a time, which end with this one. The last line of its log says why one failed."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Job:
    """A command of ours: `module`.main(`arguments`), with a log file. `poll` is called while it runs and at its end.

    It starts after the job named `after` has ended, if that is run, too.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    poll: Callable[[], None] = lambda: None
    after: str = ""


@dataclass(frozen=True)
class PoolLimits:
    """`threads` is what each child may use, None leaves that to torch; `until` is a time of `time.monotonic`."""

    jobs: int = 1
    niceness: int = 0
    threads: int | None = 1
    until: float = math.inf

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until


def run_jobs(jobs: Sequence[Job], limits: PoolLimits, done: Callable[[Job, str], None]) -> None:
    """Runs all jobs; `done` gets each with "" or the reason of failure. Ctrl-C and the time limit end the children."""
    waiting, active = list(jobs), dict[Job, subprocess.Popen[bytes]]()
    try:
        while (waiting or active) and not limits.over:
            ahead = {job.name for job in (*waiting, *active)}
            for job in [job for job in waiting if job.after not in ahead][: limits.jobs - len(active)]:
                waiting.remove(job)
                active[job] = _start(job, limits)
            time.sleep(0.2)
            for job, child in list(active.items()):
                code = child.poll()
                job.poll()
                if code is not None:
                    del active[job]
                    _close(child)
                    done(job, "" if code == 0 else _reason(job, code))
    finally:
        for child in active.values():
            _close(child)
            child.wait()


def _start(job: Job, limits: PoolLimits) -> subprocess.Popen[bytes]:
    threads = (
        {} if limits.threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(limits.threads))
    )
    command = [sys.executable, "-m", "ovsw.repro.child", str(limits.niceness), job.module, *job.arguments]
    with job.log.open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads},
            start_new_session=True,  # Ctrl-C in a terminal is for the parent
        )


def _close(child: subprocess.Popen[bytes]) -> None:
    pipe: IO[bytes] | None = child.stdin
    if pipe is not None:
        pipe.close()


def _reason(job: Job, code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"
