"""The tables of `ovsw-bench`, the context of a result, and comparisons of two."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from ovsw.bench import cli, compare, context, measure, table
from ovsw.bench.result import Measurement, Skipped, as_json
from ovsw.bench.topology import NETWORKS, Topology
from ovsw.util.text import markdown_table

from support.results import PHOTO, cells, context_of, needs_onnx, result_of, rows_of


@pytest.mark.parametrize(("network", "sizes"), [("resnet18", (46.76, 23.38)), ("resnet34", (87.19, 43.60))])
def test_sizes_are_the_papers(network: str, sizes: tuple[float, float]) -> None:
    parameters = Topology(NETWORKS[network]).parameters
    assert tuple(round(parameters * bytes_each / 1e6, 2) for bytes_each in (4, 2)) == sizes
    torch = pytest.importorskip("torch")
    from ovsw.nn.float_resnet import float_network

    with torch.device("meta"):
        assert parameters == sum(p.numel() for p in float_network(network).parameters())


@needs_onnx
@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_are_those_of_the_float_network(network: str) -> None:
    """In the ONNX model a batch norm is folded, so that its weight and bias are a convolution's bias."""
    from onnx import numpy_helper

    from ovsw.bench.float_nets import float_resnet

    graph = float_resnet(network).graph
    arrays = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    stored = sum(a.size for a in arrays.values() if a.dtype == np.float32)
    biases = sum(arrays[node.input[2]].size for node in graph.node if node.op_type == "Conv")
    assert Topology(NETWORKS[network]).parameters == stored + biases


def test_deployment_table() -> None:
    """The fastest engine of each width stands there, even where it does not flatter us."""
    rows = rows_of(ovsw_bit=4.0, slow_fp32=40.0, fast_fp32=20.0, quick_int8=5.0)
    why = [Skipped("openvino-bf16", None, "no bf16 on this CPU"), Skipped("ncnn-fp16", None, "ncnn not installed")]
    made = result_of(rows, why)
    shown = table.show(made, paper=False)
    full, half, quarter, one = cells(shown, "ResNet18")[:4]
    assert full[1:5] == ["32/32", "46.76", "5.00", "-"]
    assert full[-2:] == ["-", "fast fp32"]
    assert half == ["ResNet18", "16/16", "23.38", *["-"] * 5, "openvino-bf16: no bf16 on this CPU"]
    assert (quarter[1], quarter[-1]) == ("8/8", "quick int8")
    assert one[1:5] == ["1/1", "2.81", "5.00", "16.66x"]
    assert float(one[-2][:-1]) == pytest.approx(5.0, rel=0.02)
    assert [c[1] for c in cells(shown, "ResNet18")[4:]] == ["ovsw", "quick", "fast", "slow"]
    marked = table.show(made, True, markdown_table)
    assert "| ResNet18 | 1/1 | 2.81 | - | 16.64x | 7.97 | - | 3.47x | paper: M1 Pro, BOLT |" in marked
    assert "ResNet34" not in marked
    assert {line.count("|") for line in marked.splitlines() if line.startswith("|")} == {10, 12}


def test_ratios_that_overlap_are_not_called() -> None:
    rows = rows_of(ovsw_bit=19.8, other_fp32=20.0, half_bf16=20.2)
    shown = table.show(result_of(rows), paper=False)
    _, half, _, one = cells(shown, "ResNet18")[:4]
    assert half[-2] == one[-2] == "unclear"
    assert sum("unclear" in line for line in shown.splitlines()) == 4
    assert "half bf16" in half[-1]


def test_reasons_for_a_dash() -> None:
    missing = [Skipped(f"{e}-fp32", None, f"{e} not installed") for e in ("onnxruntime", "ncnn")]
    shown = table.show(result_of(rows_of(ovsw_bit=4.0), missing), paper=False)
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
    about, state = machine.conditions(), machine.state()
    assert about.cpu == "Raspberry Pi 5 Model B Rev 1.0"
    assert (about.clock_max_mhz, about.governor) == (2400, "powersave")
    assert (state.clock_mhz, state.temperature_c, state.trip_c) == (1500, 81.5, 85.0)
    assert state.throttled == ["it is throttled", "under-voltage (since boot, not now)"]
    found = context.warnings(replace(about, cores=4), replace(state, load=3.0), replace(state, load=9.0))
    assert len(found) == 5
    for words, line in zip(("powersave", "load was 3.0", "it is throttled", "since boot", "throttles at 85"), found):
        assert words in line


def test_context_of_a_mac(tmp_path: Path) -> None:
    answers = {"machdep.cpu.brand_string": "Apple M1 Pro", "therm": "CPU_Scheduler_Limit = 100\nCPU_Speed_Limit = 70"}
    machine = context.Machine(tmp_path, lambda command: answers.get(command[-1], ""), "Darwin")
    about, state = machine.conditions(), machine.state()
    assert about.cpu == "Apple M1 Pro"
    assert state.throttled == ["its speed is limited to 70 %"]
    assert state.clock_mhz is None
    assert "70 %" in context.warnings(replace(about, cores=8), replace(state, load=0.1))[0]


def test_context_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    machine = context.Machine(tmp_path, lambda command: "", "Linux")
    about, state = machine.conditions(), replace(machine.state(), load=None)
    assert about.cpu
    assert {key for key, value in vars(state).items() if value not in (None, [])} == set()
    assert context.warnings(about, state, state) == []
    assert "batch 8, times are per image" in context.head(context_of(**vars(about), batch=8, start=state))


def test_context_here(tmp_path: Path) -> None:
    state = context.Machine().state()
    assert context.Machine().conditions().cpu
    files(tmp_path, sys__devices__system__cpu__cpu0__thermal_throttle__core_throttle_count="3\n")
    files(tmp_path, sys__devices__system__cpu__cpu1__thermal_throttle__core_throttle_count="4\n")
    quiet = replace(state, load=0.0, throttled=[], trip_c=None)
    later = replace(quiet, throttle_count=context.Machine(tmp_path).throttle_count())
    assert later.throttle_count == 7
    before = [replace(quiet, throttle_count=count) for count in (6, 7)]
    about = context_of()
    assert context.warnings(about, before[0], later) == ["the CPU was throttled during the run"]
    assert context.warnings(about, before[1], later) == []
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


def run(rows: list[Measurement]) -> compare.SavedResult:
    return compare.SavedResult({}, {compare.Key(r.network, r.engine, r.precision, 1, 1): r.latency_ms for r in rows})


def run_of(rng: np.random.Generator, mood: float, **milliseconds: float) -> compare.SavedResult:
    """A run's result with noise as machines have it: a mood for all, one for each row, drift, and spikes."""
    rows = rows_of(**milliseconds)
    for row in rows:
        ms = mood * milliseconds[f"{row.engine}_{row.precision.replace('1-', '')}"]
        samples = ms * rng.normal(1.0, 0.02) * np.linspace(1.0, rng.uniform(0.95, 1.05), 60)
        samples *= rng.normal(1.0, 0.02, 60) * np.where(rng.random(60) < 0.05, rng.uniform(1.5, 4.0, 60), 1.0)
        row.latency_ms = measure.Latency.of(samples.tolist())
    return run(rows)


def test_compare_calls_noise_no_change_and_a_change_one() -> None:
    rng = np.random.default_rng(1)
    figures = {"ovsw_bit": 3.5, "ort_fp32": 24.0, "vino_fp32": 24.5, "vino_int8": 7.0, "ncnn_fp32": 32.0}
    for _ in range(200):
        a, b = (run_of(rng, rng.uniform(0.85, 1.15), **figures) for _ in "ab")
        verdicts = [row.verdict for row in compare.verdicts(a, b)]
        assert not {"faster", "slower"} & set(verdicts), verdicts
        c = run_of(rng, rng.uniform(0.85, 1.15), **{**figures, "ovsw_bit": 7.0})
        found = {row.key[1:3]: row.verdict for row in compare.verdicts(a, c)}
        assert found.pop(("ovsw", "1-bit")) == "slower"
        assert not {"faster", "slower"} & set(found.values())
        assert compare.verdicts(c, a)[0].verdict == "faster"
    other = run_of(rng, 1.0, ovsw_bit=3.5, new_fp32=1.0)
    assert {"only in A", "only in B"} < {row.verdict for row in compare.verdicts(a, other)}
    alone = [run_of(rng, 1.0, ovsw_bit=ms) for ms in (3.5, 3.5, 4.5)]
    assert [compare.verdicts(alone[0], other)[0].verdict for other in alone[1:]] == ["same", "slower"]


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = result_of(rows_of(ovsw_bit=4.0, x_fp32=20.0), isa="x86_avx2", date="yesterday")
    b = result_of(rows_of(ovsw_bit=8.0, x_fp32=20.0), isa="portable", date="today")
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "bad.json")]
    for path, made in zip(paths, (a, b, {"rows": [{}]})):
        Path(path).write_bytes(as_json(made))
    assert cli.main(["compare", *paths[:2]]) == 0
    shown = capsys.readouterr()
    assert cells(shown.out, "resnet18")[0][-1] == "slower"
    assert "1 of 2 rows changed" in shown.out
    assert shown.err == "warning: isa differs: x86_avx2 in A, portable in B\n"
    assert cli.main(["compare", *paths[:2], "--fail-on-change"]) == 1
    assert cli.main(["compare", paths[0], paths[0], "--fail-on-change"]) == 0
    capsys.readouterr()
    for second in (paths[2], str(tmp_path / "none.json"), PHOTO):
        assert cli.main(["compare", paths[0], second]) == 1
        error = capsys.readouterr().err
        assert second in error
        assert len(error.splitlines()) == 1


OLD_ROW = {"network": "resnet18", "engine": "ovsw", "precision": "1-bit", "threads": 1, "batch": 1}


def test_compare_reads_what_older_versions_wrote(tmp_path: Path) -> None:
    """Only what it needs: rows by their key, with samples, and any context."""
    path = tmp_path / "old.json"
    row = {**OLD_ROW, "latency_ms": {"median": 2.0, "samples": [1.0, 2.0, 6.0]}, "something": "else"}
    path.write_text(json.dumps({"context": {"cpu": "some", "old": 1}, "rows": [row]}))
    found = compare.read(str(path))
    assert found.context == {"cpu": "some", "old": 1}
    assert {key: ms.samples for key, ms in found.rows.items()} == {("resnet18", "ovsw", "1-bit", 1, 1): [1.0, 2.0, 6.0]}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '"text"', "3", '{"rows": 1, "context": {}}', '{"rows": [3], "context": {}}'),
        *('{"rows": []}', '{"rows": [], "context": null}'),
        *(
            json.dumps({"context": {}, "rows": [{**OLD_ROW, **row}]})
            for row in (
                {},
                {"latency_ms": None},
                *(
                    {"latency_ms": {"median": 1.0, "samples": s}}
                    for s in ([], None, ["x"], [0.0], [1.0, float("nan")], [float("inf")])
                ),
                {"latency_ms": {"median": 1.0, "samples": [1.0]}, "network": []},
            )
        ),
    ],
)
def test_compare_refuses_what_is_no_result(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^\S+file\.json: not a result of ovsw-bench --json \("):
        compare.read(str(path))


def test_json_has_what_was_measured() -> None:
    """Parts that were not asked for are not there; what is not known is null."""
    made = result_of(rows_of(ovsw_bit=4.0))
    found = json.loads(as_json(made))
    assert set(found) == {"context", "networks", "rows", "skipped"}
    assert (found["context"]["commit"], found["context"]["interrupted"], found["skipped"]) == (None, False, [])
    row = found["rows"][0]
    assert set(row) == {f.name for f in fields(Measurement)} - {"like", "isa", "memory_mb"}
    assert set(row["latency_ms"]) == {"median", "p10", "p90", "samples"}
    made.memory, made.rows[0].memory_mb, made.rows[0].size_mb = {"baseline_mb": 31.0}, 77.0, None
    found = json.loads(as_json(made))
    assert found["memory"] == {"baseline_mb": 31.0}
    assert (found["rows"][0]["memory_mb"], found["rows"][0]["size_mb"]) == (77.0, None)
