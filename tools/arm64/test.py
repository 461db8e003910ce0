"""`make test-arm64`: the engine's tests under emulated ARM CPUs, two runs at a time.

Each table of ARM kernels is tested in full once, on a CPU where it is the best one; dispatch and the bytes of whole
networks on every CPU. What is left out is said at the end, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
PYTHON = ROOT / "build" / "arm64" / "python"
ISA = "tools/arm64/test_isa.py"

_CHILD = "its child process has limits of time and memory that an emulator does not keep"
_HOSTILE = "tests/format/test_hostile.py"
LEFT_OUT = {
    "tests/runtime/test_engine.py::test_gil_is_released": "half a minute, says nothing about a CPU",
    f"{_HOSTILE}::test_every_field_set_to_every_hostile_number": _CHILD,
    f"{_HOSTILE}::test_random_mutations": _CHILD,
    f"{_HOSTILE}::test_a_map_at_the_cap_takes_no_memory_before_it_is_allowed": _CHILD,
    f"{_HOSTILE}::test_a_wide_binary_window_loads_in_reasonable_time": _CHILD,
    f"{_HOSTILE}::test_huge_tensors_are_refused_at_once": "a minute of writing zeros, says nothing about a CPU",
}


KERNELS = "tests/kernels/test_float.py"
TABLES = {"cortex-a76": "arm_neon_dot", "cortex-a72": "arm_neon"}  # that kernels are tested on


def jobs() -> list[tuple[str, list[str]]]:
    """(CPU, arguments for pytest), the longest first."""
    kernels = [KERNELS, *(f"tests/kernels/test_{name}.py" for name in ("integer", "epilogue", "wide"))]
    bits = ["tests/kernels/test_bits.py", "-k", "everywhere and arm_neon"]  # on a CPU with dotprod, both tables
    whole = [ISA, "tests/runtime/test_engine.py"]
    files = [f"tests/format/test_{name}.py" for name in ("document", "round_trips", "damaged", "attacks", "hostile")]
    engine = [*files[:2], "-k", "test_engine"]
    graphs = ["tests/format/test_saved_graphs.py", "-k", "test_engine"]  # a hundred random ones, on all their tables
    return [
        ("cortex-a76", kernels),
        ("cortex-a72", kernels),
        ("max", files),
        ("cortex-a53", bits),
        ("cortex-a72", bits),
        ("cortex-a76", bits),
        ("max", bits),
        ("cortex-a72", whole),
        ("cortex-a76", whole),
        ("cortex-a72", engine),
        ("cortex-a76", engine),
        ("cortex-a72", graphs),
        ("cortex-a76", graphs),
        ("cortex-a53", [ISA]),
        ("max", [ISA]),
    ]


def run(job: tuple[str, list[str]]) -> tuple[bool, str]:
    """Whether it passed, and what to say about it."""
    cpu, tests = job
    deselect = [f"--deselect={name}" for name in LEFT_OUT]
    command = [str(PYTHON), "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--color=no", *deselect, *tests]
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "QEMU_CPU": cpu, "OVSW_TEST_TABLES": TABLES[cpu] if KERNELS in tests else ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = done.stdout.strip()
    lines = text.splitlines() or ["no output"]  # the last one counts the tests
    skipped = "".join(f"\n  {line}" for line in lines if line.startswith("SKIPPED"))
    names = " ".join(t.removeprefix("tests/") for t in tests)
    summary = f"{cpu}: {names}: {lines[-1]} ({time.monotonic() - start:.0f} s with start){skipped}"
    return done.returncode == 0, summary if done.returncode == 0 else f"{text}\n{summary}"


def stale() -> list[str]:
    """Entries of LEFT_OUT that name no test: a renamed one would come back, or another stay out, unnoticed."""
    entries = []
    for entry in LEFT_OUT:
        file, test = entry.split("::")
        if f"def {test}(" not in (ROOT / file).read_text():
            entries.append(entry)
    return entries


def main() -> int:
    if missing := stale():
        print(f"test.py leaves out tests that do not exist: {', '.join(missing)}", file=sys.stderr)
        return 1
    ok = True
    with ThreadPoolExecutor(max(1, min(2, os.cpu_count() or 1))) as pool:
        for passed, text in pool.map(run, jobs()):
            ok &= passed
            print(text, flush=True)
    print("left out under emulation (all run on the host in `make test`):")
    print(
        "  kernels of the table `portable`, one by one: the same C++ as on the host; whole networks run on it here too"
    )
    for name, why in LEFT_OUT.items():
        print(f"  {name}: {why}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
