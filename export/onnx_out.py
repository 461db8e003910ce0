"""ONNX out: a graph as a front end made it becomes a model of standard operations, opset 18.

Reading the file again gives the same graph: names and batch norms are kept. A constant that is not a float32 number is
stored as a double with a cast, which ONNX Runtime does once and `frontend.onnx_file` not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ovsw._version import __version__
from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.networks import InputSpec

_OPSET, _IR = 18, 8
_LARGEST = 2**31 - 1  # bytes of one protobuf message


def to_bytes(graph: ir.Graph, spec: InputSpec, name: str, about: dict[str, Any] | None = None) -> bytes:
    """The file of `to_model(...)`."""
    model = to_model(graph, spec, name, about)
    if model.ByteSize() > _LARGEST:
        raise ExportError(f"the ONNX file would have {model.ByteSize():,} bytes, the most is {_LARGEST:,}")
    return model.SerializeToString()


def to_model(graph: ir.Graph, spec: InputSpec, name: str, about: dict[str, Any] | None = None) -> onnx.ModelProto:
    """The model of a valid graph. `about` is added to its metadata, each entry as JSON: labels, source, ..."""
    outputs = [f"output_{i}" if i else "output" for i in range(len(graph.outputs))]
    writer = Writer({"input", *outputs})
    for node in graph.nodes:
        writer.add(node)
    model = helper.make_model(
        helper.make_graph(
            writer.nodes,
            name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *graph.input_shape])],
            [writer.output(*pair) for pair in zip(outputs, graph.outputs)],
            writer.tensors,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
        producer_name="ovsw",
        producer_version=__version__,
    )
    facts = {"arch": name, "mean": spec.mean, "std": spec.std, "resize": spec.resize, "labels": spec.labels}
    facts = {"producer": f"ovsw {__version__}", **facts, **(about or {})}
    helper.set_model_props(model, {key: json.dumps(value) for key, value in facts.items()})
    if model.ByteSize() <= _LARGEST:
        onnx.checker.check_model(model, full_check=True)
    return model


class Writer:
    """Collects ONNX nodes and tensors. A map of one pixel may be held as a vector (n, channels) or as a map."""

    def __init__(self, reserved: set[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.taken = reserved
        self.maps: dict[ir.Node, str] = {}
        self.vectors: dict[ir.Node, str] = {}
        self.signs: dict[tuple[ir.Node, bool], str] = {}

    def add(self, node: ir.Node) -> None:
        if isinstance(node, ir.Input):
            self.maps[node] = "input"
            return
        flat = isinstance(node, (ir.Linear, ir.Flatten)) or (
            node.on_vectors and all(source in self.vectors for source in node.inputs)
        )
        try:
            (self.vectors if flat else self.maps)[node] = node.to_onnx(self, flat)
        except NotImplementedError:
            reason = f": {node.reason}" if isinstance(node, ir.Unsupported) else ""
            raise ExportError(f"{node.name} ({type(node).__name__}) cannot be written as ONNX{reason}") from None

    def output(self, name: str, node: ir.Node) -> onnx.ValueInfoProto:
        """A result of the network: a vector if it has one pixel, else a map."""
        flat = node.shape[1:] == (1, 1)
        shape = ["batch", *(node.shape[:1] if flat else node.shape)]
        self.nodes.append(helper.make_node("Identity", [self.read(node, flat)], [name], name=name))
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def read(self, node: ir.Node, flat: bool = False) -> str:
        """The value of a node, as a map or a vector."""
        values, others = (self.vectors, self.maps) if flat else (self.maps, self.vectors)
        if node not in values:
            if flat:
                values[node] = self.op("Flatten", f"{node.name}.vector", others[node], axis=1)
            else:
                axes = self.whole(f"{node.name}.axes", [2, 3])
                values[node] = self.op("Unsqueeze", f"{node.name}.map", others[node], axes)
        return values[node]

    def op(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its value: the node's own, made unique where several nodes share it.

        The node has that name, too, as ONNX Runtime wants unique ones, and its own one in the doc string.
        """
        value = self.unique(name)
        own = "" if value == name else name
        self.nodes.append(helper.make_node(kind, list(inputs), [value], value, own, **attributes))
        return value

    def unique(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def tensor(self, name: str, array: np.ndarray) -> str:
        name = self.unique(name)
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def whole(self, name: str, numbers: Sequence[int] | np.ndarray) -> str:
        return self.tensor(name, np.asarray(numbers, np.int64))

    def real(self, name: str, numbers: Any, *shape: int) -> str:
        """A constant, with all its digits."""
        array = np.asarray(numbers, np.float64).reshape(shape)
        single = array.astype(np.float32)
        if (single == array).all():
            return self.tensor(name, single)
        return self.op("Cast", f"{name}.float", self.tensor(name, array), to=TensorProto.FLOAT)

    def per_channel(self, name: str, numbers: np.ndarray, flat: bool) -> str:
        return self.real(name, numbers, *((-1,) if flat else (-1, 1, 1)))

    def chain(self, node: ir.Node, x: str, scale: np.ndarray | None, offset: np.ndarray | None, flat: bool) -> str:
        """scale * x + offset, without what is 1 and 0; the last operation has the node's name."""
        steps = [
            ("Mul", "scale", scale if scale is not None and (scale != 1).any() else None),
            ("Add", "offset", offset if offset is not None and (offset != 0).any() else None),
        ]
        left = [step for step in steps if step[2] is not None]
        for i, (kind, what, numbers) in enumerate(left):
            assert numbers is not None
            name = node.name if i == len(left) - 1 else f"{node.name}.{what}d"
            x = self.op(kind, name, x, self.per_channel(f"{node.name}.{what}", numbers, flat))
        return x if left else self.op("Identity", node.name, x)

    def sign(self, x: ir.Node, strict: bool) -> str:
        """+1 or -1, once for all who read it."""
        if (x, strict) not in self.signs:
            self.signs[x, strict] = self.step(f"{x.name}.sign", self.read(x), 1.0, -1.0, strict)
        return self.signs[x, strict]

    def step(self, name: str, x: str, high: float, low: float, strict: bool) -> str:
        above = self.op(
            "Greater" if strict else "GreaterOrEqual", f"{name}.above", x, self.real(f"{name}.threshold", 0.0)
        )
        return self.op("Where", name, above, self.real(f"{name}.high", high), self.real(f"{name}.low", low))
