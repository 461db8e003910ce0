"""`ovsw-bench --emulate CPU`: the cost of one inference on an ARM CPU, counted under emulation.

The tools in tools/arm64 count the instructions of ovsw and of ncnn under qemu-aarch64. Milliseconds are modelled from
these counts and never appear in one table with measured ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovsw.util.text import table

ROOT = Path(__file__).absolute().parents[1]  # of a checkout
CPUS = ("cortex-a53", "cortex-a72", "cortex-a76")
SETUP = "make count-arm64"


@dataclass
class Counted:
    """One inference on one CPU; `model_ms` has the machines that run the code which that CPU chooses."""

    network: str
    engine: str
    precision: str
    cpu: str
    instructions: int
    classes: dict[str, int]
    model_ms: dict[str, float]


@dataclass
class Emulated:
    emulated: str
    rows: list[Counted]


def emulate(cpu: str, networks: list[str], stem: str) -> Emulated:
    """Counts these networks on `cpu`, and on a CPU of the other generation for its machines."""
    keys = ("network", "engine", "precision", "cpu", "instructions", "classes", "model ms")
    rows = counts([cpu, "cortex-a72" if cpu == "cortex-a76" else "cortex-a76"], networks, f"--stem={stem}")
    return Emulated(cpu, [Counted(*(row[key] for key in keys)) for row in rows])


def counts(cpus: list[str], networks: list[str], *options: str) -> list[dict[str, Any]]:
    """The output of tools/arm64/count.py for these networks.

    Raises ValueError if the tools are not set up, RuntimeError if they fail.
    """
    for cpu in cpus:
        if cpu not in CPUS:
            raise ValueError(f"--emulate: unknown CPU '{cpu}', known are {', '.join(CPUS)}")
    count, rig = ROOT / "tools" / "arm64" / "count.py", ROOT / "build" / "arm64"
    if not count.is_file():
        raise ValueError(f"--emulate works in a checkout of ovsw only, where `{SETUP}` has set up the arm64 rig")
    parts = ["python", "marks.so", "icount.so", *["site-peers"] * ("--engine=ovsw" not in options)]
    if not all((rig / part).exists() for part in parts):
        raise ValueError(f"--emulate: the arm64 rig is not set up; `{SETUP}` does that")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts.json"
        command = [sys.executable, str(count), f"--cpu={','.join(cpus)}", f"--network={','.join(networks)}", *options]
        done = subprocess.run([*command, f"--json={file}"], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise RuntimeError(f"--emulate: {count.name} failed with exit code {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def show(emulated: Emulated) -> str:
    """The counts, then the modelled times."""
    rows = emulated.rows
    groups = list(dict.fromkeys(name for row in rows for name in row.classes))
    machines = list(dict.fromkeys(name for row in rows for name in row.model_ms))
    counted = []
    modelled: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)  # every machine runs one CPU's code
    for row in rows:
        numbers = (row.instructions, *(row.classes[name] for name in groups))
        label = (row.network, f"{row.engine} {row.precision}", row.cpu)
        counted.append(label + tuple(f"{n / 1e6:.1f}" for n in numbers))
        modelled[row.network, f"{row.engine.split()[0]} {row.precision}"].update(row.model_ms)
    cells = [(*label, *(f"{ms[m]:.1f}" if m in ms else "-" for m in machines)) for label, ms in modelled.items()]
    classes = table(("network", "engine", "CPU", "all", *groups), counted, right=range(3, 4 + len(groups)))
    head = ("network", "engine", *(f"{m}, model ms" for m in machines))
    return f"""Instructions of one inference, in millions, one thread, counted under qemu-aarch64:

{classes}

MODEL, not measured: milliseconds made of these counts and of what each core does in a cycle, without any
wait for memory or for an earlier result, so they are lower bounds:

{table(head, cells, right=range(2, len(head)))}"""
