"""How a step is shared out over threads: the cost model's choice, and that its parts are the whole."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from ovsw import format as bnn
from ovsw._testing import Model, split
from ovsw.bench.random_nets import random_resnet

from support import ROOT


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("threads_tool", ROOT / "tools" / "threads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()

LAYERS = {  # pixels, channels, products
    "stem": (112 * 112, 64, 14.7),
    "64 channels": (56 * 56, 64, 9.0),
    "128 channels": (28 * 28, 128, 18.0),
    "512 channels": (49, 512, 72.0),
    "shortcut": (49, 512, 25.6),
    "classifier": (1, 1000, 51.2),
    "max pooling": (56 * 56, 64, 0.0),
    "average of a map": (1, 512, 0.0),
    "cresnet20": (1024, 16, 2.25),
    "odd": (37, 130, 5.0),
}


def modelled(layer: tuple[int, int, float], rows: int, columns: int, threads: int) -> float:
    """docs/kernels.md in numbers: rounds of parts, and a half; in multiples of 4 pixels and 64 channels."""
    pixels, channels, products = layer
    p, c = 4 * math.ceil(math.ceil(pixels / 4) / rows), 64 * math.ceil(math.ceil(channels / 64) / columns)
    part = 10_000 + (products * (p * c + 6 * c + 4 * p) if products else 0.5 * p * c)
    parts = rows * columns
    return (math.ceil(parts / threads) + (0.5 if parts > 1 else 0)) * part


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("name", LAYERS)
def test_no_simple_split_is_better(name: str, threads: int) -> None:
    layer = LAYERS[name]
    rows, columns = split(*layer, threads)
    assert 1 <= rows <= max(1, math.ceil(layer[0] / 4))
    assert 1 <= columns <= (math.ceil(layer[1] / 64) if layer[2] else 1)
    chosen = modelled(layer, rows, columns, threads)
    most = min(threads, math.ceil(layer[0] / 4))
    simple = [(1, 1), *((n * most, 1) for n in range(1, 5) if n * most <= math.ceil(layer[0] / 4))]
    if layer[2]:
        simple.append((1, min(threads, math.ceil(layer[1] / 64))))
    for other in simple:
        assert chosen <= modelled(layer, *other, threads), other


def test_choices() -> None:
    """Large maps by pixels, what has few of them by channels, what is small by nobody."""
    for threads in (2, 4, 8):
        rows, columns = split(*LAYERS["64 channels"], threads)
        assert rows > threads
        assert columns == 1
        assert split(*LAYERS["512 channels"], threads)[1] == threads
        assert split(*LAYERS["classifier"], threads) == (1, threads)
        assert split(*LAYERS["average of a map"], threads) == (1, 1)
    for layer in LAYERS.values():
        assert split(*layer, 1) == (1, 1)


def test_networks_use_it() -> None:
    engine = Model(bnn.to_bytes(random_resnet("resnet18", size=64, numerics="integer")), "portable")
    steps = {name: rest for name, *rest in engine.splits(4)}
    pixels, channels, products, rows, columns = steps["layer4.1.conv2"]
    assert (pixels, channels, products) == (4, 512, 72.0)
    assert (rows, columns) == split(4, 512, 72.0, 4)
    pixels, channels, products, rows, columns = steps["conv1"]
    assert (pixels, channels, products) == (1024, 64, pytest.approx(14.7))
    assert (rows, columns) == split(1024, 64, 14.7, 4)
    assert steps["maxpool"][2] == 0


def test_simulation() -> None:
    """Parts that are dealt out: against what can be said without running."""
    assert tool.makespan([3, 1, 1, 1], 2) == 3
    assert tool.makespan([1, 1, 1], 2) == 2
    assert tool.makespan([2, 5], 1) == 7
    for parts, threads in itertools.product(([1.0] * 7, [4, 3, 2, 1]), (1, 2, 3)):
        assert max(*parts, sum(parts) / threads) <= tool.makespan(parts, threads) <= sum(parts)


def test_simulation_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.bnn"
    bnn.write(random_resnet("cresnet20", numerics="integer"), path)
    assert tool.main([str(path), "--threads", "1,3", "--repeats", "2", "--steps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["1", "engine"],
        ["3", "engine"],
        ["3", "pixels"],
        ["3", "channels"],
    ]
    assert sum("3 threads, layer" in line for line in lines) >= 18
