"""Profile, scaling and the emulated figures of `ovsw-bench`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw.bench import emulate, profile, scaling
from ovsw.bench.random_nets import random_resnet

PIXELS = np.zeros((32, 32, 3), np.uint8)


# Profile and scaling, on a real network.


def test_profile_counts_work_bytes_and_ceilings() -> None:
    data = bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))
    found = json.loads(json.dumps(profile.profile(data, "portable", 1, PIXELS, rounds=1)))
    assert (found["isa"], found["threads"], found["rounds"]) == ("portable", 1, 1)
    names = [step["name"] for step in found["steps"]]
    assert names == ["input", *(op.name for op in bnn.from_bytes(data).ops)]
    steps = dict(zip(names, found["steps"]))
    layer = steps["layer2.1.conv1"]
    assert (layer["op"], layer["kernel"], layer["window"]) == ("bconv", "bits x bits", "3x3")
    assert layer["input"] == layer["output"] == [32, 16, 16]
    assert layer["macs"] == 32 * 32 * 9 * 256
    # Bits in and out (a word per pixel), shortcut and stream of 16 bits; weights of a word per tap, constants.
    constants = 32 * (4 + 4 + 1)
    assert layer["bytes"] == pytest.approx(2 * 256 * 8 + 2 * 256 * 32 * 2 + 32 * 9 * 8 + constants, abs=32 * 4)
    assert steps["input"]["bytes"] == 2 * 3 * 32 * 32
    assert steps["conv1"]["kernel"] == "u8 x i16"
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1.0)
    assert sum(step["ms"] for step in found["steps"]) == pytest.approx(found["total_ms"])
    copies = {c["bytes"]: c["gb_per_s"] for c in found["ceilings"]["copy"]}
    for step in found["steps"]:
        assert step["gmacs"] == pytest.approx(step["macs"] / step["ms"] / 1e6)
        peak = found["ceilings"]["gmacs"].get(f"{step['op']} {step['kernel']}", np.inf)
        ceiling = max(step["macs"] / peak, step["bytes"] / copies[1 << 17]) / 1e6  # ms; all steps are small ones
        assert step["ceiling_share"] == pytest.approx(ceiling / step["ms"])
    shown = profile.show(found)
    assert all(name in shown for name in names)
    assert f"{layer['gmacs']:.1f}" in shown
    binary = sum(step["ms"] for step in found["steps"] if step["op"] == "bconv")
    assert f"bconv bits x bits     18  {binary:.3f}" in shown


@pytest.mark.parametrize(
    ("numerics", "weights", "stem"),
    [("float", "int16", None), ("integer", "int8", "int16"), ("integer", "int16", "int8")],
)
def test_every_convolution_has_a_ceiling(numerics: str, weights: str, stem: str | None) -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics=numerics, weights=weights, stem=stem)
    found = profile.profile(bnn.to_bytes(model), None, 2, PIXELS, rounds=1)
    kinds = {f"{s['op']} {s['kernel']}" for s in found["steps"] if s["op"] in ("conv", "bconv")}
    assert len(kinds) == (2 if numerics == "float" else 3)
    assert kinds == set(found["ceilings"]["gmacs"])


def test_scaling_has_every_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where threads share the work evenly and a batch costs nothing extra."""

    def times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, np.ndarray]:
        for name, call in calls.items():
            assert call().shape == (int(name.split()[1]), 10)
        return {name: np.full(rounds, 12.0 * int(name.split()[1]) / int(name.split()[0])) for name in calls}

    monkeypatch.setattr(scaling, "cores", lambda: 3)
    monkeypatch.setattr(scaling, "interleaved", times)
    data = bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))
    found = json.loads(json.dumps(scaling.scaling(data, None, PIXELS, 2, "mine")))
    assert [(p["threads"], p["batch"]) for p in found["points"]] == [(t, b) for t in (1, 2, 3) for b in (1, 4, 16)]
    for p in found["points"]:
        assert p["ms_per_image"]["median"] == pytest.approx(12 / p["threads"])
        assert p["images_per_s"] == pytest.approx(p["threads"] * 1000 / 12)
        assert p["speedup"]["median"] == pytest.approx(p["threads"])
        assert f"{p['images_per_s']:.1f}" in scaling.show(found)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts(cores: int, counts: list[int]) -> None:
    assert scaling.thread_counts(cores) == counts


# Emulated figures.

COUNTS = [
    {"network": "resnet18", "engine": f"{engine} 1", "precision": precision, "cpu": cpu, "instructions": n * 1_000_000}
    | {"classes": {"vector": n * 900_000, "load": n * 100_000}, "vector": {}, "model ms": ms}
    for engine, precision, cpu, n, ms in (
        ("ovsw", "integer", "cortex-a76", 75, {"Apple M1": 5.0, "Pi 5 (A76)": 13.75}),
        ("ovsw", "integer", "cortex-a72", 89, {"Pi 4 (A72)": 46.4}),
        ("ncnn", "fp32", "cortex-a76", 239, {"Apple M1": 15.0, "Pi 5 (A76)": 40.1}),
        ("ncnn", "fp32", "cortex-a72", 240, {"Pi 4 (A72)": 127.2}),
    )
]


def rig(root: Path, program: str) -> None:
    """A checkout with a count.py of our own, set up."""
    (root / "tools" / "arm64").mkdir(parents=True)
    (root / "tools" / "arm64" / "count.py").write_text(program)
    for part in ("python", "marks.so", "icount.so", "site-peers"):
        (root / "build" / "arm64" / part).mkdir(parents=True)


def test_emulate_shows_counts_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import json, pathlib, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
assert options["cpu"] == "cortex-a76,cortex-a72" and options["network"] == "resnet18,a file.bnn", options
pathlib.Path(options["json"]).write_text({json.dumps(COUNTS)!r})
print("not to be seen")
"""
    rig(tmp_path, program)
    monkeypatch.setattr(emulate, "ROOT", tmp_path)
    found = emulate.emulate("cortex-a76", ["resnet18", "a file.bnn"])
    assert [r["instructions"] for r in found["rows"]] == [75_000_000, 89_000_000, 239_000_000, 240_000_000]
    counts, _, modelled = emulate.show(found).partition("MODEL, not measured")
    rows = [line.split() for line in counts.splitlines()]
    assert ["resnet18", "ovsw", "1", "integer", "cortex-a76", "75.0", "67.5", "7.5"] in rows
    assert "ms" not in counts
    assert ["resnet18", "ovsw", "integer", "5.0", "13.8", "46.4"] in [line.split() for line in modelled.splitlines()]
    assert ["resnet18", "ncnn", "fp32", "15.0", "40.1", "127.2"] in [line.split() for line in modelled.splitlines()]


def test_emulate_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="unknown CPU 'z80', known are cortex-a53"):
        emulate.emulate("z80", ["resnet18"])
    with pytest.raises(ValueError, match=r"in a checkout of ovsw only.*make count-arm64"):
        emulate.emulate("cortex-a76", ["resnet18"])
    rig(tmp_path, "raise SystemExit('no')")
    with pytest.raises(RuntimeError, match="exit code 1"):
        emulate.emulate("cortex-a76", ["resnet18"])
    (tmp_path / "build" / "arm64" / "marks.so").rmdir()
    with pytest.raises(ValueError, match="not set up; `make count-arm64`"):
        emulate.emulate("cortex-a76", ["resnet18"])
