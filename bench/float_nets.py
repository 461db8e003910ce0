"""The float32 ResNets that the binary ones are compared with, as ONNX models with seeded weights.

Built node by node with the helper of onnx, so that neither torch nor a download is needed. Batch norms are folded into
the convolutions, as every engine would do when it loads the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ovsw.bench.topology import NETWORKS, Topology


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
    spec = NETWORKS[name]
    shape = (spec.input if size is None else spec.input.at(size)).shape
    num_classes = num_classes or spec.num_classes
    net = _Net(seed)
    x, channels = _resnet(net, Topology(spec))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    logits = net.op("Gemm", x, net.weight(num_classes, channels), net.weight(num_classes), transB=1)
    graph = helper.make_graph(
        net.nodes,
        name,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, *shape])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [batch, num_classes])],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _resnet(net: _Net, topology: Topology) -> tuple[str, int]:
    """The last map and its channels."""
    channels, window, stride = topology.stem
    x = net.op("Relu", net.conv("input", 3, channels, window, stride))
    if topology.imagenet:
        x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in topology.blocks():
        shortcut, channels = x, block.cout
        if block.stride == 2 and topology.imagenet:
            shortcut = net.conv(x, block.cin, block.cout, 1, 2)
        elif block.stride == 2:
            pool = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
            shortcut = net.pad_channels(pool, block.cin // 2, block.cin // 2)
        x = net.block(x, shortcut, block.cin, block.cout, block.stride)
    return x, channels
