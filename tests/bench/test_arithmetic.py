"""The bench's own arithmetic, on samples for which every other formula gives another number.

No clock is read: times are made up, and what is expected is written out.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, _bench, cpu
from ovsw import format as bnn
from ovsw.bench import cli, compare, families, measure, micro, profile, scaling, table, training
from ovsw.bench.entries import Entry
from ovsw.bench.measure import Latency, Spread
from ovsw.bench.peers.base import BOUNDS, error, fault
from ovsw.bench.random_nets import random_resnet
from ovsw.bench.result import Measurement

from support.results import cells, result_of

PIXELS = np.zeros((32, 32, 3), np.uint8)


def row(engine: str, wa: str, samples: list[float], size: float | None = 46.758, **more: Any) -> Measurement:
    precision = {"1/1": "1-bit", "16/16": "bf16", "32/32": "fp32", "8/8": "int8"}[wa]
    return Measurement("resnet18", wa, engine, precision, "1", 1, 1, size, 5.0, "", Latency.of(samples), None, **more)


# Spreads and ratios


def test_percentiles_lie_between_samples() -> None:
    assert measure.spread([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, pytest.approx(1.3), pytest.approx(3.7))
    assert measure.spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert Latency.of([0.123456789, 2.0]).samples == [0.12346, 2.0]


def test_a_ratio_is_the_median_of_ratios() -> None:
    """Of every round: 0.1, 10 and 2. The medians of both are 10, their ratio 1."""
    a, b = Latency.of([1.0, 10.0, 100.0]), Latency.of([10.0, 1.0, 50.0])
    assert a.over(b) == Spread(pytest.approx(2.0), pytest.approx(0.48), pytest.approx(8.4))
    assert b.over(a).median == pytest.approx(0.5)
    longer = Latency.of([1.0, 10.0, 100.0, 1000.0, 1000.0])
    assert longer.over(b) == a.over(b)  # rounds that one of them did not take part in do not count
    assert b.over(longer).median == pytest.approx(0.5)


def test_apart_is_without_a_common_number() -> None:
    low, touching, high = Spread(1.5, 1.0, 2.0), Spread(2.5, 2.0, 3.0), Spread(2.5, 2.001, 3.0)
    assert low.apart(high)
    assert high.apart(low)
    assert not low.apart(touching)
    assert not touching.apart(low)
    assert not low.apart(low)


# The tables


def test_the_fastest_is_that_of_the_least_median() -> None:
    """Not of the least 10th percentile, mean or 90th: each of these names another engine."""
    rows = [
        row("median", "32/32", [8.0, 8.0, 9.0, 30.0, 30.0]),
        row("p10", "32/32", [1.0, 1.0, 10.0, 29.0, 29.0]),
        row("mean", "32/32", [9.1, 9.1, 9.5, 10.0, 10.0]),
        row("p90", "32/32", [9.6, 9.6, 9.6, 9.6, 9.6]),
        row("other", "16/16", [1.0] * 5),
    ]
    assert table.fastest(rows, "32/32") is rows[0]
    assert table.fastest(rows[1:], "32/32") is rows[2]
    assert table.fastest(rows, "8/8") is None
    shown = table.all_cells(result_of(rows))
    assert [line[1] for line in shown] == ["other", "median", "mean", "p90", "p10"]
    assert [line[4] for line in shown] == ["1.00", "9.00", "9.50", "9.60", "10.00"]


def test_saving_and_acceleration() -> None:
    """Medians are 10 times ours, as a reader divides them; times of the same rounds 40, 5 and 5, whose median is 5."""
    ours, base = [1.0, 2.0, 4.0], [40.0, 10.0, 20.0]
    rows = [row("ovsw", "1/1", ours, 2.0, isa="some"), row("x", "32/32", base)]
    rows.append(row("half", "16/16", [8.0, 5.0, 5.0], 23.379))
    rows.append(row("bytes", "8/8", [4.0, 4.0, 3.0], 11.69))
    made = result_of(rows, repeat=3)
    for each in made.rows:
        each.ratio = each.latency_ms.over(rows[0].latency_ms)
    full, half, quarter, one = cells(table.show(made, paper=False), "ResNet18")[:4]
    assert full[1:] == ["32/32", "46.76", "5.00", "-", "20.00", "12.00 .. 36.00", "-", "x fp32"]
    assert half[1:] == ["16/16", "23.38", "5.00", "2x", "5.00", "5.00 .. 7.40", "4x", "half bf16"]
    assert quarter[1:] == ["8/8", "11.69", "5.00", "4x", "4.00", "3.20 .. 4.00", "5x", "bytes int8"]
    assert one[1:] == ["1/1", "2.00", "5.00", "23.38x", "2.00", "1.20 .. 3.60", "10x", "ovsw some"]
    every = {line[1]: line for line in table.all_cells(made)}
    assert every["x"][7:9] == ("5.00", "5.00 .. 33.00")
    assert every["ovsw"][7:9] == ("1.00", "1.00 .. 1.00")
    assert (every["half"][4], every["half"][7]) == ("5.00", "2.50")
    made.context.repeat = 4
    assert cells(table.show(made, paper=False), "ResNet18")[3][-1] == "ovsw some (3 rounds only)"


def test_what_may_be_called_faster() -> None:
    """Times that overlap may not, nor a ratio that has 1 in it, as where each is slow in rounds of its own."""
    overlap = [Latency.of([1.0, 2.0, 3.0]), Latency.of([1.5, 3.0, 4.5])]
    times = overlap[1].over(overlap[0])
    assert times == Spread(1.5, 1.5, 1.5)
    assert not table.clear(overlap[0], overlap[1], times)
    slow, quick = [5.0] * 2 + [1.0] * 18, [2.0] * 2 + [0.5] * 2 + [2.0] * 16
    a, b = Latency.of(slow), Latency.of(quick)
    assert a.apart(b)
    assert not table.clear(a, b, b.over(a))
    assert table.clear(Latency.of([1.0, 1.1]), Latency.of([2.0, 2.1]), Spread(2.0, 1.9, 2.1))


def test_sizes_by_precision(tmp_path: Any) -> None:
    """A byte for eight bits of a parameter; a 1-bit network is as large as its file."""
    path = tmp_path / "file"
    path.write_bytes(bytes(3_000_000))
    ms = Latency.of([4.0, 8.0])
    for precision, size in (("fp32", 40.0), ("fp16", 20.0), ("bf16", 20.0), ("int8", 10.0), ("1-bit", 6.0)):
        entry = Entry("n", "e", precision, "1", "", [path, path], 1, (2, 8, 8, 3), lambda: None)
        found = entry.row(10_000_000, ms, Latency.of([1.0, 8.0]))
        assert (found.size_mb, found.file_mb, found.batch) == (size, 6.0, 2)
        assert found.ratio == Spread(2.5, pytest.approx(1.3), pytest.approx(3.7))
        assert found.wa == {"1-bit": "1/1", "int8": "8/8", "fp32": "32/32"}.get(precision, "16/16")


def test_times_are_per_image(tmp_path: Any) -> None:
    """Calls of four images that say themselves how long they took; ratios are over ours, wherever it stands."""
    path = tmp_path / "file"
    path.touch()

    def entry(engine: str, seconds: list[float]) -> Entry:
        left = iter([s for s in [9.0, *seconds] for _ in (0, 1)][1:])  # a warm-up; each round a call that is not timed
        return Entry("n", engine, "fp32", "1", "", [path], 1, (4, 8, 8, 3), lambda: next(left))

    run = SimpleNamespace(repeat=3, min_time=0.0, progress=lambda *_: None, result=result_of([]))
    run.args = SimpleNamespace(memory=False, quick=False)
    cli.BenchRun._time(run, "n", [entry("x", [0.8, 0.08, 0.4]), entry("ovsw", [0.02, 0.04, 0.08])], 1000)  # type: ignore[arg-type]
    x, own = run.result.rows
    assert own.latency_ms.samples == pytest.approx([5.0, 10.0, 20.0])
    assert x.latency_ms.samples == pytest.approx([200.0, 20.0, 100.0])
    assert x.ratio.median == pytest.approx(5.0)  # of 40, 2 and 5; medians have 10
    assert own.ratio.median == 1.0


# Comparing two runs


def compared(**ratios: float) -> dict[str, str]:
    """Verdicts on engines (engine_network) whose samples are 10 ms before and so many times that after."""
    keys = {name: compare.Key(name.partition("_")[2], name.partition("_")[0], "fp32", 1, 1) for name in ratios}
    a = compare.SavedResult({}, {key: Latency.of([10.0] * 12) for key in keys.values()})
    b = compare.SavedResult({}, {keys[name]: Latency.of([10.0 * ratio] * 12) for name, ratio in ratios.items()})
    found = {change.key: change for change in compare.verdicts(a, b)}
    for name, key in keys.items():
        assert (found[key].a_ms, found[key].b_ms) == (10.0, pytest.approx(10 * ratios[name]))
        assert found[key].ratio == pytest.approx(ratios[name])
    return {name: found[key].verdict for name, key in keys.items()}


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        *((1.0, "same"), (1.09, "same"), (1.11, "unclear"), (1.14, "unclear"), (1.16, "slower"), (2.0, "slower")),
        *((1 / 1.09, "same"), (1 / 1.11, "unclear"), (1 / 1.14, "unclear"), (1 / 1.16, "faster"), (0.5, "faster")),
    ],
)
def test_thresholds_of_a_verdict(ratio: float, verdict: str) -> None:
    """Alone, and beside others that have not changed."""
    assert compared(a_net=ratio) == {"a_net": verdict}
    assert compared(a_net=ratio, b_net=1.0, c_net=1.0) == {"a_net": verdict, "b_net": "same", "c_net": "same"}


def test_of_two_engines_the_other_one_tells_the_mood() -> None:
    """With a vote of its own, 1.25 would be 1.11 beyond the mood; of three engines, the middle one is the mood."""
    assert compared(a_net=1.25, b_net=1.0) == {"a_net": "slower", "b_net": "same"}
    assert compared(a_net=1.25, b_net=1.25) == {"a_net": "unclear", "b_net": "unclear"}
    assert compared(a_net=1.5, b_net=1.25) == {"a_net": "slower", "b_net": "unclear"}
    assert compared(a_net=1.25, b_net=1.25, c_net=1.0) == {"a_net": "unclear", "b_net": "unclear", "c_net": "same"}
    assert compared(a_net=1.6, b_net=1.0, c_net=1.6) == {"a_net": "unclear", "b_net": "same", "c_net": "unclear"}
    assert compared(a_net=1.25, b_net=1.5) == {"a_net": "unclear", "b_net": "slower"}
    assert compared(a_net=1.2, b_net=1.5, c_net=1.5) == {"a_net": "unclear", "b_net": "unclear", "c_net": "unclear"}


def test_moods_are_of_one_network() -> None:
    assert compared(a_one=1.3, b_one=1.0, a_two=1.3, b_two=1.3, c_two=1.3) == {
        **{"a_one": "slower", "b_one": "same"},
        **dict.fromkeys(("a_two", "b_two", "c_two"), "unclear"),
    }


def test_an_engine_has_one_vote() -> None:
    """Three precisions of one engine are slower, which is its own affair and not the machine's."""
    keys = [compare.Key("n", e, p, 1, 1) for e, p in zip("xxxyz", ("fp32", "int8", "bf16", "fp32", "fp32"))]
    a = compare.SavedResult({}, {key: Latency.of([10.0] * 12) for key in keys})
    b = compare.SavedResult({}, {key: Latency.of([13.0 if key.engine == "x" else 10.0] * 12) for key in keys})
    assert [change.verdict for change in compare.verdicts(a, b)] == ["slower"] * 3 + ["same"] * 2


def test_the_place_of_samples() -> None:
    """The middle half: spikes in a fifth of the rounds move nothing, but a part of the run that was otherwise does."""
    key = compare.Key("n", "e", "p", 1, 1)

    def verdict(after: list[float]) -> str:
        runs = [compare.SavedResult({}, {key: Latency.of(samples)}) for samples in ([10.0] * 60, after)]
        return compare.verdicts(*runs)[0].verdict

    assert verdict([5.0 if i % 5 == 0 else 13.0 for i in range(60)]) == "slower"
    assert verdict([5.0 if i % 3 == 0 else 13.0 for i in range(60)]) == "unclear"
    assert verdict([13.0] * 50 + [10.0] * 10) == "unclear"  # a sixth of the run
    assert verdict([13.0] * 56 + [10.0] * 4) == "slower"
    assert verdict([13.0, 13.0, 9.0]) == "slower"
    assert verdict([13.0, 13.0, 6.0]) == "unclear"


# Profile, scaling, kernels, training


def test_ceilings() -> None:
    """The longer of multiply-adds at the peak of their kind and of a copy at the speed of its size."""
    copies = [profile.Copy(100, 10.0), profile.Copy(1_000, 5.0), profile.Copy(10_000, 1.0)]
    ceilings = profile.Ceilings({"bconv bits x bits": 400.0}, copies)
    work = profile.Work("n", "bconv", (1,), (1,), 0.0, "3x3", "bits x bits", 0)
    for size, seconds in ((50, 5e-9), (100, 1e-8), (999, 9.99e-8), (1_000, 2e-7), (9_000, 1.8e-6), (20_000, 2e-5)):
        assert ceilings.seconds(replace(work, bytes=size)) == pytest.approx(seconds)
    assert ceilings.seconds(replace(work, bytes=1_000, macs=4e5)) == pytest.approx(1e-6)
    assert ceilings.seconds(replace(work, bytes=1_000, macs=4e1)) == pytest.approx(2e-7)
    assert ceilings.seconds(replace(work, bytes=1_000, macs=4e5, op="linear")) == pytest.approx(2e-7)


def test_the_speeds_to_compare_with() -> None:
    assert _bench.time_popcount(64, 64, 9) > 0.0
    assert _bench.time_copy(1 << 20, 2) > 0.0
    for size, repeat in ((1, 1), (64, 0), (64, -1)):
        with pytest.raises(ValueError, match="size must be at least 2 and repeat positive"):
            _bench.time_copy(size, repeat)


def test_the_speed_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads copy half a MB each, four times in 2 ms: 2 GB/s."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(_bench, "time_copy", lambda size, repeat: asked.append((size, repeat)) or 2e-3)
    assert profile._copy_speed(1 << 20, 2) == pytest.approx(4 * (1 << 20) / 2e-3)
    assert profile._copy_speed(1 << 24, 1) == pytest.approx((1 << 24) / 2e-3)
    assert asked == [(1 << 19, 4), (1 << 19, 4), (1 << 24, 1)]


def test_profile_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of each step over three rounds; the whole is the median of sums; ceilings are of the best round."""
    data = bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))
    steps = Engine(data).steps
    rounds = iter([1.0, 4.0, 2.0])
    own = iter([[1e-3] * len(steps), [2e-3] * len(steps), [4e-3] * len(steps)])
    first = iter([8e-3, 1e-3, 2e-3])  # the first step is slow where the others are quick

    def last_run(engine: Engine, _: np.ndarray) -> np.ndarray:
        if len(engine.steps) != len(steps) or [s.name for s in engine.steps] != [s.name for s in steps]:
            return np.full(len(engine.steps), 1e-4 * next(rounds))  # ideal layers
        found = np.array(next(own))
        found[0] = next(first)
        return found

    speeds = iter([1e9 * s for s in (1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 2, 2, 2, 2, 2)])
    monkeypatch.setattr(profile, "_last_run", last_run)
    monkeypatch.setattr(profile, "_copy_speed", lambda size, threads: next(speeds))
    found = profile.profile(data, "portable", 1, PIXELS, rounds=3)
    n = len(steps) - 1
    assert found.total_ms == pytest.approx(1 + 2 * n)  # of 8 + n, 1 + 2 n and 2 + 4 n
    assert [copy.gb_per_s for copy in found.ceilings.copy] == [9.0, 8.0, 7.0, 6.0, 5.0]
    ideal = bnn.from_bytes(data)
    best = {w.label: w.macs / 1e-4 / 1e9 for w in profile._work(*_ideal(ideal)) if w.op in ("bconv", "conv")}
    assert set(found.ceilings.gmacs) == {"bconv bits x bits", "conv u8 x i16", "conv i16 x i16"}
    for label, peak in found.ceilings.gmacs.items():
        assert peak >= best[label] * (1 - 1e-12)
    for index, step in enumerate(found.steps):
        assert (step.ms, step.p10, step.p90) == (
            pytest.approx(2.0),
            pytest.approx(1.2),
            pytest.approx(3.6 if index else 6.8),
        )
        assert step.share == pytest.approx(2 / (1 + 2 * n))
        assert step.gmacs == pytest.approx(step.macs / 2e6)
        peak = found.ceilings.gmacs.get(step.label)
        limit = max(step.macs / peak if peak else 0, step.bytes / 9) / 1e6  # ms
        assert step.ceiling_share == pytest.approx(limit / 2)
    groups = {cells[0]: cells for cells in profile.op_cells(found)}
    assert groups["bconv bits x bits"][1:3] == ("18", "36.000")
    binary = sum(s.macs for s in found.steps if s.op == "bconv")
    assert groups["bconv bits x bits"][3:] == (f"{100 * 36 / (1 + 2 * n):.1f}", f"{binary / 36e6:.1f}")
    shown = {cells[0]: cells for cells in profile.step_cells(found)}
    assert shown["layer2.1.conv1"][5:9] == ("2.000", "1.200 .. 3.600", f"{200 / (1 + 2 * n):.1f}", "1.2")


def _ideal(model: bnn.Model) -> tuple[Engine, bnn.Model]:
    made = profile.ideal_layers(model.numerics, weights="int16", stem="int16")
    return Engine(bnn.to_bytes(made)), made


def test_scaling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of different moods: speed-ups are medians of ratios, images per second of the median time."""
    made = {
        **{"1 1": [10.0, 20.0, 40.0], "1 4": [40.0, 40.0, 320.0], "1 16": [160.0] * 3},
        **{"2 1": [20.0, 5.0, 10.0], "2 4": [8.0, 16.0, 80.0], "2 16": [80.0, 80.0, 16.0]},
    }
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    monkeypatch.setattr(scaling, "interleaved", lambda calls, rounds: {name: np.array(made[name]) for name in calls})
    data = bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))
    found = scaling.scaling(data, None, PIXELS, 3, "mine")
    points = {(p.threads, p.batch): p for p in found.points}
    expected = {  # ms per image, speed-up; by medians alone the last two of these would be 2 and 5
        (1, 1): (20.0, 1.0),
        (1, 4): (10.0, 1.0),
        (2, 1): (10.0, 4.0),
        (2, 4): (4.0, 5.0),
        (2, 16): (5.0, 4.0),
    }
    for key, (ms, speedup) in expected.items():
        assert points[key].ms_per_image.median == pytest.approx(ms)
        assert points[key].images_per_s == pytest.approx(1000 / ms)
        assert points[key].speedup.median == pytest.approx(speedup)
    assert points[2, 1].speedup == Spread(pytest.approx(4.0), pytest.approx(1.2), pytest.approx(4.0))
    assert scaling.cells(found)[3] == ("2", "1", "100.0", "10.000", "6.000 .. 18.000", "4.00", "1.20 .. 4.00")


def test_kernels_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of one shape are averaged; popcounts are over each layer's time in the same round."""
    steps = Engine(bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))).steps
    moods, plain = iter([1.0, 2.0, 8.0]), iter([1e-3, 8e-3, 8e-3])
    each = np.arange(len(steps)) * 1e-6
    monkeypatch.setattr(Engine, "time_steps", lambda self, image, repeat=1: [next(moods) * each])
    popcounts: dict[tuple[int, int, int], list[float]] = {}
    now = 0.0

    def popcount(pixels: int, channels: int, words: int) -> float:
        nonlocal now
        if (pixels, channels, words) == (1024, 16, 3):  # the first of a round
            now = next(plain)
        popcounts.setdefault((pixels, channels, words), []).append(now)
        return now

    monkeypatch.setattr(_bench, "time_popcount", popcount)
    rows = micro.measure("cresnet20", "integer", ["portable"], 3)
    binary = [i for i, s in enumerate(steps) if s.op == "bconv"]
    wide = [i for i in binary if s_shape(steps[i]) == ((16, 32, 32), (16, 32, 32))]
    assert len(wide) == 6
    found = next(r for r in rows if r.op == "bconv" and r.shape == "16x32x32 -> 16x32x32, 3x3")
    mean = float(np.mean(wide))  # microseconds in the first round
    assert (found.layers, found.us, found.p10, found.p90) == (
        *(6, pytest.approx(2 * mean), pytest.approx(1.2 * mean)),
        pytest.approx(6.8 * mean),
    )
    assert found.gmacs == pytest.approx(16 * 16 * 9 * 1024 / (2 * mean) / 1e3)
    assert found.popcnt == pytest.approx(1e3 / mean)  # of 1000, 4000 and 1000 over the mean; medians have 4000
    total = sum(binary)
    everything = rows[-1]
    assert (everything.shape, everything.layers, everything.us) == ("all", 18, pytest.approx(2 * total))
    assert everything.popcnt == pytest.approx(18 * 1e3 / total)
    assert everything.gmacs == pytest.approx(sum(steps[i].macs for i in binary) / (2 * total) / 1e3)


def test_counts_of_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row per layer shape that takes as many instructions; no figure per MAC where there are no MACs."""
    about: dict[str, Any] = {"input": (3, 8, 8), "output": (4, 8, 8), "window": (3, 3)}
    steps = [
        {"op": "bconv", **about, "instructions": 640, "per_128_macs": 1.25},
        {"op": "bconv", **about, "instructions": 640, "per_128_macs": 1.25},
        {"op": "maxpool", **about, "instructions": 70, "per_128_macs": None},
    ]
    monkeypatch.setattr(micro, "counts", lambda *given: [{"network": "net", "engine": "ovsw arm_neon", "steps": steps}])
    assert micro.main(["resnet18", "--emulate", "cortex-a53"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("net ")]
    assert [(row[1], *row[-2:]) for row in rows] == [("bconv", "640", "1.25"), ("maxpool", "70", "-")]


def s_shape(step: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(step.input), tuple(step.output)


def test_shares_of_a_training_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    made = {"step": np.array([100.0, 200.0, 400.0]), "OvSW.step() alone": np.array([20.0, 20.0, 4.0])}
    monkeypatch.setattr(training, "_calls", lambda *_: {})
    monkeypatch.setattr(training, "interleaved", lambda calls, rounds: made)
    assert training.main(["cResNet20", "--batch", "50", "--threads", "1"]) == 0
    step, alone = cells(capsys.readouterr().out, "cResNet20")
    assert step[2:] == ["200.0", "120.0 .. 360.0", "250", "100.00 %", "100.00 .. 100.00"]
    assert alone[2:] == ["20.0", "7.2 .. 20.0", "2500", "10.00 %", "2.80 .. 18.00"]


# Judging other engines


def test_error_is_relative_to_what_images_make_of_logits() -> None:
    expected = np.array([[10.0, 1.0], [10.0, 5.0]])  # images make 0, 4 of it: off their mean by 2 each
    assert error(expected + [[0.0, 0.3], [0.4, 0.0]], expected) == pytest.approx(0.5 / np.sqrt(8))


@pytest.mark.parametrize("precision", BOUNDS)
def test_bounds_of_precisions(precision: str) -> None:
    """The published ones, from either side; and one value that is not finite among good ones."""
    bound = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 0.2, "int8": 0.5}[precision]
    expected = np.array([[100.0, 1.0, 0.0], [100.0, 5.0, 0.0]])
    off = np.array([[0.0, np.sqrt(8.0), 0.0], [0.0, 0.0, 0.0]])
    assert fault(expected + 0.99 * bound * off, expected, precision) is None
    assert "differs from" in str(fault(expected + 1.01 * bound * off, expected, precision))
    for value in (np.nan, np.inf, -np.inf):
        broken = expected.copy()
        broken[1, 2] = value
        assert fault(broken, expected, precision) == "gives values that are not finite"


# Networks of every method


def test_families_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet18 itself has no yardstick; the others are compared with it."""
    ms, over = Spread(1.25, 1.0, 1.5), Spread(2.5, 2.0, 3.0)
    made = {
        "ResNet18": [families.FamilyTime("ResNet18", "float", ms, over, None)],
        "cResNet20": [families.FamilyTime("cResNet20", "integer", ms, over, Spread(0.125, 0.1, 0.2))],
    }
    monkeypatch.setattr(families, "_rows", lambda name, folder, args: made[name])
    assert families.main(["ResNet18", "cResNet20"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == [
        "ResNet18 float 1.250 1.000 .. 1.500 2.50 2.00 .. 3.00 -",
        "cResNet20 integer 1.250 1.000 .. 1.500 2.50 2.00 .. 3.00 0.12",
    ]
