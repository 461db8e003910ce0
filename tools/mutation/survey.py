"""Which tests run which line, and how long each takes: one run of the suite under coverage, in a copy of the tree.

What tests start as processes is measured too: pytest names the running test in the environment, and coverage takes it
from there as the context.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from coverage import CoverageData

from mutation.trees import environment

CONFIG = """[run]
include =
    {tree}/python/*
    {tree}/export/*
    {tree}/bench/*
context = ${{PYTEST_CURRENT_TEST-}}
patch = subprocess
parallel = true
data_file = {data}
disable_warnings = no-data-collected, module-not-measured
"""
# It builds a wheel and a venv: minutes that say nothing of a single line.
LEFT_OUT = "tests/test_structure.py::test_wheel_works_without_torch"


class Survey:
    """Tests with their seconds, and for each file the tests that run each line."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        for record in sorted(folder.glob("record*.jsonl")):
            for line in record.read_text().splitlines():
                test = json.loads(line)
                self.seconds[test["test"]] = test["seconds"]
                if not test["passed"]:
                    self.failed.add(test["test"])
        for test in self.failed:
            self.seconds.pop(test, None)
        self.data = []
        for path in sorted(folder.glob("coverage*")):
            data = CoverageData(basename=str(path))
            data.read()
            self.data.append(data)
        self._lines: dict[str, dict[int, set[str]]] = {}

    def lines(self, name: str) -> dict[int, set[str]]:
        """Line -> tests, of a file of the repository."""
        if name not in self._lines:
            tests_of: dict[int, set[str]] = defaultdict(set)
            for data in self.data:
                for path in data.measured_files():
                    if inside(path) == name:
                        for line, contexts in data.contexts_by_lineno(path).items():
                            tests_of[line] |= {test for test in map(test_of, contexts) if test in self.seconds}
            self._lines[name] = dict(tests_of)
        return self._lines[name]

    def tests_of(self, name: str, first: int, last: int) -> set[str]:
        """Those that run one of the lines; if it is run at import only, those that run the file at all."""
        lines = self.lines(name)
        tests = set().union(*(lines.get(line, set()) for line in range(first, last + 1)))
        return tests or set().union(*lines.values())


def test_of(context: str) -> str:
    """The test that a context of coverage names: `test|run`, or of a process that it started, `test (call)`."""
    parts = [part for part in context.split("|") if "::" in part]
    return parts[-1].removesuffix(" (call)").removesuffix(" (setup)").removesuffix(" (teardown)") if parts else ""


def inside(path: str) -> str:
    """The path in the repository of a file in the copy, links resolved."""
    name = re.sub(r".*/build/mutation/[^/]+/", "", str(Path(path).resolve()))
    return name.removeprefix("python/ovsw/") if name.startswith(("python/ovsw/export/", "python/ovsw/bench/")) else name


def run(tree: Path, folder: Path) -> None:
    """Runs the suite once; takes twice as long as `make test` on one core."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config"
    config.write_text(CONFIG.format(tree=tree, data=folder / "coverage"))
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", "-p", "mutation.record"]
    command += ["--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=", "--deselect", LEFT_OUT]
    variables = environment(tree)
    variables["PYTHONPATH"] += f":{Path(__file__).parents[1]}"
    variables["MUTATION_RECORD"] = str(folder / "record.jsonl")
    subprocess.run(command, cwd=tree, env=variables, check=False)
