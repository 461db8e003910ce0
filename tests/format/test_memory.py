"""How much memory a file may take: one budget for all that it makes the engine allocate, checked beforehand."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw.engine import default_memory_limit

from support import ROOT, TABLES
from support.hungry import Net, cases, grow, in_fork
from support.models import small_model

MOST = 1 << 28  # by which load and run of a file of 1 MB may grow a process
REFUSED = re.compile(
    r"needs (\d+) bytes of memory \(maps (\d+), weights (\d+), borders (\d+), scratch (\d+) for each of (\d+) threads, "
    r"input and output (\d+)\), the limit is (\d+); raise it with memory_limit \(--memory-limit of a command\)"
)

measured = pytest.mark.skipif(
    sys.platform != "linux" or "san" in os.environ.get("LD_PRELOAD", ""), reason="the peak is read from /proc, as it is"
)


def fed(part: int, parts: int, seconds: int = 60) -> dict[str, dict[str, Any]]:
    """What `support.hungry` says of every `parts`th of its files."""
    command = [sys.executable, "-m", "support.hungry", *map(str, (seconds, part, parts)), *TABLES]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def check_all(found: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Every file ran, was loaded only as it is too much work, or was refused for its memory; none took too much."""
    counts = {"ran": 0, "loaded": 0, "refused": 0}
    for name, result in found.items():
        said = result["said"]
        assert said in counts or REFUSED.search(said), f"{name}: {said}"
        assert result["grown"] <= MOST, f"{name}: {result}"
        assert result["bytes"] <= 1_000_000
        counts[said if said in counts else "refused"] += 1
    return counts


@measured
def test_no_small_file_takes_more_than_256_mb() -> None:
    counts = check_all(fed(3, 40))
    assert min(counts.values()) >= 3
    assert len(cases()) > 1500


@measured
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_small_file_takes_more_than_256_mb_at_length(part: int) -> None:
    counts = check_all(fed(part, 4))
    assert counts["ran"] > 100
    assert counts["refused"] > 30


# --- the files that once took gigabytes -------------------------------------------------------------------------------


def row_classes() -> Net:
    """98 KB: a thousand ops on a map of 2^20 rows, which had 4 MB each to say that all their rows are alike."""
    net = Net("integer", (1, 1 << 20, 1)).stream()
    for _ in range(1000):
        net.add("maxpool", net.shape)
    return net


def unequal_rows() -> Net:
    """Likewise, and no two of them are alike."""
    return cases()["float 900 unequal paddings"]()


def border_constants() -> Net:
    """Windows of 255 x 255 over as many pixels: 66 MB of constants each, for 65 KB of weights."""
    return cases()["integer 14 x borders"]()


def padded_map() -> Net:
    """1 KB of weights over a row of 2^20 pixels, which was copied with 508 rows of padding, for every thread."""
    return Net("integer", (4, 1, 1 << 20)).window("conv", 1, 255, "h", padded=1, stride=255)


def wide_gaps() -> Net:
    """A dilated window has as many ranges of taps as it has taps; each was looked up from the start for each row."""
    net = Net("float", (1, 1 << 19, 1)).bits()
    source = net.last
    for _ in range(400):
        net.last = source
        net.window("bconv", 1, 255, "h", padded=1, dilation=256)
    return net


@measured
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize(
    ("make", "loads"),
    [
        (row_classes, True),
        (unequal_rows, False),
        (border_constants, False),
        (padded_map, False),
        (wide_gaps, True),
    ],
)
@pytest.mark.parametrize("isa", TABLES)
def test_files_that_took_gigabytes(make: Callable[[], Net], loads: bool, isa: str, threads: int) -> None:
    """Loaded, not run, in some seconds of a CPU: it was half a minute."""
    data, _ = make().done()
    assert len(data) <= 1_000_000

    def job() -> dict[str, object]:
        begin = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        result = grow(data, float("inf"), isa, threads)
        return {**result, "seconds": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - begin}

    result: dict[str, Any] = in_fork(job)
    if make is padded_map and isa == "portable":
        loads = True  # which copies patch by patch
    assert (result["said"] == "loaded") if loads else REFUSED.search(result["said"]), result
    assert result["grown"] <= MOST, result
    assert result["seconds"] <= 4, result


# --- the budget itself ------------------------------------------------------------------------------------------------


def test_what_is_needed_is_said_and_may_be_allowed() -> None:
    data, _ = border_constants().done()
    for threads in (1, 3):
        with pytest.raises(ValueError, match=r"^the model: needs ") as refusal:
            Engine(data, threads=threads)
        found = REFUSED.search(str(refusal.value))
        assert found
        total, maps, weights, borders, scratch, given, arrays, limit = map(int, found.groups())
        assert (given, limit) == (threads, default_memory_limit(len(data)))
        assert total == maps + weights + borders + scratch * threads + arrays
        assert borders >= 14 * 509 * 509 * 64 * 4
    with pytest.raises(ValueError, match="needs"):
        Engine(data, memory_limit=total - 1, threads=3)
    engine = Engine(data, memory_limit=total, threads=3)
    memory = engine.memory
    assert (memory.maps, memory.weights, memory.borders) == (maps, weights, borders)
    assert (memory.scratch, memory.arrays, memory.total) == (3 * scratch, arrays, total)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_limits_that_are_none(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"memory_limit is .*, expected a number of bytes"):
        Engine(bnn.to_bytes(small_model()), memory_limit=limit)


def test_a_limit_of_any_size_is_one() -> None:
    data = bnn.to_bytes(small_model())
    assert Engine(data, memory_limit=1 << 200).run(np.zeros((1, 1, 1), np.float32)) == 0
    with pytest.raises(ValueError, match=r"bytes of memory .*, the limit is 1;"):
        Engine(data, memory_limit=1)


def test_equal_tables_of_classes_are_there_once() -> None:
    """A second layer like the first adds its constants alone: 3 x 3 classes of 64 channels and no rows."""

    def borders(count: int) -> int:
        net = Net("float", (1, 5000, 1)).bits()
        source = net.last
        for _ in range(count):
            net.last = source
            net.window("bconv", 1, 3, "h", padded=1)
        return Engine(net.done()[0]).memory.borders

    assert borders(2) - borders(1) == borders(3) - borders(2) == 5 * 64 * 4


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """It would be read for ever."""
    os.mkfifo(tmp_path / "pipe.bnn")
    with pytest.raises(ValueError, match="is not a regular file"):
        Engine(tmp_path / "pipe.bnn")


def test_memory_that_the_system_refuses_has_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bnn.to_bytes(small_model())
    engine = Engine(data)

    class Poor:
        memory, input_shape = engine._core.memory, engine.input_shape

        def run(self, batch: np.ndarray) -> np.ndarray:
            raise MemoryError("std::bad_alloc")

    engine._core = Poor()  # type: ignore[assignment]
    with pytest.raises(MemoryError, match=r"^the model: not enough memory to run it, which takes [\d,]+ byte"):
        engine.run(np.zeros((1, 1, 1), np.float32))

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(_core, "load", refuse)
    with pytest.raises(MemoryError, match=r"^the model: not enough memory to load it$"):
        Engine(data)
