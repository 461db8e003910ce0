"""Graphs written as ONNX: every node in ONNX Runtime against torch, and what the file says of itself."""

from __future__ import annotations

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

SHAPE = (6, 7, 9)
SPEC = InputSpec(*SHAPE, mean=(0.25,) * 6, std=(0.5,) * 6, resize=11)
RNG = np.random.default_rng(0)
IMAGES = torch.tensor(RNG.normal(size=(2, *SHAPE)), dtype=torch.float32)
IMAGES[0, 0, :2] = 0  # where a sign has to choose
A, B = RNG.normal(size=6), RNG.normal(size=6)  # not float32 numbers
PER_MAP = [torch.tensor(values).view(-1, 1, 1) for values in (A, B)]


def image() -> ir.Input:
    return ir.Input("x", [], SHAPE)


def shape(y: Tensor) -> ir.Shape:
    c, h, w = (*y.shape[1:], 1, 1)[:3]
    return (c, h, w)


def pools() -> Iterator[tuple[str, ir.Node, Tensor]]:
    # The last two: in ceil mode a last window begins in the padding, in rows and columns, and in columns alone.
    sizes = (3, 2, 1, 1), (2, 2, 0, 1), (3, 3, 1, 1), (2, 1, 0, 2), (3, 2, 1, 2), (2, 2, 1, 1), (3, 7, 1, 1)
    for k, s, p, d in sizes:
        for ceil in (False, True):
            y = F.max_pool2d(IMAGES, k, s, p, d, ceil)
            node: ir.Node = ir.MaxPool("p", [image()], shape(y), (k, k), (s, s), (p, p), (d, d), ceil)
            yield f"max-{k}{s}{p}{d}-{ceil}", node, y
            for exclude in (False, True) if d == 1 else ():
                y = F.avg_pool2d(IMAGES, k, s, p, ceil, not exclude)
                node = ir.AvgPool("p", [image()], shape(y), (k, k), (s, s), (p, p), ceil, exclude)
                yield f"avg-{k}{s}{p}-{ceil}-{exclude}", node, y


def binary_convs() -> Iterator[tuple[str, ir.Node, Tensor]]:
    scale, window = RNG.normal(size=(2, 8))
    for groups in (1, 2):
        for value in (0.0, 1.0, -0.5):
            for strict in (False, True):
                for extra in (None, window):
                    weight = RNG.normal(size=(8, 6 // groups, 3, 3)).astype(np.float32)
                    signs = torch.where(IMAGES > 0 if strict else IMAGES >= 0, 1.0, -1.0)
                    x = F.pad(signs, (2, 2, 1, 1), value=value).double()
                    w = torch.tensor(weight).sign().double()
                    y = F.conv2d(x, w, None, (2, 1), 0, (1, 2), groups) * torch.tensor(scale).view(-1, 1, 1)
                    if extra is not None:
                        sums = F.conv2d(x, torch.ones_like(w), None, (2, 1), 0, (1, 2), groups)
                        y = y + sums * torch.tensor(extra).view(-1, 1, 1)
                    geometry = ((3, 3), (2, 1), (1, 2))
                    node = ir.BinaryConv(
                        "b", [image()], shape(y), *geometry, weight, scale, (1, 2), value, extra, strict
                    )
                    yield f"bconv-{groups}-{value}-{strict}-{extra is not None}", node, y


def bilinears() -> Iterator[tuple[str, ir.Node, Tensor]]:
    def places(old: int, new: int, corners: bool) -> tuple[np.ndarray, np.ndarray]:
        at = np.linspace(0, old - 1, new) if corners else np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        return np.floor(at).astype(np.int64), at - np.floor(at)

    for corners in (False, True):
        for size in ((14, 18), (5, 4), (10, 27)):
            y = F.interpolate(IMAGES, size=size, mode="bilinear", align_corners=corners)
            where = (*places(7, size[0], corners), *places(9, size[1], corners))
            yield f"bilinear-{corners}-{size}", ir.Bilinear("r", [image()], shape(y), *where), y
    half = F.interpolate(IMAGES, size=(5, 9), mode="bilinear")
    y = F.interpolate(half, size=(5, 4), mode="bilinear", align_corners=True)
    yield "bilinear-mixed", ir.Bilinear("r", [image()], shape(y), *places(7, 5, False), *places(9, 4, True)), y


def gathers() -> Iterator[tuple[str, ir.Node, Tensor]]:
    every = [np.arange(n) for n in SHAPE]
    for name, c, h, w in (
        ("any", np.array([5, -1, 0, 0, 3]), np.array([-1, -1, *range(7)]), np.array([8, -1, 2, 2])),
        ("shuffle", np.array([0, 3, 1, 4, 2, 5]), *every[1:]),
        ("pad", every[0], np.array([-1, *range(7), -1]), np.array([*range(9), -1])),
        ("crop", every[0], np.arange(2, 6), np.arange(0, 9, 2)),
        ("same", *every),
    ):
        y = np.full((2, len(c), len(h), len(w)), 0.3)
        for at in np.ndindex(len(c), len(h), len(w)):
            source = c[at[0]], h[at[1]], w[at[2]]
            if min(source) >= 0:
                y[(slice(None), *at)] = IMAGES.numpy()[(slice(None), *source)]
        yield f"gather-{name}", ir.Gather("g", [image()], y.shape[1:], c, h, w, 0.3), torch.tensor(y)


def elementwise() -> Iterator[tuple[str, ir.Node, Tensor]]:
    x, (a, b) = IMAGES.double(), PER_MAP
    for scale, offset in ((A, B), (A, 0 * B), (0 * A + 1, B), (0 * A + 1, 0 * B)):
        y = x * torch.tensor(scale).view(-1, 1, 1) + torch.tensor(offset).view(-1, 1, 1)
        yield f"affine-{bool(scale[0] != 1)}-{bool(offset.any())}", ir.Affine("a", [image()], SHAPE, scale, offset), y
    for eps in (1e-5, 1.23456789012e-3):
        y = F.batch_norm(x, torch.tensor(A), torch.tensor(B**2), torch.tensor(B), torch.tensor(A), eps=eps)
        yield f"norm-{eps}", ir.Norm("n", [image()], SHAPE, B, A, A, B**2, eps), y
    for lo, hi in ((0, np.inf), (-1.3, 1.3), (-np.inf, 0.1), (-0.2, np.inf), (-np.inf, np.inf)):
        yield f"clamp-{lo}-{hi}", ir.Act("c", [image()], SHAPE, "clamp", lo, hi), x.clamp(lo, hi)
    yield "prelu", ir.Act("p", [image()], SHAPE, "prelu", slope=A), torch.where(x < 0, x * a, x)
    yield "rprelu", ir.Act("p", [image()], SHAPE, "prelu", slope=A, positive=B), torch.where(x < 0, x * a, x * b)
    yield "sigmoid", ir.Act("s", [image()], SHAPE, "sigmoid"), x.sigmoid()
    for strict in (False, True):
        y = 0.1 + 0.6 * (x > 0 if strict else x >= 0).double()
        yield f"step-{strict}", ir.Act("s", [image()], SHAPE, "step", 0.1, 0.7, strict=strict), y
    for log in (False, True):
        y = torch.log_softmax(x, 1) if log else torch.softmax(x, 1)
        yield f"softmax-{log}", ir.Softmax("s", [image()], SHAPE, log), y
    yield "channels", ir.ChannelPad("c", [image()], (9, 7, 9), 1, 2), F.pad(x, (0, 0, 0, 0, 1, 2))


def layers() -> Iterator[tuple[str, ir.Node, Tensor]]:
    """A real convolution; a gate out of a vector, which then meets maps and other vectors."""
    x, i = IMAGES.double(), image()
    weight = RNG.normal(size=(4, 3, 2, 3)).astype(np.float32)
    y = F.conv2d(x, torch.tensor(weight).double(), torch.tensor(A[:4]), (1, 2), (1, 2), (1, 2), 2)
    yield "conv", ir.Conv("c", [i], shape(y), (2, 3), (1, 2), (1, 2), weight, A[:4], (1, 2)), y
    square = RNG.normal(size=(6, 6)).astype(np.float32)
    mean = ir.AvgPool("mean", [i], (6, 1, 1), (7, 9), (7, 9), (0, 0))
    fc = ir.Linear("fc", [mean], (6, 1, 1), square, B)
    gate = ir.Act("gate", [fc], (6, 1, 1), "sigmoid")
    logits = x.mean((2, 3)) @ torch.tensor(square).double().T + torch.tensor(B)
    yield "linear", fc, logits
    gated, gated_y = ir.Mul("gated", [i, gate], SHAPE), x * logits.sigmoid()[:, :, None, None]
    yield "gate", gated, gated_y
    total, total_y = ir.Add("sum", [gate, gated], SHAPE), gated_y + logits.sigmoid()[:, :, None, None]
    yield "add", total, total_y
    joined = ir.Concat("joined", [gated, i, total], (18, 7, 9))
    joined_y = torch.cat([gated_y, x, total_y], 1)
    yield "concat", joined, joined_y
    long = RNG.normal(size=(3, 18 * 63)).astype(np.float32)
    flat = ir.Flatten("flat", [joined], (18 * 63, 1, 1))
    yield "flatten", ir.Linear("last", [flat], (3, 1, 1), long), joined_y.flatten(1) @ torch.tensor(long).double().T
    vectors = ir.Concat("vectors", [fc, gate, mean], (18, 1, 1))
    twice = ir.Affine("twice", [vectors], (18, 1, 1), np.repeat(A, 3), np.repeat(B, 3))
    y = torch.cat([logits, logits.sigmoid(), x.mean((2, 3))], 1)
    yield "vectors", twice, y * torch.tensor(np.repeat(A, 3)) + torch.tensor(np.repeat(B, 3))


CASES = [*pools(), *binary_convs(), *bilinears(), *gathers(), *elementwise(), *layers()]


def graph(*outputs: ir.Node) -> ir.Graph:
    return ir.Graph(ir.reachable(*outputs), outputs=list(outputs))


def run(path: Path) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": IMAGES.numpy()})


@pytest.mark.parametrize(("node", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_node(node: ir.Node, expected: Tensor, tmp_path: Path) -> None:
    """In ONNX Runtime, and read back by our own front end in float64, which all digits of constants reach."""
    path = tmp_path / "m.onnx"
    onnx_out.write(graph(node), path, SPEC, "net")
    (got,) = run(path)
    expected = expected.double().reshape(2, *(node.shape[:1] if node.shape[1:] == (1, 1) else node.shape))
    np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
    again = onnx_file.Network(path, onnx_file.load(path))(IMAGES.double())
    exact = not isinstance(node, (ir.MaxPool, ir.AvgPool, ir.Bilinear))  # which torch has computed in float32 above
    np.testing.assert_allclose(again, expected, 1e-12 if exact else 1e-5, 1e-12 if exact else 1e-6)


SAME = (
    "bconv",
    "norm-1e-05",
    "clamp",
    "prelu",
    "rprelu",
    "sigmoid",
    "step",
    "softmax",
    "conv",
    "linear",
    "gate",
    "add",
)
BACK = [case for case in CASES if case[0].startswith(SAME) or case[0] in ("max-3311-True", "affine-True-True")]
BACK = [case for case in BACK if case[0] != "clamp--inf-inf"]  # which is nothing


def back(node: ir.Node, path: Path) -> ir.Graph:
    onnx_out.write(graph(node), path, SPEC, "net")
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
    onnx_out.write(graph(second, first, second), tmp_path / "m.onnx", SPEC, "net")
    results = run(tmp_path / "m.onnx")
    for got, y in zip(results, (IMAGES.clamp(-1, 1).sigmoid(), IMAGES.clamp(-1, 1), IMAGES.clamp(-1, 1).sigmoid())):
        np.testing.assert_allclose(got, y, 1e-5, 1e-6)
    model = onnx.load(tmp_path / "m.onnx")
    assert [v.name for v in model.graph.input] == ["input"]
    assert [v.name for v in model.graph.output] == ["output", "output_1", "output_2"]
    assert model.graph.node[0].name == "layer1.0.act"


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    size = onnx_out.write(graph(ir.Act("a", [image()], SHAPE, "sigmoid")), path, SPEC, "MyNet", {"labels": ["é", "b"]})
    assert size == path.stat().st_size
    model = onnx.load(path)
    about = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert about["arch"] == "MyNet"
    assert about["producer"].startswith("ovsw ")
    assert (about["mean"], about["std"], about["labels"]) == ([0.25] * 6, [0.5] * 6, ["é", "b"])
    assert [(d.domain, d.version) for d in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} == {""}
    spec = onnx_file.input_spec(path, model)
    assert (spec.shape, spec.mean, spec.std, spec.resize, spec.labels) == (SHAPE, SPEC.mean, SPEC.std, 11, ("é", "b"))


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    strange: Any = ir.Unsupported("strange", [image()], SHAPE, "is beyond us")
    with pytest.raises(ExportError, match=r"strange .*is beyond us"):
        onnx_out.write(graph(strange), tmp_path / "m.onnx", SPEC, "net")
    with pytest.raises(ExportError, match="cannot be written"):
        onnx_out.write(graph(ir.Act("a", [image()], SHAPE, "sigmoid")), tmp_path / "no" / "m.onnx", SPEC, "net")
    assert list(tmp_path.iterdir()) == []
