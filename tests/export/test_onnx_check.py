"""The ONNX file is evaluated before it is written: a fault of the writer is found, and leaves no file behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from ovsw import nn as bnn
from ovsw.export import VerifyError, export_module, onnx_out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv = nn.Conv2d(3, 16, 3, 2, 1), bnn.BinaryConv2d(16, 16, 3, padding=1)
        self.norm, self.fc = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(self.norm(self.conv(x)) + x)
        return self.fc(nn.functional.max_pool2d(x, 2).mean((2, 3)))


def of_kind(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


def negated(model: onnx.ModelProto) -> None:
    """One output channel of the binary convolution."""
    conv = [node for node in model.graph.node if node.op_type == "Conv"][-1]
    tensor = next(t for t in model.graph.initializer if t.name == conv.input[1])
    array = numpy_helper.to_array(tensor).copy()
    array[3] *= -1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def dropped(model: onnx.ModelProto) -> None:
    of_kind(model, "Relu").op_type = "Identity"


def swapped(model: onnx.ModelProto) -> None:
    of_kind(model, "GreaterOrEqual").op_type = "LessOrEqual"


def unknown(model: onnx.ModelProto) -> None:
    of_kind(model, "Relu").attribute.add(name="nonsense", i=1, type=onnx.AttributeProto.INT)


@pytest.fixture(params=["ONNX Runtime", "onnx"])
def evaluator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "onnx":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    else:
        pytest.importorskip("onnxruntime")
    return str(request.param)


def test_a_right_file_is_written(evaluator: str, tmp_path: Path) -> None:
    export_module(Net(), (1, 3, 12, 12), tmp_path / "m.onnx", mean="cifar10", std="cifar10")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (negated, "the ONNX file differs from PyTorch by"),
        (dropped, "the ONNX file differs from PyTorch by"),
        (swapped, "the ONNX file differs from PyTorch by"),
        (unknown, "ONNX Runtime cannot load the ONNX file: .*nonsense"),
    ],
)
def test_a_wrong_file_is_not_written(
    fault: Callable[[onnx.ModelProto], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    write = onnx_out.to_model

    def wrong(*args: Any) -> onnx.ModelProto:
        model = write(*args)
        fault(model)
        return model

    monkeypatch.setattr(onnx_out, "to_model", wrong)
    with pytest.raises(VerifyError, match=words) as raised:
        export_module(Net(), (1, 3, 12, 12), tmp_path / "m.onnx", mean="cifar10", std="cifar10")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_evaluator_that_computes_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is right, but its meaning is another one than ours."""
    from onnx.reference import ReferenceEvaluator

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    run = ReferenceEvaluator.run
    monkeypatch.setattr(
        ReferenceEvaluator, "run", lambda *args: [out + (i == 0) * 1 for i, out in enumerate(run(*args))]
    )
    with pytest.raises(VerifyError, match="the ONNX file differs in onnx from what it says by"):
        export_module(Net(), (1, 3, 12, 12), tmp_path / "m.onnx", mean="cifar10", std="cifar10")
