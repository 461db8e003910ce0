"""The op-by-op judge notices faults of one step: each mutant changes one line of the passes that choose constants."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ir, reference
from ovsw.export.errors import ExportError
from ovsw.export.frontend.torch_module import trace
from ovsw.export.judge import Judge

from support.interpret import interpret
from support.random_ir import random_graph
from support.random_modules import BinaryConv, RandomModule, pictures

pytestmark = pytest.mark.usefixtures("one_torch_thread")
# In the order of their imports: what comes later uses what comes before.
MODULES = [
    importlib.import_module(f"ovsw.export.passes{name}")
    for name in (".constants", ".scales", ".zeros", ".sink", ".legalize", ".quantize", "")
]

MUTANTS = {
    "quantize": [
        # thresholds
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at), np.ceil(at))"),
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at) + 1, np.ceil(at) + 1)"),
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at) + 1, np.floor(at))"),
        ("at = wanted * known.steps - known.centre", "at = wanted * known.steps + known.centre"),
        ("at = wanted * known.steps - known.centre", "at = wanted * known.steps"),
        ("at = wanted * known.steps - known.centre", "at = wanted - known.centre"),
        # offsets
        ("return offset - (self.zeros.strict(op)", "return offset + (self.zeros.strict(op)"),
        ("return offset - (self.zeros.strict(op)", "return offset - 0 * (self.zeros.strict(op)"),
        ("np.abs(a) * steps, b * steps + residual.centre", "np.abs(a) * steps, b * steps + 1 + residual.centre"),
        ("np.abs(a) * steps, b * steps + residual.centre", "np.abs(a) * steps, b * steps - residual.centre"),
        ("+ residual.centre + (0.5 - self.centre(op)), taps)", "+ residual.centre + self.centre(op), taps)"),
        ("added = b * steps + residual.centre + (0.5", "added = b * steps + 1 + residual.centre + (0.5"),
        ("added * 2.0**s + (counts * centre)", "added * 2.0**s - (counts * centre)"),
        ("b * steps + a * source.centre + self.residual(op).centre", "b * steps + self.residual(op).centre"),
        ("b * steps + a * source.centre + self.residual(op).centre", "b * steps + a * source.centre"),
        ("a * source.centre * other.centre + (0.5", "1 + a * source.centre * other.centre + (0.5"),
        ('"offset": ("f64", source.centre)', '"offset": ("f64", source.centre + 1)'),
        ("b = b + a * (core.weight", "b = b - a * (core.weight"),
        # scales
        ("shape[0], 1 / source.steps)", "shape[0], 1.01 / source.steps)"),
        ("w *= steps / source.steps", "w *= (steps + 1) / source.steps"),
        ("a = a * (steps / source.steps)\n", "a = a * ((steps + 1) / source.steps)\n"),
        ("signs = positive ^ negative[:, None, None, None]", "signs = positive"),
        ("steps = rounded(slopes * _SLOPE)", "steps = rounded(slopes * (_SLOPE + 2))"),
        # ends and levels
        ("np.ceil(lo - 0.5)", "np.ceil(lo + 0.5)"),
        ("np.clip(np.rint(n * steps), -32768", "np.clip(np.rint(n * steps) + 1, -32768"),
        ("else np.floor(at + 0.5)", "else np.floor(at + 1.5)"),
    ],
    "constants": [
        ("return np.rint(np.clip(x,", "return 1 + np.rint(np.clip(x,"),
        ("self.value = self.a * self.y + self.b", "self.value = self.a * self.y + self.b + 1"),
        ("- m * self.y.astype(np.int64)", "- m * (self.y.astype(np.int64) + 1)"),
        ("floored(self.value * 2.0**s)", "floored(self.value * 2.0**s + 2.0**s)"),
        ("errors[:, i] = np.rint(rows[:, i] + wanted)", "errors[:, i] = np.rint(rows[:, i] + 8 * wanted)"),
    ],
    "zeros": [
        ("0.0 in (op.act.lo, op.act.hi)", "False"),
        ("return self._exact[op.value]", "return False"),
    ],
    "sink": [
        ("np.where(constant, below, affine.scale < 0)", "np.where(constant, ~below, affine.scale < 0)"),
        ("at = (wanted - affine.offset)", "at = (wanted + affine.offset)"),
        ("strict ^ inverted", "strict"),
        ("dot.positive ^ inverted[channels][:, :, None, None]", "dot.positive"),
        ("terms[i], offset = new.inputs[0], offset + new.offset", "terms[i], offset = new.inputs[0], offset"),
        ("added = (weight * offset).sum(axis=(1, 2, 3))", "added = 0 * (weight * offset).sum(axis=(1, 2, 3))"),
    ],
    "legalize": [
        ("np.abs(x.scale), x.offset)", "x.scale, x.offset)"),
        ("replace(core, positive=core.positive ^ negative, window", "replace(core, window"),
        ("node.weight.reshape(-1, h, w, c)", "node.weight.reshape(-1, h, w, c)[:, ::-1]"),
    ],
}


class Shifted(nn.Module):
    """Thresholds per channel, of both directions and one that is always reached; offsets before a convolution; a linear
    layer over a map in the middle.
    """

    shape = (3, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), BinaryConv(8, 3, True), BinaryConv(8, 1, True)
        self.real, self.wide, self.last = nn.Conv2d(8, 8, 1), nn.Linear(72, 6), nn.Linear(6, 4)
        self.scale = torch.tensor([1.0, -1.0, 0.5, -2.0, 0.0, 0.0, -1.5, 1.0]).view(1, 8, 1, 1)
        self.offset = torch.tensor([0.2, 0.1, -0.3, 0.0, 0.4, -0.4, 0.0, -0.1]).view(1, 8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([F.hardtanh(x[:, :4]), F.relu(x[:, 4:])], 1)
        y = self.one(torch.where(x * self.scale + self.offset >= 0, 1.0, -1.0)) + x
        y = F.hardtanh(y)
        z = self.two(torch.where(y - self.offset >= 0, 1.0, -1.0)) + self.real(y * 1.5 + self.offset) + y
        return self.last(F.relu(self.wide(F.avg_pool2d(z, 2).flatten(1))))


class Averages(nn.Module):
    """Of numbers at both ends of a clamp: many of them are exactly 0."""

    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), BinaryConv(8, 3, True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.hardtanh(9 * self.stem(x)), 2)
        return self.conv(torch.where(x > 0, 1.0, -1.0)).mean((2, 3))


@functools.cache
def cases() -> list[tuple[ir.Graph, np.ndarray, np.ndarray, np.ndarray]]:
    """Graphs with pixels, images and outputs: random ones, and those of random modules."""
    found = []
    modules: list[Any] = [Shifted(), Averages(), *(RandomModule(seed) for seed in range(60))]
    graphs = [trace(module.eval(), module.shape) for module in modules] + [random_graph(seed) for seed in range(30)]
    for seed, graph in enumerate(graphs):
        if any(isinstance(node, ir.Unsupported) or node.name.startswith("eq") for node in graph.nodes):
            continue  # whether sums are equal may hang on the order of their terms
        pixels = pictures(graph.input_shape, seed, 3)
        images = ((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.25)).transpose(0, 3, 1, 2)
        images = np.ascontiguousarray(images, np.float32)
        outputs = np.concatenate([o.reshape(3, -1) for o in interpret(graph, images.astype(np.float64))], axis=1)
        found.append((graph, pixels, images, outputs))
    return found


def faults(build: object, graph: ir.Graph, pixels: np.ndarray, images: np.ndarray, outputs: np.ndarray) -> list[str]:
    """What is wrong with the integer file of a graph: with the graph of its ops, or with an op."""
    mean, std = (np.full(images.shape[1], v, np.float32) for v in (0.5, 0.25))
    try:
        built = build(graph, mean, std, {}, "integer", calibration=images)  # type: ignore[operator]
    except ExportError:
        return []
    values = reference.values(built.graph, images)
    found = np.concatenate([values[node].double().numpy().reshape(3, -1) for node in built.graph.outputs], axis=1)
    off = np.abs(found - outputs).max()
    if off > 1e-6 * max(1.0, np.abs(outputs).max()):
        return [f"the graph is off by {off:.2g}"]
    judge = Judge(built.model, built.lowered)
    for i in range(len(pixels)):
        judge.image(pixels[i : i + 1], {node: value[i : i + 1] for node, value in values.items()})
    return list(judge.faults.values())


def run_again(changed: ModuleType | None = None, old: str = "", new: str = "") -> None:
    """Runs the passes' sources again, one of them with another line."""
    for module in MODULES:
        source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
        if module is changed:
            assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
            source = source.replace(old, new)
        exec(compile(source, inspect.getfile(module), "exec"), module.__dict__)


@pytest.fixture
def restored() -> Iterator[None]:
    saved = [dict(vars(module)) for module in MODULES]
    yield
    for module, attributes in zip(MODULES, saved):
        vars(module).clear()
        vars(module).update(attributes)


def test_nothing_is_wrong_with_these_networks() -> None:
    build = sys.modules["ovsw.export.passes"].build
    assert [found for case in cases() if (found := faults(build, *case))] == []


@pytest.mark.parametrize(("where", "old", "new"), [(m, *pair) for m, pairs in MUTANTS.items() for pair in pairs])
def test_a_wrong_line_is_noticed(where: str, old: str, new: str, restored: None) -> None:
    cases()  # made by the right passes
    run_again(sys.modules[f"ovsw.export.passes.{where}"], old, new)
    build = sys.modules["ovsw.export.passes"].build
    with np.errstate(all="ignore"), torch.no_grad():
        assert any(faults(build, *case) for case in cases())
