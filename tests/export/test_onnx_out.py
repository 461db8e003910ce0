"""Graphs written as ONNX: every node in ONNX Runtime beside support.interpret, and what the file says of itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ovsw.export import ir, onnx_out
from ovsw.export.errors import ExportError
from ovsw.export.frontend import onnx_file
from ovsw.networks import InputSpec

from support.interpret import interpret

SHAPE = (6, 7, 9)
SPEC = InputSpec(*SHAPE, mean=(0.25,) * 6, std=(0.5,) * 6, resize=11)
RNG = np.random.default_rng(0)
IMAGES = torch.tensor(RNG.normal(size=(2, *SHAPE)), dtype=torch.float32)
IMAGES[0, 0, :2] = 0  # where a sign has to choose
A, B = RNG.normal(size=6), RNG.normal(size=6)  # not float32 numbers
Cases = Iterator[tuple[str, ir.Node]]


def image() -> ir.Input:
    return ir.Input("x", [], SHAPE)


def shape(y: Tensor) -> ir.Shape:
    c, h, w = y.shape[1:]
    return (c, h, w)


def pools() -> Cases:
    # The last two: in ceil mode a last window begins in the padding, in rows and columns, and in columns alone.
    sizes = (3, 2, 1, 1), (2, 2, 0, 1), (3, 3, 1, 1), (2, 1, 0, 2), (3, 2, 1, 2), (2, 2, 1, 1), (3, 7, 1, 1)
    for (k, s, p, d), ceil in itertools.product(sizes, (False, True)):
        result, geometry = shape(F.max_pool2d(IMAGES, k, s, p, d, ceil)), ((k, k), (s, s), (p, p))
        yield f"max-{k}{s}{p}{d}-{ceil}", ir.MaxPool("p", [image()], result, *geometry, (d, d), ceil)
        for exclude in (False, True) if d == 1 else ():
            yield f"avg-{k}{s}{p}-{ceil}-{exclude}", ir.AvgPool("p", [image()], result, *geometry, ceil, exclude)


def binary_convs() -> Cases:
    scale, window = RNG.normal(size=(2, 8))
    for groups, value, strict, extra in itertools.product((1, 2), (0.0, 1.0, -0.5), (False, True), (None, window)):
        weight = RNG.normal(size=(8, 6 // groups, 3, 3)).astype(np.float32)
        geometry = ((3, 3), (2, 1), (1, 2))
        node = ir.BinaryConv("b", [image()], (8, 4, 9), *geometry, weight, scale, (1, 2), value, extra, strict)
        yield f"bconv-{groups}-{value}-{strict}-{extra is not None}", node


def bilinears() -> Cases:
    def places(old: int, new: int, corners: bool) -> tuple[np.ndarray, np.ndarray]:
        at = np.linspace(0, old - 1, new) if corners else np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        return np.floor(at).astype(np.int64), at - np.floor(at)

    for rows, columns, size in (
        *((corners, corners, size) for corners in (False, True) for size in ((14, 18), (5, 4), (10, 27))),
        (False, True, (5, 4)),
    ):
        where = (*places(7, size[0], rows), *places(9, size[1], columns))
        yield f"bilinear-{rows}-{columns}-{size}", ir.Bilinear("r", [image()], (6, *size), *where)


def gathers() -> Cases:
    every = [np.arange(n) for n in SHAPE]
    for name, c, h, w in (
        ("any", np.array([5, -1, 0, 0, 3]), np.array([-1, -1, *range(7)]), np.array([8, -1, 2, 2])),
        ("shuffle", np.array([0, 3, 1, 4, 2, 5]), *every[1:]),
        ("pad", every[0], np.array([-1, *range(7), -1]), np.array([*range(9), -1])),
        ("crop", every[0], np.arange(2, 6), np.arange(0, 9, 2)),
        ("same", *every),
    ):
        yield f"gather-{name}", ir.Gather("g", [image()], (len(c), len(h), len(w)), c, h, w, 0.3)


def elementwise() -> Cases:
    for scale, offset in ((A, B), (A, 0 * B), (0 * A + 1, B), (0 * A + 1, 0 * B)):
        yield f"affine-{bool(scale[0] != 1)}-{bool(offset.any())}", ir.Affine("a", [image()], SHAPE, scale, offset)
    for eps in (1e-5, 1.23456789012e-3):
        yield f"norm-{eps}", ir.Norm("n", [image()], SHAPE, B, A, A, B**2, eps)
    for lo, hi in ((0, np.inf), (-1.3, 1.3), (-np.inf, 0.1), (-0.2, np.inf), (-np.inf, np.inf)):
        yield f"clamp-{lo}-{hi}", ir.Act("c", [image()], SHAPE, "clamp", lo, hi)
    yield "prelu", ir.Act("p", [image()], SHAPE, "prelu", slope=A)
    yield "rprelu", ir.Act("p", [image()], SHAPE, "prelu", slope=A, positive=B)
    yield "sigmoid", ir.Act("s", [image()], SHAPE, "sigmoid")
    for truth in (False, True):
        yield f"step-{truth}", ir.Act("s", [image()], SHAPE, "step", 0.1, 0.7, strict=truth)
        yield f"softmax-{truth}", ir.Softmax("s", [image()], SHAPE, truth)
    yield "channels", ir.ChannelPad("c", [image()], (9, 7, 9), 1, 2)


def layers() -> Cases:
    """A real convolution; a gate out of a vector, which then meets maps and other vectors."""
    i = image()
    weight = RNG.normal(size=(4, 3, 2, 3)).astype(np.float32)
    yield "conv", ir.Conv("c", [i], (4, 8, 5), (2, 3), (1, 2), (1, 2), weight, A[:4], (1, 2))
    mean = ir.AvgPool("mean", [i], (6, 1, 1), (7, 9), (7, 9), (0, 0))
    fc = ir.Linear("fc", [mean], (6, 1, 1), RNG.normal(size=(6, 6)).astype(np.float32), B)
    gate = ir.Act("gate", [fc], (6, 1, 1), "sigmoid")
    gated = ir.Mul("gated", [i, gate], SHAPE)
    total = ir.Add("sum", [gate, gated], SHAPE)
    joined = ir.Concat("joined", [gated, i, total], (18, 7, 9))
    flat = ir.Flatten("flat", [joined], (18 * 63, 1, 1))
    vectors = ir.Concat("vectors", [fc, gate, mean], (18, 1, 1))
    yield from (("linear", fc), ("gate", gated), ("add", total), ("concat", joined))
    yield "flatten", ir.Linear("last", [flat], (3, 1, 1), RNG.normal(size=(3, 18 * 63)).astype(np.float32))
    yield "vectors", ir.Affine("twice", [vectors], (18, 1, 1), np.repeat(A, 3), np.repeat(B, 3))


CASES = [*pools(), *binary_convs(), *bilinears(), *gathers(), *elementwise(), *layers()]


def graph(*outputs: ir.Node) -> ir.Graph:
    return ir.Graph(ir.reachable(*outputs), outputs=list(outputs))


def run(path: Path) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": IMAGES.numpy()})


@pytest.mark.parametrize("node", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_node(node: ir.Node, tmp_path: Path) -> None:
    """In ONNX Runtime, and read back by our own front end in float64, which all digits of constants reach."""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx_out.to_bytes(graph(node), SPEC, "net"))
    (expected,) = interpret(graph(node), IMAGES.numpy())
    expected = expected.reshape(2, *(node.shape[:1] if node.shape[1:] == (1, 1) else node.shape))
    np.testing.assert_allclose(run(path)[0], expected, 1e-4, 1e-5)
    again = onnx_file.Network(path, onnx_file.load(path))(IMAGES.double())
    np.testing.assert_allclose(again, expected, 1e-12, 1e-12)


SAME = (
    "bconv", "norm-1e-05", "clamp", "prelu", "rprelu", "sigmoid", "step", "softmax", "conv", "linear", "gate", "add"
)  # fmt: skip
BACK = [case for case in CASES if case[0].startswith(SAME) or case[0] in ("max-3311-True", "affine-True-True")]
BACK = [case for case in BACK if case[0] != "clamp--inf-inf"]  # which is nothing


def back(node: ir.Node, path: Path) -> ir.Graph:
    path.write_bytes(onnx_out.to_bytes(graph(node), SPEC, "net"))
    return onnx_file.source(path).graph


def assert_same(nodes: list[ir.Node], others: list[ir.Node]) -> None:
    """The same kinds, names, and every digit of their constants."""
    assert [(type(n), n.name, n.shape) for n in nodes] == [(type(n), n.name, n.shape) for n in others]
    for node, other in zip(nodes, others):
        assert [nodes.index(source) for source in node.inputs] == [others.index(source) for source in other.inputs]
        for what, value in vars(node).items():
            if what == "weight" and isinstance(node, ir.BinaryConv):
                np.testing.assert_array_equal(np.sign(other.weight), np.sign(value))
            elif what not in ("name", "inputs"):
                np.testing.assert_array_equal(getattr(other, what), value, err_msg=what)


@pytest.mark.parametrize("node", [case[1] for case in BACK], ids=[case[0] for case in BACK])
def test_node_comes_back_as_it_was(node: ir.Node, tmp_path: Path) -> None:
    assert_same(graph(node).nodes, back(node, tmp_path / "m.onnx").nodes)


@pytest.mark.parametrize("node", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_what_was_read_comes_back_as_it_was(node: ir.Node, tmp_path: Path) -> None:
    """All that a front end can give; it may spell a node otherwise than these cases do."""
    first = back(node, tmp_path / "m.onnx")
    if not isinstance(first.output, ir.Input) and not any(isinstance(n, ir.Unsupported) for n in first.nodes):
        assert_same(first.nodes, back(first.output, tmp_path / "n.onnx").nodes)


def test_several_outputs_and_names(tmp_path: Path) -> None:
    i = image()
    first = ir.Act("layer1.0.act", [i], SHAPE, "clamp", -1.0, 1.0)
    second = ir.Act("input", [first], SHAPE, "sigmoid")
    (tmp_path / "m.onnx").write_bytes(onnx_out.to_bytes(graph(second, first, second), SPEC, "net"))
    results = run(tmp_path / "m.onnx")
    for got, y in zip(results, (IMAGES.clamp(-1, 1).sigmoid(), IMAGES.clamp(-1, 1), IMAGES.clamp(-1, 1).sigmoid())):
        np.testing.assert_allclose(got, y, 1e-5, 1e-6)
    model = onnx.load(tmp_path / "m.onnx")
    assert [v.name for v in model.graph.input] == ["input"]
    assert [v.name for v in model.graph.output] == ["output", "output_1", "output_2"]
    assert model.graph.node[0].name == "layer1.0.act"


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    sigmoid = graph(ir.Act("a", [image()], SHAPE, "sigmoid"))
    path.write_bytes(onnx_out.to_bytes(sigmoid, SPEC, "MyNet", {"labels": ["é", "b"]}))
    model = onnx.load(path)
    about = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert about["arch"] == "MyNet"
    assert about["producer"].startswith("ovsw ")
    assert (about["mean"], about["std"], about["labels"]) == ([0.25] * 6, [0.5] * 6, ["é", "b"])
    assert [(d.domain, d.version) for d in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} == {""}
    spec = onnx_file.input_spec(path, model)
    assert (spec.shape, spec.mean, spec.std, spec.resize, spec.labels) == (SHAPE, SPEC.mean, SPEC.std, 11, ("é", "b"))


def test_what_cannot_be_written_is_named() -> None:
    strange: Any = ir.Unsupported("strange", [image()], SHAPE, "is beyond us")
    with pytest.raises(ExportError, match=r"strange .*is beyond us"):
        onnx_out.to_bytes(graph(strange), SPEC, "net")
