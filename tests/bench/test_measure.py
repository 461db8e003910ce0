"""What `ovsw-bench` times and in which order, spreads, memory, progress.

No test depends on how long anything takes: clocks and samples are made up, or only counted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ovsw import Engine
from ovsw import format as bnn
from ovsw.bench import measure, memory
from ovsw.bench.entries import load_ours
from ovsw.bench.random_nets import random_resnet
from ovsw.util import progress

from support.results import NET, PHOTO


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
    a, b = (measure.Latency.of(times[name]) for name in "ab")
    assert a.over(b).median == 1.0  # of the rounds that both have


def test_memory(tmp_path: Path) -> None:
    """The peak of the process itself, even if a large one has started it."""
    held = np.ones(400_000_000, np.uint8)
    path = tmp_path / "net.bnn"
    bnn.write(random_resnet("resnet34", numerics="integer"), path)
    entry = load_ours("resnet34", path, 1, "portable", None, 1, None).entry
    bare, peak = memory.baseline_mb(), memory.peak_mb(entry)
    assert bare is not None
    assert peak is not None
    assert 10.0 < bare < 200.0
    assert bare + path.stat().st_size / 1e6 < peak < 300.0
    assert held[0] == 1
    path.write_bytes(b"no network")
    assert memory.peak_mb(entry) is None


@pytest.mark.parametrize(("said", "mb"), [("5\nready 77000000\n", 77.0), ("77000000 bytes", None), ("", None)])
def test_memory_is_the_last_word(monkeypatch: pytest.MonkeyPatch, said: str, mb: float | None) -> None:
    """Engines may print what they like before it."""
    monkeypatch.setattr("ovsw.bench.peers.base.child", lambda command: (said, ""))
    assert memory.baseline_mb() == mb


def test_ours_is_engine_run_on_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.bnn"
    bnn.write(random_resnet(NET, numerics="integer"), path)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(Engine, "run", lambda self, image: seen.append(image))
    for batch, shape in ((1, (32, 32, 3)), (3, (3, 32, 32, 3))):
        for image in (None, PHOTO):
            given = load_ours("mine", path, 1, "portable", image, batch, None)
            entry = given.entry
            entry.call()
            assert seen[-1].dtype == np.uint8
            assert seen[-1].shape == shape
            assert entry.batch == batch
            ms = measure.Latency.of([2.0, 4.0])
            row = entry.row(None, ms, measure.Latency.of([1.0, 1.0, 9.0]))
            assert (row.engine, row.isa, row.wa, row.batch) == ("ovsw", "portable", "1/1", batch)
            assert row.size_mb == row.file_mb == path.stat().st_size / 1e6
            assert (row.latency_ms, row.ratio) == (ms, measure.spread([2.0, 4.0]))
    model = bnn.read(path)
    mean, std = (model.tensors[i].array for i in (model.mean, model.std))
    expected = (seen[-1][0] / 255.0 - mean) / std
    np.testing.assert_allclose(
        given.engine.input.normalised(given.pixels)[0].transpose(1, 2, 0), expected, rtol=1e-5, atol=1e-6
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_progress(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal only, drawn a few times a second, and out of the way of lines."""
    monkeypatch.setattr(sys, "stderr", stream)
    moments = iter([0.0, 3.0, 3.01, 3.3, 9.0])
    with monkeypatch.context() as patch:
        patch.setattr(progress.time, "monotonic", lambda: next(moments))
        shown = progress.Progress("x", in_logs=False)
        for what, share in (("loading", 0.25), ("loading", 0.3), ("timing", 0.5), ("timing", 0.75)):
            shown(what, share, 1)
    shown.say("a line")
    drawn = [" ".join(part.split()[:3]) for part in stream.getvalue().split("\r") if "ing" in part]
    assert stream.getvalue().endswith("a line\n")
    assert drawn == (["x: loading 25", "x: timing 50", "x: timing 75"] if stream.isatty() else [])
