"""`make check-sanitizers`: all C++ tests and the engine's Python tests, built with sanitizers (CMakePresets.json).

`asan` looks for accesses outside of memory, undefined behaviour and leaks, `tsan` for races between threads. Python
itself is an ordinary one: the sanitizer is loaded before it, and what it says of other people's code is not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pybind11

ROOT = Path(__file__).absolute().parents[1]
OURS = re.compile(r"ovsw/_(core|train|testing)\.|\b(csrc|kernels)/")  # modules, or sources of theirs
LIBRARIES = {"asan": ["libasan.so", "libstdc++.so"], "tsan": ["libtsan.so", "libstdc++.so"]}

# Kernels are single-threaded, and files are read by one thread: for races it is the engine that matters.
TESTS = {
    "asan": ["tests/kernels", "tests/format", "tests/runtime/test_engine.py", "tests/runtime/test_outputs.py"],
    "tsan": ["tests/runtime/test_engine.py", "tests/kernels/test_train_units.py"],
}

_TORCH = "torch, without a sanitizer, takes minutes to load under one"
_LIMITS = "its child process has a limit of memory that a sanitizer does not keep"
LEFT_OUT = {
    "tests/format/test_evaluator.py": _TORCH,
    "tests/runtime/test_engine.py::test_strided_and_foreign_arrays": _TORCH,
    "tests/runtime/test_engine.py::test_gil_is_released": "a minute of computing that other tests have, too",
    "tests/format/test_hostile.py": _LIMITS,
    "tests/format/test_memory.py": _LIMITS,
    "tests/format/test_fuzz_readers.py": _LIMITS,
}


def run(*command: str | Path, **environment: str) -> int:
    print("$ " + " ".join(map(str, command)), flush=True)
    return subprocess.run([str(c) for c in command], cwd=ROOT, env={**os.environ, **environment}).returncode


def must(*command: str | Path) -> None:
    if code := run(*command):
        sys.exit(f"sanitizers.py: exit code {code}")


def build(preset: str, *options: str) -> Path:
    generator = ["-GNinja"] if shutil.which("ninja") else []
    must("cmake", "--preset", preset, *generator, *options)
    must("cmake", "--build", "--preset", preset, "--parallel", str(os.cpu_count() or 1))
    return ROOT / "build" / preset


def package(built: Path) -> Path:
    """A folder to import ovsw from: the package as it is, with the modules that were built."""
    site = built / "site"
    shutil.rmtree(site, ignore_errors=True)
    (site / "ovsw").mkdir(parents=True)
    ours = [p for p in (ROOT / "python/ovsw").iterdir() if p.suffix != ".so"]
    for path in [*ours, ROOT / "export", ROOT / "bench", *built.glob("_*.so")]:
        (site / "ovsw" / path.name).symlink_to(path)
    return site


def environment(preset: str, site: Path, logs: Path) -> dict[str, str]:
    paths = (subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True) for name in LIBRARIES[preset])
    log = f"log_path={logs}/log"
    return {
        "LD_PRELOAD": " ".join(str(Path(path.strip()).resolve()) for path in paths),
        "PYTHONPATH": str(site),
        "PYTHONMALLOC": "malloc",  # Python's own would hide what lies beside
        # Python is not asked for its leaks when it ends: LEAKS asks for all, and only ours count.
        "ASAN_OPTIONS": f"{log}:detect_leaks=1:leak_check_at_exit=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
        "TSAN_OPTIONS": f"{log}:die_after_fork=0:ignore_noninstrumented_modules=1:exitcode=0",
        "OPENBLAS_NUM_THREADS": "1",
    }


# pytest, then a search for leaks while Python still stands.
LEAKS = """
import ctypes, gc, os, sys, pytest
code = pytest.main(sys.argv[1:])
gc.collect()
sys.stdout.flush()
if "libasan" in os.environ["LD_PRELOAD"]:
    ctypes.CDLL(None).__lsan_do_recoverable_leak_check()
sys.exit(code)
"""


def reports(logs: Path) -> tuple[list[str], int]:
    """What the sanitizers wrote that has to do with our modules, and how much has not."""
    ours, others = [], 0
    for path in sorted(logs.iterdir()):
        text = path.read_text(errors="replace")
        for report in re.split(r"\n(?=(?:Direct|Indirect) leak|=+\n|WARNING: )|(?<=\n)(?=\S+: runtime error)", text):
            if not re.search(r"leak of|ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error", report):
                continue
            if OURS.search(report) or "runtime error" in report:
                ours.append(report)
            else:
                others += 1
    return ours, others


def python_tests(preset: str) -> bool:
    """Whether they pass and the sanitizer has nothing to say."""
    options = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")
    built = build(f"{preset}-python", *options)
    logs = built / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    left_out = [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in LEFT_OUT]
    tests = ["-m", "not slow", "-p", "no:cacheprovider", "-rs", *left_out, *TESTS[preset]]
    code = run(sys.executable, "-c", LEAKS, *tests, **environment(preset, package(built), logs))
    ours, others = reports(logs)
    print("".join(f"{report}\n" for report in ours) + f"{preset}: {len(ours)} reports on ovsw, {others} on others")
    return code == 0 and not ours


def stale() -> list[str]:
    """Entries of LEFT_OUT that name no test."""
    named = ((ROOT / entry.split("::")[0], entry.partition("::")[2]) for entry in LEFT_OUT)
    return [f"{file}::{test}" for file, test in named if not file.exists() or f"def {test}" not in file.read_text()]


def main() -> int:
    if missing := stale():
        sys.exit(f"sanitizers.py leaves out tests that do not exist: {', '.join(missing)}")
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("presets", nargs="*", metavar="preset", default=[], help="asan, tsan (default: both)")
    presets = p.parse_args().presets or list(TESTS)
    ok = True
    for preset in presets:
        start = time.monotonic()
        build(preset)
        ok &= run("ctest", "--preset", preset) == 0
        ok &= python_tests(preset)
        print(f"{preset}: {time.monotonic() - start:.0f} s", flush=True)
    print("left out under sanitizers (all run in `make test`):")
    for name, why in LEFT_OUT.items():
        print(f"  {name}: {why}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
