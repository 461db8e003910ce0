"""Results of ovsw-bench as dicts, made up."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ovsw.bench import measure
from ovsw.bench.peers import REFERENCE

from support import ROOT

NET = "cresnet20"
PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")
needs_onnx = pytest.mark.skipif(REFERENCE.missing() is not None, reason=str(REFERENCE.missing()))


def rows_of(**milliseconds: float) -> list[dict[str, Any]]:
    """Rows with made-up times: engine_precision=ms; 2 % noise."""
    rng = np.random.default_rng(0)
    made: list[dict[str, Any]] = []
    bits = {"bit": ("1/1", "1-bit"), "fp32": ("32/32", "fp32"), "bf16": ("16/16", "bf16"), "int8": ("8/8", "int8")}
    for name, ms in milliseconds.items():
        engine, _, kind = name.partition("_")
        samples = ms * rng.normal(1.0, 0.02, 30)
        row = {"network": "resnet18", "wa": bits[kind][0], "engine": engine, "precision": bits[kind][1], "version": "1"}
        row.update(threads=1, batch=1, size_mb={"1/1": 2.807}.get(row["wa"], 46.758), file_mb=5.0, check="")
        row.update(latency_ms={**measure.spread(samples), "samples": samples.tolist()})
        made.append(row)
    base = made[0]["latency_ms"]["samples"]
    for row in made:
        row["ratio"] = measure.ratio(row["latency_ms"]["samples"], base)
    return made


def result_of(rows: list[dict[str, Any]], skipped: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    networks = {"resnet18": {"parameters": 11_689_512, "own": False}}
    return {"context": {"repeat": 30}, "networks": networks, "rows": rows, "skipped": skipped or []}


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
