"""Results of ovsw-bench, made up."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ovsw.bench.context import Conditions, Context, State
from ovsw.bench.measure import Latency
from ovsw.bench.peers import REFERENCE
from ovsw.bench.result import Measurement, Network, Result, Skipped

from support import ROOT

NET = "cresnet20"
PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")
needs_onnx = pytest.mark.skipif(REFERENCE.missing() is not None, reason=str(REFERENCE.missing()))


STATE = State(None, 0.25, None, None, [], None)


def context_of(**more: Any) -> Context:
    about = Conditions("today", "Some CPU", "x86_64", 4, "Linux", None, None, "3", "2", "0", None, ["portable"])
    asked: dict[str, Any] = {"threads": 1, "batch": 1, "pinned": [], "repeat": 30, "min_time": 0.0, "isa": "portable"}
    return Context(**{**vars(about), **asked, "start": STATE, "end": STATE, "warnings": [], **more})


def rows_of(**milliseconds: float) -> list[Measurement]:
    """Rows with made-up times: engine_precision=ms; 2 % noise."""
    rng = np.random.default_rng(0)
    made: list[Measurement] = []
    bits = {"bit": ("1/1", "1-bit"), "fp32": ("32/32", "fp32"), "bf16": ("16/16", "bf16"), "int8": ("8/8", "int8")}
    for name, ms in milliseconds.items():
        engine, _, kind = name.partition("_")
        samples = ms * rng.normal(1.0, 0.02, 30)
        wa, precision = bits[kind]
        size = {"1/1": 2.807}.get(wa, 46.758)
        latency = Latency.of(samples.tolist())
        made.append(Measurement("resnet18", wa, engine, precision, "1", 1, 1, size, 5.0, "", latency, None))
    for row in made:
        row.ratio = row.latency_ms.over(made[0].latency_ms)
    return made


def result_of(rows: list[Measurement], skipped: list[Skipped] | None = None, **context: Any) -> Result:
    return Result(context_of(**context), {"resnet18": Network(11_689_512, False)}, rows, skipped or [])


def cells(text: str, start: str) -> list[list[str]]:
    return [re.split("  +", line.strip()) for line in text.splitlines() if line.startswith(start)]


def schema(made: dict[str, Any], rounds: int) -> None:
    for row in made["rows"]:
        ms, times = row["latency_ms"], row["ratio"]
        assert 0.0 < ms["p10"] <= ms["median"] <= ms["p90"]
        assert len(ms["samples"]) == rounds
        assert ms["median"] == pytest.approx(np.median(ms["samples"]), rel=1e-2)
        assert times["p10"] <= times["median"] <= times["p90"]
        assert row["threads"] == 1
        assert row["version"]
    assert {"cpu", "cores", "governor", "start", "end", "threads", "python", "numpy", "ovsw", "commit"} <= set(
        made["context"]
    )
