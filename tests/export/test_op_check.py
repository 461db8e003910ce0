"""The op-by-op check notices faults of one step: each mutant changes one line of the passes that choose constants."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ir, reference
from ovsw.export.errors import ExportError
from ovsw.export.frontend.torch_module import trace
from ovsw.export.op_check import OpCheck
from ovsw.export.passes import build

from support.interpret import interpret
from support.random_ir import random_graph
from support.random_modules import BinaryConv, RandomModule, pictures

pytestmark = pytest.mark.usefixtures("one_torch_thread")
MUTANTS = {
    "passes/quantize.py": [
        # thresholds
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at), np.ceil(at))"),
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at) + 1, np.ceil(at) + 1)"),
        ("np.floor(at) + 1, np.ceil(at))", "np.floor(at) + 1, np.floor(at))"),
        ("at = level * known.steps - known.centre", "at = level * known.steps + known.centre"),
        ("at = level * known.steps - known.centre", "at = level * known.steps"),
        ("at = level * known.steps - known.centre", "at = level - known.centre"),
        # offsets
        ("return offset - (self.zeros.strict(op)", "return offset + (self.zeros.strict(op)"),
        ("return offset - (self.zeros.strict(op)", "return offset - 0 * (self.zeros.strict(op)"),
        # slopes, ends and levels
        ("steps = rounded(slopes * one)", "steps = rounded(slopes * (_SLOPE + 2))"),
        ("np.ceil(lo - 0.5)", "np.ceil(lo + 0.5)"),
        ("np.clip(np.rint(n * steps), -32768", "np.clip(np.rint(n * steps) + 1, -32768"),
    ],
    "passes/zeros.py": [
        ("0.0 in (op.act.lo, op.act.hi)", "False"),
        ("return self._exact[op.value]", "return False"),
    ],
    "passes/legalize.py": [
        ("np.abs(x.scale), x.offset)", "x.scale, x.offset)"),
        ("replace(core, positive=core.positive ^ negative, window", "replace(core, window"),
        ("node.weight.reshape(-1, h, w, c)", "node.weight.reshape(-1, h, w, c)[:, ::-1]"),
    ],
    "ops/constants.py": [
        ("return np.rint(np.clip(x,", "return 1 + np.rint(np.clip(x,"),
        ("self.value = self.a * self.y + self.b", "self.value = self.a * self.y + self.b + 1"),
        ("- m * self.y.astype(np.int64)", "- m * (self.y.astype(np.int64) + 1)"),
        ("floored(self.value * 2.0**s)", "floored(self.value * 2.0**s + 2.0**s)"),
        ("errors[:, i] = np.rint(rows[:, i] + correction)", "errors[:, i] = np.rint(rows[:, i] + 8 * correction)"),
    ],
    "ops/binary.py": [
        ("np.abs(a) * steps, b * steps + residual.centre", "np.abs(a) * steps, b * steps + 1 + residual.centre"),
        ("np.abs(a) * steps, b * steps + residual.centre", "np.abs(a) * steps, b * steps - residual.centre"),
        ("+ (0.5 - quantizer.centre(op)), taps)", "+ quantizer.centre(op), taps)"),
        ("signs = positive ^ negative[:, None, None, None]", "signs = positive"),
        ("np.where(constant, below, affine.scale < 0)", "np.where(constant, ~below, affine.scale < 0)"),
        ("at = (level - affine.offset)", "at = (level + affine.offset)"),
        ("strict ^ inverted", "strict"),
        ("positive=self.positive ^ flipped", "positive=self.positive"),
    ],
    "ops/conv.py": [
        ("added = b * steps + residual.centre + (0.5", "added = b * steps + 1 + residual.centre + (0.5"),
        ("added * 2.0**s + (counts * centre)", "added * 2.0**s - (counts * centre)"),
        ("w *= steps / source.steps", "w *= (steps + 1) / source.steps"),
        ("(weight * offset).sum(axis=(1, 2, 3))", "0 * (weight * offset).sum(axis=(1, 2, 3))"),
    ],
    "ops/pool.py": [
        ("b * steps + a * source.centre + quantizer.residual", "b * steps + quantizer.residual"),
        ("a * source.centre + quantizer.residual(op).centre", "a * source.centre"),
        ("a = a * (steps / source.steps)\n", "a = a * ((steps + 1) / source.steps)\n"),
    ],
    "ops/add.py": [("offset = x.inputs[0], offset + x.offset", "offset = x.inputs[0], offset")],
    "ops/mul.py": [("a * source.centre * other.centre + (0.5", "1 + a * source.centre * other.centre + (0.5")],
    "ops/linear.py": [("b = b + a * (self.weight", "b = b - a * (self.weight")],
    "ops/gather.py": [("else np.floor(at + 0.5)", "else np.floor(at + 1.5)")],
    "ops/to_float.py": [
        ('"offset": ("f64", source.centre)', '"offset": ("f64", source.centre + 1)'),
        ("shape[0], 1 / source.steps)", "shape[0], 1.01 / source.steps)"),
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


def faults(graph: ir.Graph, pixels: np.ndarray, images: np.ndarray, outputs: np.ndarray) -> list[str]:
    """What is wrong with the integer file of a graph: with the graph of its ops, or with an op."""
    mean, std = (np.full(images.shape[1], v, np.float32) for v in (0.5, 0.25))
    try:
        built = build(graph, mean, std, {}, "integer", calibration=images)
    except ExportError:
        return []
    values = reference.values(built.graph, images)
    found = np.concatenate([values[node].double().numpy().reshape(3, -1) for node in built.graph.outputs], axis=1)
    off = np.abs(found - outputs).max()
    if off > 1e-6 * max(1.0, np.abs(outputs).max()):
        return [f"the graph is off by {off:.2g}"]
    check = OpCheck(built.model, built.lowered)
    for i in range(len(pixels)):
        check.image(pixels[i : i + 1], {node: value[i : i + 1] for node, value in values.items()})
    return list(check.faults.values())


def functions(namespace: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """All that a module defines, the methods of its classes included, by their full names."""
    for name, value in namespace.items():
        value = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, FunctionType):
            yield name, value
        elif isinstance(value, type):
            yield from ((f"{name}.{inner}", function) for inner, function in functions(vars(value), module))


@contextmanager
def changed(file: str, old: str, new: str) -> Iterator[None]:
    """The module with another line: its functions keep their identity and get the code of a changed copy."""
    module = importlib.import_module("ovsw.export." + file[:-3].replace("/", "."))
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {file}"
    copy: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), file, "exec"), copy)
    right, wrong = (dict(functions(names, module.__name__)) for names in (vars(module), copy))
    code = {function: function.__code__ for function in right.values()}
    try:
        for name, function in right.items():
            if function.__code__.co_filename == inspect.getfile(module):  # not what `dataclass` wrote
                function.__code__ = wrong[name].__code__
        yield
    finally:
        for function, before in code.items():
            function.__code__ = before


def test_nothing_is_wrong_with_these_networks() -> None:
    assert [found for case in cases() if (found := faults(*case))] == []


@pytest.mark.parametrize(("file", "old", "new"), [(file, *pair) for file, pairs in MUTANTS.items() for pair in pairs])
def test_a_wrong_line_is_noticed(file: str, old: str, new: str) -> None:
    cases()  # made by the right passes
    with changed(file, old, new), np.errstate(all="ignore"), torch.no_grad():
        assert any(faults(*case) for case in cases())
