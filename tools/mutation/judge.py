"""Finds out whether a test notices a mutant.

The chosen tests run in a child of a process that has loaded torch and the like, but nothing of this project. A
child has a limit of CPU seconds, which only a hang reaches, and is stopped at the first failure.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from mutation.trees import environment

PRELOADED = ["numpy", "torch", "torch.export", "torch.onnx", "onnx", "onnxscript", "PIL.Image", "matplotlib.pyplot"]

PATIENCE = 300  # seconds in which no process of a test run wants the CPU
SLACK = 30  # CPU seconds beyond twice the estimate that only what hangs needs


def cpu_seconds() -> float:
    """What all child processes so far have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def preload() -> None:
    """Once, before the first child: what every test module would load."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "ovsw" not in sys.modules
    gc.collect()
    gc.freeze()  # the children's collections need not look at all this again


class Chosen:
    """A plug-in for pytest: keeps the chosen tests, in their order, and notes how each of them ended."""

    def __init__(self, tests: Sequence[str], report: Path) -> None:
        self.rank = {test: i for i, test in enumerate(tests)}
        self.report = report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.note(failed=report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note(failed=f"collection of {report.nodeid}")

    def note(self, **what: str) -> None:
        with self.report.open("a") as file:
            file.write(json.dumps(what) + "\n")


def run_tests(tree: Path, tests: Sequence[str], estimate: float) -> tuple[str, int]:
    """The first test of a copy that fails, or what ended the process, or nothing; and how many were started.

    `estimate` is what they take together when nothing is wrong, in seconds.
    """
    report = tree.parent / f"{tree.name}.report"
    report.write_text("")
    child = os.fork()
    if child == 0:
        status = 3
        try:
            status = in_child(tree, tests, report, cpu=int(SLACK + 2 * estimate))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = wait(child, PATIENCE)
    notes = [json.loads(line) for line in report.read_text().splitlines()]
    started = [note["started"] for note in notes if "started" in note]
    failed = [note["failed"] for note in notes if "failed" in note]
    by = failed[0] if failed else ""
    if not by and os.WIFSIGNALED(status):
        by = f"{started[-1] if started else 'collection'} ({signal.Signals(os.WTERMSIG(status)).name})"
    elif not by and os.WEXITSTATUS(status) not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        if not started:
            raise RuntimeError(f"pytest did not start: {report.with_suffix('.log').read_text()[-2000:]}")
        by = f"{started[-1]} (exit {os.WEXITSTATUS(status)})"
    return by, len(started)


def in_child(tree: Path, tests: Sequence[str], report: Path, cpu: int) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tree)
    os.environ.update(environment(tree))
    sys.path[:0] = [str(tree / "python")]
    log = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    modules = list(dict.fromkeys(test.split("::")[0] for test in tests))
    options = ["-x", "--assert=plain"]  # rewriting assertions would take longer than most tests
    options += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    return int(pytest.main([*options, *modules], plugins=[Chosen(tests, report)]))


def wait(child: int, patience: float) -> int:
    """The status of a child. If for so many seconds all its processes wait, for what never comes, they are killed."""
    pause, since, looked = 0.02, time.monotonic(), time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if not pid and time.monotonic() - looked > 5:
            looked = time.monotonic()
            since = looked if awake(child) else since
        if not pid and time.monotonic() - since > patience:
            os.killpg(child, signal.SIGKILL)
            pid, status = os.waitpid(child, 0)
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what it has left behind
            return status
        time.sleep(pause)
        pause = min(pause * 1.2, 0.3)


def awake(session: int) -> bool:
    """Whether a process of the session runs, or would if the machine had time for it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, leader = path.read_text().rpartition(")")[2].split()[:4]
            if int(leader) == session and state in "RD":
                return True
    return False


def in_order(tests: Iterable[str], seconds: dict[str, float], budget: float) -> list[list[str]]:
    """Batches: the quickest of the two quickest modules, three of every module, then the others, module by module."""
    modules: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: seconds[test]):
        modules[test.split("::")[0]].append(test)
    batches, taken = [], set()
    for most, each, share in ((2, 6, budget / 8), (len(modules), 3, budget / 2), (len(modules), 10**6, budget)):
        left = [[test for test in group if test not in taken] for group in modules.values()]
        left = sorted((group for group in left if group), key=lambda group: sum(seconds[test] for test in group[:each]))
        batch = within(left[:most], each, seconds, share)
        taken |= set(batch)
        batches.append(batch)
    return [batch for batch in batches if batch]


def within(groups: list[list[str]], each: int, seconds: dict[str, float], budget: float) -> list[str]:
    taken, spent = [], 0.0
    for group in groups:
        for test in group[:each]:
            if spent + seconds[test] <= budget or not taken:
                taken.append(test)
                spent += seconds[test]
    return taken
