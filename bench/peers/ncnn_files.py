"""Writes the float ResNets of ovsw.bench.float_nets as files for ncnn.

Covers the few ONNX ops that those have. As in ncnn's own converter, a ReLU after a convolution becomes part of it, and
a value with several readers goes through a Split layer.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import numpy_helper

_FLOAT32_WEIGHTS = b"\0\0\0\0"  # the tag before a layer's weights
_PLAIN = {  # without weights and window
    "Relu": ("ReLU", {}),
    "Flatten": ("Flatten", {}),
    "Add": ("BinaryOp", {"_0": 0}),
    "GlobalAveragePool": ("Pooling", {"_0": 1, "_4": 1}),
}


def to_ncnn(model: onnx.ModelProto) -> tuple[str, bytes]:
    """The text of the .param file and the bytes of the .bin file; input "input", output "logits"."""
    graph = model.graph
    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input if name not in weights)
    nodes = {node.output[0]: node for node in graph.node}
    layers: list[str] = []
    blobs = 0
    data: list[bytes] = []
    queue: dict[str, list[str]] = {}  # the blobs that hold a value, one for each of its readers
    alias = {graph.output[0].name: "logits"}

    def layer(kind: str, inputs: list[str], value: str, **params: int) -> None:
        nonlocal blobs
        name = alias.get(value, value)
        numbers = [f"{key[1:]}={number}" for key, number in params.items()]
        layers.append(" ".join([kind, f"l_{name}", str(len(inputs)), "1", *inputs, name, *numbers]))
        blobs += 1
        queue[value] = [name]
        if readers[value] > 1:
            queue[value] = [f"{name}_{i}" for i in range(readers[value])]
            blobs += readers[value]
            layers.append(" ".join(["Split", f"s_{name}", "1", str(readers[value]), name, *queue[value]]))

    def take(value: str) -> str:
        return queue[value].pop()

    def attributes(node: onnx.NodeProto) -> dict[str, list[int]]:
        return {a.name: list(a.ints) for a in node.attribute}

    def constants(weight: np.ndarray, bias: np.ndarray) -> None:
        data.extend([_FLOAT32_WEIGHTS, weight.astype("<f4").tobytes(), bias.astype("<f4").tobytes()])

    layer("Input", [], graph.input[0].name)
    for node in graph.node:
        out = node.output[0]
        kind = node.op_type
        if kind == "Relu" and nodes[node.input[0]].op_type == "Conv" and readers[node.input[0]] == 1:
            continue  # written with its convolution
        if kind == "Conv":
            weight, bias = weights[node.input[1]], weights[node.input[2]]
            a = attributes(node)
            after = [n for n in graph.node if out in n.input]
            relu = len(after) == 1 and after[0].op_type == "Relu"
            shape = {"_0": weight.shape[0], "_1": a["kernel_shape"][0], "_3": a["strides"][0], "_4": a["pads"][0]}
            target = after[0].output[0] if relu else out
            layer("Convolution", [take(node.input[0])], target, **shape, _5=1, _6=weight.size, _9=int(relu))
            constants(weight, bias)
        elif kind in _PLAIN:
            name, params = _PLAIN[kind]
            layer(name, [take(value) for value in node.input], out, **params)
        elif kind in ("MaxPool", "AveragePool"):
            a = attributes(node)
            shape = {"_1": a["kernel_shape"][0], "_2": a["strides"][0], "_3": a.get("pads", [0])[0]}
            layer("Pooling", [take(node.input[0])], out, _0=int(kind == "AveragePool"), **shape, _5=1)
        elif kind == "Pad":
            _, front, top, left, _, behind, bottom, right = (int(n) for n in weights[node.input[1]])
            sides = {"_0": top, "_1": bottom, "_2": left, "_3": right, "_7": front, "_8": behind}
            layer("Padding", [take(node.input[0])], out, **sides)
        elif kind == "Gemm":
            weight, bias = weights[node.input[1]], weights[node.input[2]]
            layer("InnerProduct", [take(node.input[0])], out, _0=weight.shape[0], _1=1, _2=weight.size)
            constants(weight, bias)
        else:
            raise ValueError(f"op {kind} of {node.name} is not known here")
    return f"7767517\n{len(layers)} {blobs}\n" + "\n".join(layers) + "\n", b"".join(data)
