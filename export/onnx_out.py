"""ONNX out: a graph as a front end made it becomes a model of standard operations, opset 18.

It comes back as the same graph: names stay, batch norms stay as trained, and a constant that is no float32 number is
kept as a double that is cast, which ONNX Runtime does once and `frontend.onnx_file` not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ovsw._version import __version__
from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.networks import InputSpec
from ovsw.util.files import replace_file

_OPSET, _IR = 18, 8
_LARGEST = 2**31 - 1  # bytes of one protobuf message


def write(
    graph: ir.Graph, path: str | os.PathLike[str], spec: InputSpec, name: str, about: dict[str, Any] | None = None
) -> int:
    """Writes `to_model(...)` whole or not at all; returns its size."""
    model = to_model(graph, spec, name, about)
    if model.ByteSize() > _LARGEST:
        raise ExportError(f"{path}: {model.ByteSize():,} bytes are more than one ONNX file holds")
    data = model.SerializeToString()
    try:
        replace_file(path, data)
    except OSError as e:
        raise ExportError(f"{path}: cannot be written: {e.strerror or e}") from None
    return len(data)


def to_model(graph: ir.Graph, spec: InputSpec, name: str, about: dict[str, Any] | None = None) -> onnx.ModelProto:
    """The model of a valid graph. `about` is added to its metadata, each entry as JSON: labels, source, ..."""
    outputs = [f"output_{i}" if i else "output" for i in range(len(graph.outputs))]
    writer = _Writer({"input", *outputs})
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


class _Writer:
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
        if type(node) not in _WRITERS:
            reason = f": {node.reason}" if isinstance(node, ir.Unsupported) else ""
            raise ExportError(f"{node.name} ({type(node).__name__}) cannot be written as ONNX{reason}")
        flat = isinstance(node, (ir.Linear, ir.Flatten)) or (
            isinstance(node, _EITHER) and all(source in self.vectors for source in node.inputs)
        )
        (self.vectors if flat else self.maps)[node] = _WRITERS[type(node)](self, node, flat)

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

    # One method per kind of node. Each returns the name of the node's value.

    def conv(self, node: ir.Conv, _: bool) -> str:
        inputs = [self.read(node.inputs[0]), self.tensor(f"{node.name}.weight", node.weight.astype(np.float32))]
        if node.bias is not None:
            inputs.append(self.real(f"{node.name}.bias", node.bias, -1))
        return self.op("Conv", node.name, *inputs, **_geometry(node), dilations=node.dilation, group=node.groups)

    def binary_conv(self, node: ir.BinaryConv, _: bool) -> str:
        """Conv over +-1, then its scale; plus the same over weights of 1, if the window's sum counts."""
        x, geometry = self.sign(node.inputs[0], node.strict), _geometry(node)
        if node.pad_value and any(node.pad):
            pads = self.whole(f"{node.name}.pads", _pads((0, 0, *node.pad)))
            x = self.op("Pad", f"{node.name}.padded", x, pads, self.real(f"{node.name}.pad_value", node.pad_value))
            geometry["pads"] = [0, 0, 0, 0]
        geometry = {**geometry, "dilations": node.dilation, "group": node.groups}
        signs = np.where(node.weight >= 0, np.float32(1), np.float32(-1))
        y = self.op("Conv", node.name, x, self.tensor(f"{node.name}.weight", signs), **geometry)
        if (node.scale != 1).any() or node.window_scale is not None:
            y = self.op("Mul", f"{node.name}.scaled", y, self.per_channel(f"{node.name}.scale", node.scale, False))
        if node.window_scale is None:
            return y
        ones = self.tensor(f"{node.name}.ones", np.ones_like(signs))
        window = self.op("Conv", f"{node.name}.window", x, ones, **geometry)
        scale = self.per_channel(f"{node.name}.window_scale", node.window_scale, False)
        return self.op("Add", f"{node.name}.sum", y, self.op("Mul", f"{node.name}.window.scaled", window, scale))

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

    def linear(self, node: ir.Linear, _: bool) -> str:
        x = self.read(node.inputs[0], flat=True)
        inputs = [x, self.tensor(f"{node.name}.weight", node.weight.astype(np.float32))]
        if node.bias is not None:
            inputs.append(self.real(f"{node.name}.bias", node.bias, -1))
        return self.op("Gemm", node.name, *inputs, transB=1)

    def norm(self, node: ir.Norm, flat: bool) -> str:
        x = self.read(node.inputs[0], flat)
        eps = float(str(np.float32(node.eps)))
        if eps != node.eps:  # an attribute is a float32; without it as an affine
            scale = node.weight / np.sqrt(node.running_var + node.eps)
            return self.chain(node, x, scale, node.bias - scale * node.running_mean, flat)
        numbers = [
            self.real(f"{node.name}.{what}", getattr(node, what), -1)
            for what in ("weight", "bias", "running_mean", "running_var")
        ]
        return self.op("BatchNormalization", node.name, x, *numbers, epsilon=eps)

    def affine(self, node: ir.Affine, flat: bool) -> str:
        return self.chain(node, self.read(node.inputs[0], flat), node.scale, node.offset, flat)

    def act(self, node: ir.Act, flat: bool) -> str:
        x = self.read(node.inputs[0], flat)
        if node.kind == "sigmoid":
            return self.op("Sigmoid", node.name, x)
        if node.kind == "step":
            return self.step(node.name, x, node.hi, node.lo, node.strict)
        if node.kind == "prelu":
            assert node.slope is not None
            slope = self.per_channel(f"{node.name}.slope", node.slope, flat)
            if node.positive is None:
                return self.op("PRelu", node.name, x, slope)
            positive = self.per_channel(f"{node.name}.positive", node.positive, flat)
            above = self.op("GreaterOrEqual", f"{node.name}.above", x, self.real(f"{node.name}.threshold", 0.0))
            branches = [
                self.op("Mul", f"{node.name}.{branch}", x, factor)
                for branch, factor in (("above_0", positive), ("below_0", slope))
            ]
            return self.op("Where", node.name, above, *branches)
        if (node.lo, node.hi) == (0.0, np.inf):
            return self.op("Relu", node.name, x)
        bounds = [
            self.real(f"{node.name}.{what}", value) if np.isfinite(value) else ""
            for what, value in (("lowest", node.lo), ("highest", node.hi))
        ]
        while bounds and not bounds[-1]:
            bounds.pop()
        return self.op("Clip", node.name, x, *bounds)

    def max_pool(self, node: ir.MaxPool, _: bool) -> str:
        options = {"dilations": node.dilation, **_windows(node)}
        return self.op("MaxPool", node.name, self.read(node.inputs[0]), **{**_geometry(node), **options})

    def avg_pool(self, node: ir.AvgPool, _: bool) -> str:
        x, options = self.read(node.inputs[0]), {**_geometry(node), **_windows(node)}
        counts = not node.exclude_pad
        if counts and options["pads"] != _pads(node.pad):  # what lies beyond the padding does not count
            around = self.whole(f"{node.name}.pads", [0, 0, *node.pad, 0, 0, *node.pad])
            x = self.op("Pad", f"{node.name}.padded", x, around)
            options["pads"] = [0, 0, *(after - p for after, p in zip(options["pads"][2:], node.pad))]
            counts = False
        return self.op("AveragePool", node.name, x, count_include_pad=int(counts), **options)

    def channel_pad(self, node: ir.ChannelPad, _: bool) -> str:
        pads = self.whole(f"{node.name}.pads", [0, node.before, 0, 0, 0, node.after, 0, 0])
        return self.op("Pad", node.name, self.read(node.inputs[0]), pads)

    def flatten(self, node: ir.Flatten, _: bool) -> str:
        return self.op("Flatten", node.name, self.read(node.inputs[0]), axis=1)

    def add_maps(self, node: ir.Add, flat: bool) -> str:
        return self.op("Add", node.name, *(self.read(source, flat) for source in node.inputs))

    def mul_maps(self, node: ir.Mul, flat: bool) -> str:
        return self.op("Mul", node.name, *(self.read(source, flat) for source in node.inputs))

    def concat(self, node: ir.Concat, flat: bool) -> str:
        return self.op("Concat", node.name, *(self.read(source, flat) for source in node.inputs), axis=1)

    def softmax(self, node: ir.Softmax, flat: bool) -> str:
        kind = "LogSoftmax" if node.log else "Softmax"
        return self.op(kind, node.name, self.read(node.inputs[0], flat), axis=1)

    def gather(self, node: ir.Gather, _: bool) -> str:
        """An operation per axis that is not taken as it is: Pad where only the ends are filled, else Gather."""
        x, source = self.read(node.inputs[0]), node.inputs[0]
        indices = (node.channels, node.rows, node.columns)
        chosen = [
            (axis, what, np.asarray(index))
            for axis, what, index in zip((1, 2, 3), ("channels", "rows", "columns"), indices)
            if not np.array_equal(index, np.arange(source.shape[axis - 1]))
        ]
        value = self.real(f"{node.name}.value", node.value) if any((c[2] < 0).any() for c in chosen) else ""
        pads = {axis: ends for axis, _, index in chosen if (ends := _ends(index, source.shape[axis - 1]))}
        left = [c for c in chosen if c[0] not in pads]
        if pads:
            around = [pads.get(axis, (0, 0)) for axis in range(4)]
            numbers = self.whole(f"{node.name}.pads", [b for b, _ in around] + [a for _, a in around])
            x = self.op("Pad", node.name if not left else f"{node.name}.padded", x, numbers, value)
        for i, (axis, what, index) in enumerate(left):
            length = source.shape[axis - 1]
            if (index < 0).any():  # one more, which is the filling
                after = self.whole(f"{node.name}.{what}_pads", [0] * 4 + [int(a == axis) for a in range(4)])
                x = self.op("Pad", f"{node.name}.{what}_filled", x, after, value)
            name = node.name if i == len(left) - 1 else f"{node.name}.of_{what}"
            numbers = self.whole(f"{node.name}.{what}", np.where(index < 0, length, index))
            x = self.op("Gather", name, x, numbers, axis=axis)
        return x if chosen else self.op("Identity", node.name, x)

    def bilinear(self, node: ir.Bilinear, __: bool) -> str:
        """Resize where that is what it is, else a product with a matrix of fractions on either side."""
        (_, h, w), (_, high, wide) = node.inputs[0].shape, node.shape
        x = self.read(node.inputs[0])
        places = (node.rows + node.row_fractions, node.columns + node.column_fractions)
        for how in ("half_pixel", "align_corners"):
            if np.allclose(places[0], _places(h, high, how)) and np.allclose(places[1], _places(w, wide, how)):
                sizes = self.whole(f"{node.name}.sizes", [high, wide])
                kind = {"mode": "linear", "coordinate_transformation_mode": how}
                return self.op("Resize", node.name, x, "", "", sizes, axes=[2, 3], **kind)
        rows = self.real(f"{node.name}.rows", _fractions(places[0], h), high, h)
        columns = self.real(f"{node.name}.columns", _fractions(places[1], w).T, w, wide)
        return self.op("MatMul", node.name, self.op("MatMul", f"{node.name}.of_rows", rows, x), columns)


def _geometry(node: ir.Window) -> dict[str, Any]:
    return {"kernel_shape": node.window, "strides": node.stride, "pads": _pads(node.pad)}


def _windows(node: ir.MaxPool | ir.AvgPool) -> dict[str, Any]:
    """How many windows there are: torch leaves out a last one that would begin in the padding, ONNX's ceil mode does
    not. Without it there are as many as fit, if need be into more padding at the end.
    """
    dilation = node.dilation if isinstance(node, ir.MaxPool) else (1, 1)
    covered = [(k - 1) * d + 1 for k, d in zip(node.window, dilation)]
    axes = list(zip(node.inputs[0].shape[1:], node.shape[1:], covered, node.stride, node.pad))
    if node.ceil and all(out == -(-(n + 2 * p - k) // s) + 1 for n, out, k, s, p in axes):
        return {"ceil_mode": 1}
    return {"ceil_mode": 0, "pads": [*node.pad, *(max(p, (out - 1) * s + k - n - p) for n, out, k, s, p in axes)]}


def _pads(pad: Sequence[int]) -> list[int]:
    """The same before and after."""
    return [*pad, *pad]


def _ends(index: np.ndarray, length: int) -> tuple[int, int] | None:
    """How many -1 are before and after, if all `length` places are in between, in order."""
    inside = np.flatnonzero(index >= 0)
    if len(inside) != length or not np.array_equal(index[inside[0] : inside[0] + length], np.arange(length)):
        return None
    return int(inside[0]), len(index) - int(inside[0]) - length


def _places(old: int, new: int, how: str) -> np.ndarray:
    """Where Resize finds each of `new` places among `old` ones."""
    if how == "align_corners":
        return np.arange(new) * ((old - 1) / max(1, new - 1))
    return np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)


def _fractions(places: np.ndarray, length: int) -> np.ndarray:
    """The matrix that interpolates between neighbours."""
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(length)))


_WRITERS: dict[type[ir.Node], Callable[[_Writer, Any, bool], str]] = {
    ir.Act: _Writer.act,
    ir.Add: _Writer.add_maps,
    ir.Affine: _Writer.affine,
    ir.AvgPool: _Writer.avg_pool,
    ir.Bilinear: _Writer.bilinear,
    ir.BinaryConv: _Writer.binary_conv,
    ir.ChannelPad: _Writer.channel_pad,
    ir.Concat: _Writer.concat,
    ir.Conv: _Writer.conv,
    ir.Flatten: _Writer.flatten,
    ir.Gather: _Writer.gather,
    ir.Linear: _Writer.linear,
    ir.MaxPool: _Writer.max_pool,
    ir.Mul: _Writer.mul_maps,
    ir.Norm: _Writer.norm,
    ir.Softmax: _Writer.softmax,
}
_EITHER = (ir.Act, ir.Add, ir.Affine, ir.Concat, ir.Mul, ir.Norm, ir.Softmax)  # on maps and vectors
