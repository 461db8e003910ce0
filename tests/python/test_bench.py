"""`ovsw-bench`: what is timed and in which order, the tables, the context, comparisons, and the whole command.

No test depends on how long anything takes: clocks and samples are made up, or only counted.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn
from ovsw.bench import cli, compare, context, measure, memory, table
from ovsw.bench.entries import ours
from ovsw.bench.peers import REFERENCE, Peer, Runner
from ovsw.bench.random_nets import random_resnet

from conftest import ROOT

NET = "cresnet20"
PHOTO = str(ROOT / "bench" / "data" / "cat.jpg")
needs_onnx = pytest.mark.skipif(REFERENCE.missing() is not None, reason=str(REFERENCE.missing()))


class Clock:
    """Stands still but for what calls add."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def engine(self, name: str, seconds: float) -> Callable[[], object]:
        def call() -> None:
            self.calls.append(name)
            self.now += seconds

        return call


def test_rounds_are_interleaved() -> None:
    clock = Clock()
    times: dict[str, list[float]] = {}
    calls = {name: clock.engine(name, seconds) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    seen: list[float] = []
    assert measure.interleave(calls, times, 3, progress=seen.append, clock=clock) == {}
    assert "".join(clock.calls) == "abc" + 3 * "aabbcc"  # warm up; then one call to warm the caches, one that counts
    assert times == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_rounds_go_on_until_each_has_its_time() -> None:
    clock = Clock()
    times: dict[str, list[float]] = {}
    calls = {"fast": clock.engine("fast", 0.25), "slow": clock.engine("slow", 10.0)}
    measure.interleave(calls, times, 2, seconds=1.5, clock=clock)
    assert [len(t) for t in times.values()] == [6, 6]


def test_a_call_may_time_itself_and_one_that_raises_is_dropped() -> None:
    clock = Clock()
    times: dict[str, list[float]] = {}
    left = iter(range(4))
    calls = {"a": clock.engine("a", 1.0), "own": lambda: 0.5, "dies": lambda: (clock.engine("d", 1.0)(), next(left))}
    broken = measure.interleave(calls, times, 5, clock=clock)
    assert list(broken) == ["dies"]
    assert isinstance(broken["dies"], StopIteration)
    assert times == {"a": [1.0] * 5, "own": [0.5] * 5}
    with pytest.raises(ZeroDivisionError):
        measure.interleaved({"x": lambda: 1 / 0 > 0}, 2)


def test_ctrl_c_leaves_what_was_timed() -> None:
    clock = Clock()
    times: dict[str, list[float]] = {}

    def second() -> None:
        clock.engine("b", 1.0)()
        if clock.calls.count("b") == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.interleave({"a": clock.engine("a", 1.0), "b": second}, times, 9, clock=clock)
    assert {name: len(t) for name, t in times.items()} == {"a": 3, "b": 2}
    assert measure.ratio(times["a"], times["b"])["median"] == 1.0  # of the rounds that both have


def test_spreads() -> None:
    found = measure.spread(np.arange(1.0, 12.0))
    assert found == {"p10": 2.0, "median": 6.0, "p90": 10.0}
    assert measure.ratio([2.0, 6.0, 8.0], [1.0, 2.0, 2.0])["median"] == 3.0
    low, high, wide = ({"p10": a, "p90": b} for a, b in ((1, 2), (2.1, 3), (1.9, 9)))
    assert measure.apart(low, high)
    assert measure.apart(high, low)
    assert not measure.apart(low, wide)
    assert not measure.apart(high, wide)


@needs_onnx
@pytest.mark.parametrize(("network", "sizes"), [("resnet18", (46.76, 23.38)), ("resnet34", (87.19, 43.60))])
def test_sizes_are_the_papers(network: str, sizes: tuple[float, float]) -> None:
    parameters = cli._parameters(network)
    assert parameters is not None
    assert tuple(round(parameters * bytes_each / 1e6, 2) for bytes_each in (4, 2)) == sizes
    torch = pytest.importorskip("torch")
    from ovsw.nn.float_resnet import float_network

    with torch.device("meta"):
        assert parameters == sum(p.numel() for p in float_network(network).parameters())


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


def test_deployment_table() -> None:
    """The fastest float engine stands in 32/32, even where it does not flatter us, and int8 in the other table only."""
    rows = rows_of(ovsw_bit=4.0, slow_fp32=40.0, fast_fp32=20.0, quick_int8=5.0)
    why = [{"peer": "openvino-bf16", "network": None, "why": "no bf16 on this CPU"}]
    why += [{"peer": "ncnn-fp16", "network": None, "why": "ncnn not installed"}]
    made = result_of(rows, why)
    shown = table.text(made, paper=False)
    full, half, one = cells(shown, "ResNet18")[:3]
    assert full[1:5] == ["32/32", "46.76", "5.00", "-"]
    assert full[-2:] == ["-", "fast fp32"]
    assert half == ["ResNet18", "16/16", "23.38", *["-"] * 5, "openvino-bf16: no bf16 on this CPU"]
    assert one[1:5] == ["1/1", "2.81", "5.00", "16.66x"]
    assert float(one[-2][:-1]) == pytest.approx(5.0, rel=0.02)
    assert [c[1] for c in cells(shown, "ResNet18")[3:]] == ["ovsw", "quick", "fast", "slow"]
    marked = table.markdown(made, paper=True)
    assert "| ResNet18 | 1/1 | 2.81 | - | 16.64x | 7.97 | - | 3.47x | paper: M1 Pro, BOLT |" in marked
    assert "ResNet34" not in marked
    assert {line.count("|") for line in marked.splitlines() if line.startswith("|")} == {10, 12}


def test_ratios_that_overlap_are_not_called() -> None:
    rows = rows_of(ovsw_bit=19.8, other_fp32=20.0, half_bf16=20.2)
    shown = table.text(result_of(rows), paper=False)
    _, half, one = cells(shown, "ResNet18")[:3]
    assert half[-2] == one[-2] == "unclear"
    assert sum("unclear" in line for line in shown.splitlines()) == 4
    assert "half bf16" in half[-1]


def test_reasons_for_a_dash() -> None:
    missing = [{"peer": f"{e}-fp32", "network": None, "why": f"{e} not installed"} for e in ("onnxruntime", "ncnn")]
    shown = table.text(result_of(rows_of(ovsw_bit=4.0), missing), paper=False)
    full, half, one = cells(shown, "ResNet18")[:3]
    assert full[-1] == "no engine for it is installed (onnxruntime, ncnn)"
    assert half[-1] == "not measured"
    assert one[-2] == "-"


def files(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_context_of_a_pi(tmp_path: Path) -> None:
    cpu, zone = "sys__devices__system__cpu__cpu0__cpufreq__", "sys__class__thermal__thermal_zone0__"
    files(
        tmp_path,
        proc__cpuinfo="processor : 0\nCPU part : 0xd0b\n\nModel : Raspberry Pi 5 Model B Rev 1.0\n",
        **{f"{cpu}scaling_cur_freq": "1500000\n", f"{cpu}cpuinfo_max_freq": "2400000\n"},
        **{f"{cpu}scaling_governor": "powersave\n", f"{zone}type": "cpu-thermal\n", f"{zone}temp": "81500\n"},
        **{f"{zone}trip_point_0_type": "critical\n", f"{zone}trip_point_0_temp": "110000\n"},
        **{f"{zone}trip_point_1_type": "active\n", f"{zone}trip_point_1_temp": "50000\n"},
        **{f"{zone}trip_point_2_type": "passive\n", f"{zone}trip_point_2_temp": "85000\n"},
    )
    said = {"get_throttled": "throttled=0x50004", "measure_temp": "temp=81.0'C"}
    machine = context.Machine(tmp_path, lambda command: said.get(command[-1], ""), "Linux")
    about, state = machine.about(), machine.state()
    assert about["cpu"] == "Raspberry Pi 5 Model B Rev 1.0"
    assert (about["clock_max_mhz"], about["governor"]) == (2400, "powersave")
    assert (state["clock_mhz"], state["temperature_c"], state["trip_c"]) == (1500, 81.5, 85.0)
    assert state["throttled"] == ["it is throttled", "under-voltage (since boot, not now)"]
    found = context.warnings({**about, "cores": 4}, {**state, "load": 3.0}, {**state, "load": 9.0})
    assert len(found) == 5
    for words, line in zip(("powersave", "load was 3.0", "it is throttled", "since boot", "throttles at 85"), found):
        assert words in line


def test_context_of_a_mac(tmp_path: Path) -> None:
    answers = {"machdep.cpu.brand_string": "Apple M1 Pro", "therm": "CPU_Scheduler_Limit = 100\nCPU_Speed_Limit = 70"}
    machine = context.Machine(tmp_path, lambda command: answers.get(command[-1], ""), "Darwin")
    about, state = machine.about(), machine.state()
    assert about["cpu"] == "Apple M1 Pro"
    assert state["throttled"] == ["its speed is limited to 70 %"]
    assert state["clock_mhz"] is None
    assert "70 %" in context.warnings({**about, "cores": 8}, {**state, "load": 0.1})[0]


def test_context_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    machine = context.Machine(tmp_path, lambda command: "", "Linux")
    about, state = machine.about(), {**machine.state(), "load": None}
    assert about["cpu"]
    assert {key for key, value in state.items() if value not in (None, [])} == set()
    assert context.warnings(about, state, state) == []
    asked = {"threads": 1, "batch": 8, "pinned": [], "repeat": 5, "min_time": 0.0, "isa": "portable", "date": "today"}
    shown = {**about, **context.versions(), **asked, "start": state, "warnings": [], "interrupted": False}
    assert "batch 8, times are per image" in context.head(shown)


def test_context_here(tmp_path: Path) -> None:
    state = context.Machine().state()
    assert context.Machine().about()["cpu"]
    files(tmp_path, sys__devices__system__cpu__cpu0__thermal_throttle__core_throttle_count="3\n")
    files(tmp_path, sys__devices__system__cpu__cpu1__thermal_throttle__core_throttle_count="4\n")
    quiet = {**state, "load": 0.0, "throttled": [], "trip_c": None}
    later = {**quiet, "throttle_count": context.Machine(tmp_path).throttle_count()}
    assert later["throttle_count"] == 7
    about = {"governor": None, "cores": 4}
    assert context.warnings(about, {**quiet, "throttle_count": 6}, later) == ["the CPU was throttled during the run"]
    assert context.warnings(about, {**quiet, "throttle_count": 7}, later) == []
    assert context.ask(["no-such-command-here"]) == context.ask(["false"]) == ""


def test_commit(tmp_path: Path) -> None:
    """That of a checkout, not that of whatever an installed package lies in."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    (tmp_path / "__init__.py").write_text("")
    assert context.commit(tmp_path) is None
    subprocess.run([*git, "init", "-q"], check=True)
    assert context.commit(tmp_path) is None
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    made = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    found = context.commit(tmp_path)
    assert found
    assert made.startswith(found)
    (tmp_path / "__init__.py").write_text("x = 1")
    assert context.commit(tmp_path) == f"{found}-dirty"


def run_of(rng: np.random.Generator, mood: float, **milliseconds: float) -> dict[str, Any]:
    """A run's result with noise as machines have it: a mood for all, one for each row, drift, and spikes."""
    rows = rows_of(**milliseconds)
    for row in rows:
        ms = mood * milliseconds[f"{row['engine']}_{row['precision'].replace('1-', '')}"]
        samples = ms * rng.normal(1.0, 0.02) * np.linspace(1.0, rng.uniform(0.95, 1.05), 60)
        samples *= rng.normal(1.0, 0.02, 60) * np.where(rng.random(60) < 0.05, rng.uniform(1.5, 4.0, 60), 1.0)
        row["latency_ms"] = {**measure.spread(samples), "samples": samples.tolist()}
    return result_of(rows)


def test_compare_calls_noise_no_change_and_a_change_one() -> None:
    rng = np.random.default_rng(1)
    figures = {"ovsw_bit": 3.5, "ort_fp32": 24.0, "vino_fp32": 24.5, "vino_int8": 7.0, "ncnn_fp32": 32.0}
    for _ in range(200):
        a, b = (run_of(rng, rng.uniform(0.85, 1.15), **figures) for _ in "ab")
        verdicts = [row["verdict"] for row in compare.verdicts(a, b)]
        assert not {"faster", "slower"} & set(verdicts), verdicts
        c = run_of(rng, rng.uniform(0.85, 1.15), **{**figures, "ovsw_bit": 7.0})
        found = {row["key"][1:3]: row["verdict"] for row in compare.verdicts(a, c)}
        assert found.pop(("ovsw", "1-bit")) == "slower"
        assert not {"faster", "slower"} & set(found.values())
        assert compare.verdicts(c, a)[0]["verdict"] == "faster"
    alone = [run_of(rng, 1.0, ovsw_bit=ms) for ms in (3.5, 3.5, 4.5)]
    assert [compare.verdicts(alone[0], other)[0]["verdict"] for other in alone[1:]] == ["same", "slower"]


def test_compare_verdicts() -> None:
    rng = np.random.default_rng(0)

    def one(**figures: tuple[float, float]) -> dict[str, Any]:
        """From medians and how far samples are from them, as a share."""
        rows = rows_of(**dict.fromkeys(figures, 1.0))
        for row, (mid, width) in zip(rows, figures.values()):
            samples = rng.permutation(mid * (1.0 + width * np.linspace(-1.0, 1.0, 60)))
            row["latency_ms"] = {**measure.spread(samples), "samples": samples.tolist()}
        return result_of(rows)

    base = one(a_fp32=(10, 0.1), b_fp32=(10, 0.1), c_fp32=(10, 0.1))
    cases = {"same": (10.9, 0.01), "unclear": (13, 0.6), "slower": (13, 0.1), "faster": (6, 0.3)}
    for verdict, figures in cases.items():
        after = one(a_fp32=figures, b_fp32=(10, 0.1), c_fp32=(10, 0.1))
        assert [row["verdict"] for row in compare.verdicts(base, after)] == [verdict, "same", "same"]
    mood = one(a_fp32=(13, 0.1), b_fp32=(13, 0.1), c_fp32=(12.5, 0.1))  # all alike: the machine's
    assert {row["verdict"] for row in compare.verdicts(base, mood)} == {"unclear"}
    drift = one(a_fp32=(13, 0.1), b_fp32=(10, 0.1), c_fp32=(10, 0.1))
    drift["rows"][0]["latency_ms"]["samples"][-10:] = [10.0] * 10  # was as fast as before at the end
    assert compare.verdicts(base, drift)[0]["verdict"] == "unclear"
    other = one(a_fp32=(10, 0.1), d_fp32=(10, 0.1))
    assert [r["verdict"] for r in compare.verdicts(base, other)] == ["same", "only in A", "only in A", "only in B"]


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = result_of(rows_of(ovsw_bit=4.0, x_fp32=20.0)), result_of(rows_of(ovsw_bit=8.0, x_fp32=20.0))
    a["context"].update(cpu="one", threads=1, isa="x86_avx2", date="yesterday")
    b["context"].update(cpu="one", threads=1, isa="portable", date="today")
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "bad.json")]
    for path, made in zip(paths, (a, b, {"rows": [{}]})):
        Path(path).write_text(json.dumps(made))
    assert cli.main(["compare", *paths[:2]]) == 0
    shown = capsys.readouterr()
    assert cells(shown.out, "resnet18")[0][-1] == "slower"
    assert "1 of 2 rows changed" in shown.out
    assert shown.err == "warning: isa differs: x86_avx2 in A, portable in B\n"
    assert cli.main(["compare", *paths[:2], "--fail-on-change"]) == 1
    assert cli.main(["compare", paths[0], paths[0], "--fail-on-change"]) == 0
    capsys.readouterr()
    for second in (paths[2], str(tmp_path / "none.json"), PHOTO):
        assert cli.main(["compare", paths[0], second]) == 2
        error = capsys.readouterr().err
        assert second in error
        assert len(error.splitlines()) == 1


def test_memory(tmp_path: Path) -> None:
    """The peak of the process itself, even if a large one has started it."""
    held = np.ones(400_000_000, np.uint8)
    path = tmp_path / "net.bnn"
    bnn.write(random_resnet("resnet34", numerics="integer"), path)
    entry, _ = ours("resnet34", path, 1, "portable", None, 1, None)
    bare, peak = memory.baseline_mb(), memory.peak_mb(entry)
    assert bare is not None
    assert peak is not None
    assert 10.0 < bare < 200.0
    assert bare + path.stat().st_size / 1e6 < peak < 300.0
    assert held[0] == 1
    path.write_bytes(b"no network")
    assert memory.peak_mb(entry) is None


def test_ours_is_engine_run_on_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.bnn"
    bnn.write(random_resnet(NET, numerics="integer"), path)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(Engine, "run", lambda self, image: seen.append(image))
    for batch, shape in ((1, (32, 32, 3)), (3, (3, 32, 32, 3))):
        for image in (None, PHOTO):
            entry, given = ours("mine", path, 1, "portable", image, batch, None)
            entry.call()
            assert seen[-1].dtype == np.uint8
            assert seen[-1].shape == shape
            assert entry.batch == batch
            row = entry.row(None)
            assert (row["engine"], row["isa"], row["wa"]) == ("ovsw", "portable", "1/1")
            assert row["size_mb"] == row["file_mb"] == path.stat().st_size / 1e6
    model = bnn.read(path)
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    expected = (seen[-1][0] / 255.0 - mean) / std
    np.testing.assert_allclose(given.normalised[0].transpose(1, 2, 0), expected, rtol=1e-5, atol=1e-6)


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


@needs_onnx
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.md"
    args = ["--arch", NET, "--peers", "onnxruntime,larq", "--quick", "--json", str(out), "--markdown", str(page)]
    assert cli.main([*args, "--isa", "portable"]) == 0
    shown = capsys.readouterr()
    made = json.loads(out.read_text())
    schema(made, cli.QUICK_REPEAT)
    assert {(r["engine"], r["precision"], r["wa"], r["batch"]) for r in made["rows"]} == {
        ("ovsw", "1-bit", "1/1", 1),
        ("onnxruntime", "fp32", "32/32", 1),
        ("onnxruntime", "int8", "8/8", 1),
    }
    ours = made["rows"][0]
    assert (ours["isa"], ours["ratio"]["median"]) == ("portable", 1.0)
    assert ours["file_mb"] == len(bnn.to_bytes(random_resnet(NET, numerics="integer"))) / 1e6
    assert [s["peer"] for s in made["skipped"]] == ["larq-1-bit"]
    assert shown.err == "not installed: larq-1-bit\n"
    assert [c[1] for c in cells(shown.out, "cResNet20")][:3] == ["32/32", "16/16", "1/1"]
    assert "kernels portable" in shown.out
    assert "| cResNet20 | 1/1 |" in page.read_text()
    assert cli.main(["compare", str(out), str(out)]) == 0
    assert "0 of 3 rows changed" in capsys.readouterr().out


def test_command_with_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is compared with the network that it has the shape of, the other stands alone."""
    paths = [str(tmp_path / name) for name in ("mine.bnn", "small.bnn", "out.json", "page.html", "table.png")]
    bnn.write(random_resnet(NET, seed=3, numerics="float"), paths[0])
    bnn.write(random_resnet("resnet18", num_classes=10, size=32), paths[1])
    args = ["--arch", NET, "--peers", "none", "--quick", "--memory", "--batch", "2", "--image", PHOTO]
    args += ["--profile", "--scaling", "--html", paths[3], "--plot", paths[4]]
    assert cli.main([*args, "--model", *paths[:2], "--json", paths[2]]) == 0
    made = json.loads(Path(paths[2]).read_text())
    schema(made, cli.QUICK_REPEAT)
    assert [(r["network"], r.get("like"), r["batch"]) for r in made["rows"]] == [
        (NET, None, 2),
        (paths[0], NET, 2),
        (paths[1], None, 2),
    ]
    assert all(r["memory_mb"] > made["memory"]["baseline_mb"] for r in made["rows"])
    shown = capsys.readouterr().out
    for part in ("profile", "scaling"):
        assert list(made[part]) == [NET, *paths[:2]]
    for network, steps in ((NET, "layer3.2.conv2"), (paths[1], "layer4.1.conv2")):
        assert f"\n{network}: " in shown
        assert steps in [s["name"] for s in made["profile"][network]["steps"]]
        assert f"Where the time goes: {network}" in Path(paths[3]).read_text()
    assert Path(paths[4]).read_bytes()[:4] == b"\x89PNG"
    assert "times are per image" in shown
    for path in paths[:2]:
        assert cells(shown, path)[0][1:3] == ["1/1", f"{Path(path).stat().st_size / 1e6:.2f}"]


class Fake(Peer):
    """Gives the judge's logits, then breaks or is interrupted at its n-th call."""

    def __init__(self, engine: str, stop: int, error: type[BaseException]) -> None:
        super().__init__(engine, "fp32")
        self.stop = stop
        self.error = error

    def version(self) -> str:
        return "1"

    def load(self, files: list[Path], threads: int) -> Runner:
        run, calls = REFERENCE.load(files, threads), 0

        def call(batch: np.ndarray) -> np.ndarray:
            nonlocal calls
            calls += 1
            if calls == self.stop:
                raise self.error("no more")
            return run(batch)

        return call


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peer]]:
    """Peers in the place of the real ones."""
    chosen: list[Peer] = []
    monkeypatch.setattr(cli, "select", lambda names: chosen)
    monkeypatch.setattr(cli, "obstacles", lambda peers: {})
    return iter([chosen])


@needs_onnx
def test_a_peer_that_breaks_later_costs_a_line(
    fakes: Iterator[list[Peer]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(fakes).extend([Fake("breaks", 10, RuntimeError), Fake("holds", -1, RuntimeError)])
    out = tmp_path / "out.json"
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 0
    made = json.loads(out.read_text())
    schema(made, cli.QUICK_REPEAT)
    assert [r["engine"] for r in made["rows"]] == ["ovsw", "holds"]
    assert made["skipped"] == [{"peer": "breaks-fp32", "network": NET, "why": "RuntimeError: no more"}]
    assert capsys.readouterr().err == f"breaks-fp32, {NET}: RuntimeError: no more\n"


class Zeros(Peer):
    def version(self) -> str:
        return "1"

    def load(self, files: list[Path], threads: int) -> Runner:
        return lambda batch: np.zeros((len(batch), 10), np.float32)


@needs_onnx
def test_a_judge_that_dies_is_not_loaded(
    fakes: Iterator[list[Peer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it would take everything with it."""
    next(fakes).append(Zeros("zeros", "fp32"))
    out = tmp_path / "out.json"
    loaded: list[str] = []
    monkeypatch.setattr(cli, "obstacles", lambda peers: dict.fromkeys([REFERENCE.name], "dies of SIGILL"))
    monkeypatch.setattr(REFERENCE, "load", lambda files, threads: loaded.append("judge"))
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["rows"][1]["check"] == "unchecked: no onnxruntime-fp32"
    assert loaded == []


@needs_onnx
@pytest.mark.parametrize(("stop", "rounds"), [(10, 2), (2, None)])
def test_ctrl_c(
    stop: int,
    rounds: int | None,
    fakes: Iterator[list[Peer]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the third round of the second engine: what is there is shown and kept. While loading: nothing is."""
    next(fakes).append(Fake("holds", stop, KeyboardInterrupt))  # 4 checks, a warm-up, 2 calls per round
    out = tmp_path / "out.json"
    assert cli.main(["--arch", NET, "--quick", "--json", str(out)]) == 130
    shown = capsys.readouterr()
    if rounds is None:
        assert not out.exists()
        assert shown.err == "ovsw-bench: nothing was measured\n"
        return
    made = json.loads(out.read_text())
    assert {r["engine"]: len(r["latency_ms"]["samples"]) for r in made["rows"]} == {"ovsw": rounds + 1, "holds": rounds}
    assert made["context"]["interrupted"]
    assert "interrupted" in shown.out
    assert f"holds fp32 ({rounds} rounds only)" in shown.out


def test_ctrl_c_of_the_installed_command(tmp_path: Path) -> None:
    """A real signal."""
    out = tmp_path / "out.json"
    args = ["--arch", NET, "--peers", "none", "--min-time", "600", "--json", str(out)]
    code = f"""
import os, signal, sys
from ovsw.bench import cli
def tell(self, what, fraction):
    if fraction > 1e-6:
        os.kill(os.getpid(), signal.SIGINT)
cli.Bar.__call__ = tell
sys.exit(cli.main({args!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "interrupted" in done.stdout
    assert json.loads(out.read_text())["rows"]


def test_list_peers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVSW_LARQ_PYTHON", raising=False)
    assert cli.main(["--list-peers", "--peers", "larq,ncnn-fp32"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["larq-1-bit", "ncnn-fp32"]
    assert "OVSW_LARQ_PYTHON" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "vgg"], "unknown network 'vgg'"),
        (["--arch", ""], "no network"),
        (["--repeat", "0"], "--repeat is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--batch", "-1"], "--batch is -1"),
        (["--min-time", "-1"], "--min-time is -1"),
        (["--peers", "tensorrt"], "unknown peer 'tensorrt'"),
        (["--isa", "abacus", "--arch", NET, "--peers", "none"], "abacus"),
        (["--json", "nowhere/out.json"], "nowhere/out.json"),
        (["--json", "out.txt"], ".json"),
        (["--plot", "out.gif"], ".png"),
        (["--html", "out.pdf"], ".html"),
        (["--model", "nothing.bnn", "--arch", NET], "nothing.bnn"),
        (["--model", PHOTO, "--arch", NET], "cat.jpg"),
        (["--image", "nothing.jpg", "--arch", NET], "nothing.jpg"),
        (["--pin", "12345", "--arch", NET], "CPU 12345"),
    ],
)
def test_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At once, in one line, before anything is measured."""
    if "--pin" in arguments and not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot pin")
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ovsw-bench: error: ")
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_pin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 2, 3, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda who, cpus: pinned.append(cpus), raising=False)
    assert cli._pin(-1, 1) == [5]
    assert cli._pin(2, 2) == [2, 3]
    assert pinned == [[5], [2, 3]]
    with pytest.raises(ValueError, match="CPU 1 is not one of 0, 2, 3, 5"):
        cli._pin(1, 1)
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cli._pin(0, 1) == []
    assert len(capsys.readouterr().err.splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_progress_bar(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal only, drawn a few times a second, and out of the way of lines."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", stream)
    bar = measure.Bar()
    moments = iter([1.0, 1.01, 1.02, 9.0])
    with monkeypatch.context() as patch:
        patch.setattr(measure.time, "monotonic", lambda: next(moments))
        for what, fraction in (("loading", 0.25), ("loading", 0.3), ("timing", 0.5), ("timing", 0.75)):
            bar(what, fraction)
    bar.say("a line")
    bar.close()
    shown = stream.getvalue()
    drawn = [" ".join(part.split()[:2]) for part in shown.split("\r") if "ing" in part]
    assert "a line\n" in shown
    assert drawn == (["loading 25", "timing 50", "timing 75"] if stream.isatty() else [])
