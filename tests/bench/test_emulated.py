"""What is shown of counts from emulated ARM CPUs, with the counts themselves given."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from ovsw.bench import micro
from ovsw.bench.emulate import Counted, Emulated, show


def test_counts_of_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row per layer shape that takes as many instructions; no figure per MAC where there are no MACs."""
    about: dict[str, Any] = {"input": (3, 8, 8), "output": (4, 8, 8), "window": (3, 3)}
    steps = [
        {"op": "bconv", **about, "instructions": 640, "per_128_macs": 1.25},
        {"op": "bconv", **about, "instructions": 640, "per_128_macs": 1.25},
        {"op": "maxpool", **about, "instructions": 70, "per_128_macs": None},
    ]
    monkeypatch.setattr(micro, "counts", lambda *given: [{"network": "net", "engine": "ovsw arm_neon", "steps": steps}])
    args = argparse.Namespace(emulate="cortex-a53", networks=["net"], isa=None, stem="int8", json=False)
    assert micro._emulate(args) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("net ")]
    assert [(row[1], *row[-2:]) for row in rows] == [("bconv", "640", "1.25"), ("maxpool", "70", "-")]


def test_counts_of_networks() -> None:
    """Millions, flush right."""
    rows = [
        Counted("net", "ovsw arm_neon", "1-bit", "cortex-a53", 12_340_000, {"load": 1_000_000}, {"Pi 3": 2.5}),
        Counted("net", "ncnn", "fp32", "cortex-a53", 1_234_000_000, {"load": 56_000_000}, {"Pi 3": 250.04}),
    ]
    lines = show(Emulated("cortex-a53", rows)).splitlines()
    found = [line for line in lines if line.startswith("net ")]
    assert [line.split()[-2:] for line in found[:2]] == [["12.3", "1.0"], ["1234.0", "56.0"]]
    assert [line.split()[-1] for line in found[2:]] == ["2.5", "250.0"]
    assert len({len(line) for line in found[:2]}) == len({len(line) for line in found[2:]}) == 1
    assert found[0].endswith("   1.0")
