"""Exports ONNX files that could crash the interpreter or eat the machine: each in a fork of a child process.

`exported` is the parent's side. The child imports what an export needs before it forks: a fork grows by what the file
takes, and by modules that are imported late.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from support import HANGS, ROOT

SECONDS = 120  # of a CPU, for one file


class Outcome(NamedTuple):
    """`said` is the error, or what was written; `grown` is in MB, `seconds` are a CPU's."""

    said: str
    grown: float
    seconds: float


def exported(files: Iterable[Path]) -> dict[str, Outcome]:
    """What becomes of each file when it is exported; a crash is what is `said` then."""
    command = [sys.executable, "-m", "support.onnx_reading", *map(str, files)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT / "tests", env=environment, capture_output=True, text=True, timeout=4 * HANGS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: Outcome(*outcome) for name, outcome in map(json.loads, done.stdout.splitlines())}


# --- the child's side ------------------------------------------------------------------------------------------------


def export_one(path: Path) -> str:
    from ovsw.export import ExportError, ExportOptions, VerifyError, export

    with tempfile.TemporaryDirectory() as folder:
        try:
            return export(path, Path(folder) / "out.bnn", ExportOptions(mean="none")).numerics
        except (ExportError, VerifyError) as e:
            return str(e)


def in_fork(job: Callable[[], str]) -> tuple[str, float, float]:
    """What it says, MB of memory at its peak, and seconds of a CPU."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        try:
            said = job()
        except BaseException as e:  # the parent gets to know it
            said = f"a traceback: {type(e).__name__}: {e}"
        os.write(into, said.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode()
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    words = said if code == 0 else f"a crash: exit code {code}"
    return words, usage.ru_maxrss * 1024 / 1e6, usage.ru_utime + usage.ru_stime


def main(files: list[str]) -> None:
    import warnings

    import torch

    from ovsw.export.frontend import onnx_file  # noqa: F401

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _, empty, _ = in_fork(lambda: "")
    for file in map(Path, files):
        said, peak, seconds = in_fork(lambda file=file: export_one(file))  # type: ignore[misc]
        print(json.dumps([file.name, (said, peak - empty, seconds)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
