"""Peak resident memory of each engine, in a fresh process that loads the network and runs it a few times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ovsw.bench.entries import Entry
from ovsw.bench.peers.base import child

WORKER = Path(__file__).with_name("memory_worker.py")


def baseline_mb() -> float | None:
    """The peak memory of Python with numpy alone."""
    return _measured({})


def peak_mb(entry: Entry) -> float | None:
    """The peak memory of the entry's engine; None if it fails or runs in a process that cannot be measured."""
    loaded = {"engine": entry.engine, "precision": entry.precision, "files": list(map(str, entry.files))}
    return _measured({**loaded, "threads": entry.threads, "isa": entry.isa, "shape": entry.shape})


def _measured(what: dict[str, object]) -> float | None:
    said, _ = child([sys.executable, str(WORKER), json.dumps(what)])
    last = said.split()[-1:]
    return int(last[0]) / 1e6 if last and last[0].isdigit() else None
