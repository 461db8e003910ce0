"""`ovsw doctor`: the facts about a machine and an installation that a bug report needs, and a self-test of the engine.

It must work where nothing else does: whatever cannot be imported or computed becomes a line of the report.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ovsw._version import __version__
from ovsw.commands.base import FAILED, command, message
from ovsw.util.text import table, visible

PACKAGES = ("numpy", "Pillow", "torch", "onnx", "onnxruntime", "matplotlib", "tqdm", "tensorboard")
VARIABLES = {"OVSW_ISA": "kernel table of engines", "OVSW_NATIVE": "0: train with PyTorch's operators alone"}
_REINSTALL = "pip install --force-reinstall ovsw"


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print everything as JSON")


@command(
    "ovsw doctor",
    "Check this machine and this installation: every kernel table must give a trained network's exact logits. "
    "The exit code is 1 if anything is wrong. Paste the output into bug reports.",
    options,
    examples=("", "--json > report.json"),
)
def main(args: argparse.Namespace) -> int:
    report = examine()
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return FAILED if report["problems"] else 0


def examine() -> dict[str, Any]:
    """The report; each of its `problems` says what to do."""
    problems: list[dict[str, str]] = []
    report: dict[str, Any] = {
        "ovsw": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_mb": _memory(),
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith("OVSW_")},
        "cpu": platform.processor() or platform.machine(),
        "features": [],
        "isa": None,
        "tables": [],
        "problems": problems,
    }
    try:
        from ovsw import cpu, zoo
    except Exception as e:
        problems.append(_problem(f"the engine cannot be loaded: {type(e).__name__}: {message(e)}", _REINSTALL))
        return report
    report.update(cpu=cpu.name(), features=cpu.features())
    if cpu.build_version() != __version__:
        problems.append(_problem(f"the compiled module is of version {cpu.build_version()}", _REINSTALL))
    try:
        report["isa"] = cpu.chosen_isa()
    except ValueError as e:
        problems.append(_problem(str(e), "unset OVSW_ISA"))
    for isa, supported in cpu.isas().items():
        began = time.perf_counter()
        problem = _self_test(isa, zoo.names) if supported else ""
        row = {"name": isa, "supported": supported, "chosen": isa == report["isa"]}
        row.update(works=not problem if supported else None, seconds=round(time.perf_counter() - began, 3))
        report["tables"].append(row)
        if problem:
            problems.append(_problem(problem, ""))
    _advise(report)
    return report


def _self_test(isa: str, names: Callable[[], list[str]]) -> str:
    """Runs every network of the zoo on a kernel table, with one and two threads; returns what is wrong, or ""."""
    from ovsw import zoo

    try:
        for name in names():
            zoo.check(name, isa=isa)
            one, two = (zoo.load(name, isa=isa, threads=threads) for threads in (1, 2))
            image = next(iter(zoo.pictures().values()))
            if one.run(image).tobytes() != two.run(image).tobytes():
                raise ValueError(f"{name}: its logits on two threads differ from those on one")
    except Exception as e:
        return f"{isa}: {message(e)}"
    return ""


def _advise(report: dict[str, Any]) -> None:
    """Adds advice about tables that do not work."""
    good = [row["name"] for row in report["tables"] if row["works"]]
    for problem in report["problems"]:
        way_out = f"set OVSW_ISA={good[0]}, which works" if good else _REINSTALL
        problem["do"] = problem["do"] or f"{way_out}, and report this"


def _problem(what: str, do: str) -> dict[str, str]:
    return {"what": visible(what), "do": do}


def _version(package: str) -> str | None:
    """The version that is installed, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> dict[str, int | None]:
    """In MB: the machine's memory, how much is free, and the limit of the container."""
    total = available = limit = None
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        sizes = {words[0].rstrip(":"): int(words[1]) // 1000 for words in lines}
        total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    except (OSError, ValueError):
        if "SC_PHYS_PAGES" in os.sysconf_names:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    with contextlib.suppress(OSError, ValueError):  # not here, or "max"
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")) // 1_000_000
    return {"total": total, "available": available, "limit": limit}


def _text(report: dict[str, Any]) -> str:
    packages = [f"{name} {version}" for name, version in report["packages"].items() if version]
    absent = [name for name, version in report["packages"].items() if not version]
    memory = {key: f"{size:,} MB {key}" for key, size in report["memory_mb"].items() if size is not None}
    known = [f"{key}={value}" for key, value in report["environment"].items()]
    unread = [key for key in report["environment"] if key not in VARIABLES]
    lines = [
        ("ovsw", f"{report['ovsw']}, {report['python']} ({report['executable']})"),
        ("packages", ", ".join(packages)),
        ("not here", ", ".join(absent) or "-"),
        ("platform", report["platform"]),
        ("cpu", f"{report['cpu']}, {report['usable_cores']} of {report['cores']} cores"),
        ("features", " ".join(report["features"]) or "-"),
        ("memory", ", ".join(memory.values()) or "-"),
        ("variables", ", ".join(known) + (f" (not read: {', '.join(unread)})" if unread else "") if known else "-"),
    ]
    rows = [
        (t["name"], "yes" if t["supported"] else "no", "yes" if t["chosen"] else "-")
        + ("-" if t["works"] is None else "right" if t["works"] else "WRONG", f"{t['seconds']:.2f}")
        for t in report["tables"]
    ]
    parts = ["\n".join(f"{key:<9}  {visible(value)}" for key, value in lines)]
    if rows:
        parts.append(table(("table", "supported", "chosen", "self-test", "seconds"), rows, right=(4,)))
    problems = [f"problem: {p['what']}\n  to do: {p['do']}" for p in report["problems"]]
    return "\n\n".join([*parts, "\n".join(problems) or "all is well"])
