"""A pytest plugin that notes every test's outcome and seconds, one JSON line each, in the file $MUTATION_RECORD."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

spent: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent[report.nodeid] = spent.get(report.nodeid, 0.0) + report.duration
    ended = report.when == "teardown" or report.outcome == "failed"
    if ended:
        line = {"test": report.nodeid, "seconds": round(spent[report.nodeid], 3), "passed": report.outcome != "failed"}
        with Path(os.environ["MUTATION_RECORD"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
