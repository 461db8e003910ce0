"""Each ONNX operation against ONNX's own test cases, and in its older spellings against ONNX Runtime."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ovsw.export.errors import ExportError
from ovsw.export.frontend import onnx_file
from ovsw.export.frontend.onnx_ops import OPS, Call, attribute

from support import pickles

ONLY_OURS = {"BipolarQuant", "Cast", "CastLike", "Upsample"}  # judged below; half precision is float32 here
REFUSED = ("expected (n, channels", "training mode", "resizes", "with dilation", "empty_set")


def cases(kind: str) -> list[Any]:
    """ONNX's cases of an operation that use it alone, on types that torch computes with."""
    node = importlib.import_module("onnx.backend.test.case.node")
    for module in pkgutil.iter_modules(node.__path__):
        if module.name.replace("_", "") in (kind.lower(), f"{kind.lower()}op"):
            importlib.import_module(f"{node.__name__}.{module.name}")
    found = [c for c in node._NodeTestCases if [n.op_type for n in c.model.graph.node] == [kind]]
    return [c for c in found if all(_known(a) for inputs, _ in c.data_sets for a in inputs)]


def _known(array: Any) -> bool:
    return isinstance(array, (np.ndarray, np.generic)) and array.dtype.name in (
        *("float16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64"),
    )


@pytest.mark.filterwarnings("ignore")  # numpy's, about cases with infinities
@pytest.mark.parametrize("kind", sorted(set(OPS) - ONLY_OURS))
def test_operation_computes_what_onnx_says(kind: str) -> None:
    passed, refused = 0, []
    for case in cases(kind):
        (node,) = case.model.graph.node
        names = [value.name for value in case.model.graph.input]
        attributes = {a.name: attribute(a) for a in node.attribute}
        for given, wanted in case.data_sets:
            values = dict(zip(names, (torch.tensor(np.asarray(a)) for a in given)))
            inputs = [values[name] if name else None for name in node.input]
            constant = [i > 0 for i in range(len(inputs))]
            call = Call(case.model.opset_import[0].version, attributes, len(node.output), constant)
            try:
                result = OPS[kind](call, *inputs)
            except (ValueError, IndexError) as e:
                refused.append(f"{case.name}: {e}")
                continue
            results = [result] if isinstance(result, torch.Tensor) else result
            for got, expected in zip(results, wanted):
                assert tuple(got.shape) == np.shape(expected), case.name
                np.testing.assert_allclose(got.double(), np.float64(expected), 1e-3, 1e-5, err_msg=case.name)
            passed += 1
    assert passed
    assert [text for text in refused if not any(words in text for words in REFUSED)] == []


def model(kind: str, opset: int, *constants: np.ndarray | None, domain: str = "", **attributes: Any) -> Any:
    """One operation on an image (1, 4, 6, 5), then constants."""
    tensors = [numpy_helper.from_array(a, f"c{i}") for i, a in enumerate(constants) if a is not None]
    inputs = ["x", *("" if a is None else f"c{i}" for i, a in enumerate(constants))]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, ["y"], name="node", domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    domains = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=domains, ir_version=min(8, 3 + (opset > 8)))


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("kind", "opset", "constants", "attributes"),
    [
        ("Softmax", 7, (), {"axis": 1}),
        ("Softmax", 11, (), {"axis": 2}),
        ("LogSoftmax", 12, (), {}),
        ("Softmax", 13, (), {}),
        ("Clip", 7, (), {"min": -0.3, "max": 0.7}),
        ("Clip", 10, (), {"max": 0.2}),
        ("Clip", 13, (np.float32(-0.1), None), {}),
        ("Dropout", 7, (), {"ratio": 0.3}),
        ("Pad", 9, (), {"pads": [0, 1, 2, 0, 0, 0, 1, 3], "value": 0.5}),
        ("Pad", 9, (), {"pads": [0, 0, 2, 1, 0, 0, 1, 3], "mode": "reflect"}),
        ("Pad", 11, (i64(0, 0, -2, 1, 0, 0, 1, -1), np.float32(1)), {}),
        ("Pad", 18, (i64(1, 2, 0, 2), None, i64(3, -2)), {"mode": "edge"}),
        ("Slice", 9, (), {"starts": [1, -4], "ends": [9, -1], "axes": [1, 2]}),
        ("Slice", 13, (i64(-1, 0), i64(-99, 99), i64(2, 3), i64(-2, 2)), {}),
        ("Squeeze", 7, (), {"axes": [0]}),
        ("Unsqueeze", 7, (), {"axes": [0, 3]}),
        ("ReduceMean", 9, (), {"axes": [2, 3]}),
        ("ReduceSum", 12, (), {"axes": [-1], "keepdims": 0}),
        ("ReduceMax", 17, (), {"axes": [1, 2], "keepdims": 0}),
        ("ReduceMean", 18, (i64(2, 3),), {}),
        ("ReduceSum", 13, (), {"noop_with_empty_axes": 1}),
        ("Upsample", 7, (), {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
        ("Upsample", 9, (f32(1, 1, 1.5, 2),), {"mode": "nearest"}),
        ("Resize", 10, (f32(1, 1, 2, 0.6),), {"mode": "nearest"}),
        ("Resize", 11, (f32(), f32(1, 1, 2, 2)), {"mode": "linear"}),
        ("Resize", 13, (None, None, i64(1, 4, 9, 4)), {"mode": "nearest"}),
        (
            *("Resize", 18, (None, None, i64(11, 3))),
            {"mode": "linear", "axes": [2, 3], "coordinate_transformation_mode": "align_corners"},
        ),
        ("Resize", 19, (None, f32(1, 1, 0.5, 1.7)), {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
        ("Resize", 13, (None, f32(1, 1, 3, 1.3)), {"mode": "nearest", "nearest_mode": "ceil"}),
        (
            *("Resize", 13, (None, f32(1, 1, 3, 1.3))),
            {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "pytorch_half_pixel"},
        ),
        ("AveragePool", 10, (), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1}),
        ("AveragePool", 7, (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("AveragePool", 7, (), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("MaxPool", 8, (), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 2, 1, 0]}),
        ("MaxPool", 10, (), {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ("MaxPool", 12, (), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("BatchNormalization", 7, (f32(1, 2, 3, 4), f32(1, 0, 1, 0), f32(0, 1, 0, 1), f32(1, 2, 1, 2)), {}),
        ("PRelu", 9, (f32(0.1, 0.2, 0.3, 0.4).reshape(4, 1, 1),), {}),
        ("PRelu", 9, (f32(0.1, 0.2, 0.3, 0.4, 0.5),), {}),
        ("Max", 8, (np.float32(0.3),), {}),
        ("Min", 13, (f32(0.1, 0.2, 0.3, 0.4).reshape(4, 1, 1), np.float32(0.25)), {}),
        ("Gather", 11, (np.array(-2),), {"axis": 1}),
        ("Gather", 11, (np.array([[3, -1], [0, 0]]),), {"axis": 1}),
        ("Conv", 11, (np.ones((2, 2, 3, 3), np.float32),), {"group": 2, "pads": [1, 0, 2, 1], "dilations": [2, 1]}),
        ("SpaceToDepth", 13, (), {"blocksize": 1}),
        ("Pow", 13, (np.int64(3),), {}),
    ],
)
def test_operation_in_older_and_newer_opsets(
    kind: str, opset: int, constants: Any, attributes: dict[str, Any], tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "one.onnx"
    data = model(kind, opset, *constants, **attributes).SerializeToString()
    path.write_bytes(data)
    x = np.random.default_rng(0).normal(size=(1, 4, 6, 5)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    network = onnx_file.Network(path, onnx_file.load(path))
    for dtype in (torch.float32, torch.float64):
        got = network(torch.tensor(x, dtype=dtype))
        assert got.dtype == dtype
        assert tuple(got.shape) == expected.shape
        np.testing.assert_allclose(got, expected, 1e-5, 1e-6)


@pytest.mark.parametrize("domain", ["", "qonnx.custom_op.general", "onnx.brevitas"])
def test_bipolar_quant(domain: str, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    path.write_bytes(model("BipolarQuant", 13, f32(0.5), domain=domain).SerializeToString())
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0, -1e-30]).expand(1, 4, 6, 5)
    assert onnx_file.Network(path, onnx_file.load(path))(x)[0, 0, 0].tolist() == [-0.5, 0.5, 0.5, 0.5, -0.5]


@pytest.mark.parametrize(
    ("kind", "opset", "constants", "attributes", "words"),
    [
        ("Resize", 13, (None, f32(1, 1, 2, 2)), {"mode": "cubic"}, "cubic"),
        ("Upsample", 9, (f32(1, 1, 2, 2),), {"mode": "linear"}, "asymmetric"),
        ("Dropout", 13, (np.float32(0.5), np.array(True)), {}, "training mode"),
        ("Expand", 13, (i64(1 << 30, 4, 6, 5),), {}, "makes a tensor of shape"),
        ("Conv", 13, (np.ones((2, 3, 3, 3), np.float32),), {}, "channels"),
        ("MaxPool", 13, (), {}, "kernel_shape"),
        ("Cast", 13, (), {"to": TensorProto.STRING}, "STRING"),
    ],
)
def test_what_cannot_be_computed_names_its_node(
    kind: str, opset: int, constants: Any, attributes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.onnx"
    path.write_bytes(model(kind, opset, *constants, **attributes).SerializeToString())
    with pytest.raises(ExportError, match=rf"node \({kind}\): .*{words}"):
        onnx_file.Network(path, onnx_file.load(path))(torch.zeros(1, 4, 6, 5))


def test_the_smallest_integer_divided_by_minus_one() -> None:
    """The CPU's own division ends the process, so a child tries it."""
    code = """
import torch
from ovsw.export.frontend.onnx_ops import OPS, Call
for kind, fmod in (("Div", 0), ("Mod", 0), ("Mod", 1)):
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8):
        a, b = torch.tensor([torch.iinfo(dtype).min, -7, 7], dtype=dtype), torch.tensor([-1, -1, 2], dtype=dtype)
        result = OPS[kind](Call(18, {"fmod": fmod}, 1, [True, True]), a, b)
        assert result.dtype == dtype
        print(kind, result.tolist()[1:])
"""
    assert sorted(set(pickles.in_child(code).splitlines())) == ["Div [7, 3]", "Mod [0, 1]"]
