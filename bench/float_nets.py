"""The float32 ResNets that the binary ones are compared with, as ONNX models with seeded weights.

Built node by node with onnx's helper, batch norm already folded into the convolutions (as every engine would
do at load time), so that neither torch nor a download is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
CIFAR_BLOCKS = {"cresnet20": (3, 3, 3)}


class _Net:
    """Collects nodes and initializers; every method returns the name of the value it made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w_{len(self.weights)}"
        std = np.sqrt(2.0 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        array = self.rng.normal(0.0, std, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x: str, cin: int, cout: int, k: int, stride: int) -> str:
        w, b = self.weight(cout, cin, k, k), self.weight(cout)
        return self.op("Conv", x, w, b, kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2] * 4)

    def pad_channels(self, x: str, before: int, after: int) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array([0, before, 0, 0, 0, after, 0, 0], np.int64), name))
        return self.op("Pad", x, name)

    def block(self, x: str, shortcut: str, cin: int, cout: int, stride: int) -> str:
        y = self.op("Relu", self.conv(x, cin, cout, 3, stride))
        y = self.conv(y, cout, cout, 3, 1)
        return self.op("Relu", self.op("Add", y, shortcut))


def float_resnet(
    name: str, *, num_classes: int | None = None, size: int | None = None, batch: int = 1, seed: int = 0
) -> onnx.ModelProto:
    """A float "resnet18", "resnet34" (torchvision's shape) or "cresnet20", with random weights.

    By default with its usual classes and input size.
    """
    cifar = name in CIFAR_BLOCKS
    size = size or (32 if cifar else 224)
    num_classes = num_classes or (10 if cifar else 1000)
    net = _Net(seed)
    x, channels = _cifar(net, CIFAR_BLOCKS[name]) if cifar else _imagenet(net, BLOCKS[name])
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    logits = net.op("Gemm", x, net.weight(num_classes, channels), net.weight(num_classes), transB=1)
    graph = helper.make_graph(
        net.nodes,
        name,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [batch, num_classes])],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def parameters(model: onnx.ModelProto) -> int:
    """As papers count them: before folding, with a batch norm's weight and bias for each bias of a convolution."""
    arrays = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    stored = sum(a.size for a in arrays.values() if a.dtype == np.float32)
    return stored + sum(arrays[node.input[2]].size for node in model.graph.node if node.op_type == "Conv")


def _imagenet(net: _Net, stages: tuple[int, ...]) -> tuple[str, int]:
    x = net.op("Relu", net.conv("input", 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    cin = 64
    for stage, blocks in enumerate(stages):
        cout = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = x if stride == 1 else net.conv(x, cin, cout, 1, stride)
            x = net.block(x, shortcut, cin, cout, stride)
            cin = cout
    return x, cin


def _cifar(net: _Net, stages: tuple[int, ...]) -> tuple[str, int]:
    """Shortcuts without weights, as in the binary network: average pooling, and zeros for the new channels."""
    x = net.op("Relu", net.conv("input", 3, 16, 3, 1))
    cin = 16
    for stage, blocks in enumerate(stages):
        cout = 16 << stage
        for _ in range(blocks):
            stride, shortcut = 1, x
            if cin != cout:
                pool = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
                stride, shortcut = 2, net.pad_channels(pool, cin // 2, cin // 2)
            x = net.block(x, shortcut, cin, cout, stride)
            cin = cout
    return x, cin
