"""The front end for ONNX files: an interpreter whose operations are torch's, for the recorder to record.

Operations that do not depend on the image are computed when the file is read, so weights become constants in any
spelling. The rest is computed in the image's precision; constants stored as double keep their digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import torch
from onnx.external_data_helper import uses_external_data
from torch import Tensor

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend import torch_module
from ovsw.export.frontend.onnx_limits import ANYWAY, LimitError, Limits, Meter, check_nodes
from ovsw.export.frontend.onnx_ops import OPS, Call, attribute, tensor
from ovsw.export.frontend.recorder import scope
from ovsw.export.source import Source, plain_input
from ovsw.networks import InputSpec
from ovsw.util.text import first_line

OLDEST = 7
_MOST_READS = 8  # of each byte of external data: tensors may share some
_GEOMETRY = ("window", "stride", "pad", "dilation", "pad_value", "strict")
_IMAGES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)


def source(path: Path, no_limits: bool = False) -> Source:
    """Reads an ONNX file with one image input. A symbolic batch is fine, a symbolic height or width is not.

    `no_limits`: however much memory and time it takes.
    """
    try:
        return _source(path, no_limits)
    except ExportError:
        raise
    except LimitError as e:
        raise ExportError(f"{path}: {e}") from None
    except Exception as e:  # such as names that are no text
        raise ExportError(f"{path}: is not an ONNX file, or damaged: {first_line(e)}") from None


def _source(path: Path, no_limits: bool) -> Source:
    model = load(path, no_limits)
    facts, spec = metadata(model), input_spec(path, model)
    with torch.no_grad():
        network = Network(path, model, Limits.none() if no_limits else Limits.of(model.ByteSize()))
        network.check_work(spec.shape)
    opened = torch_module.source(network, spec, facts.get("arch") or path.stem, path)
    opened.graph = rejoined(opened.graph)
    opened.parameters = network.size
    opened.learned_scale = bool(facts.get("learned_scale", False))
    opened.deployed = facts.get("deployed", {})
    opened.asks_normalisation = "mean" not in facts
    opened.origin = facts.get("source")
    return opened


def rejoined(graph: ir.Graph) -> ir.Graph:
    """Joins operations that `onnx_out` wrote for one node, which their names tell, to that node again."""
    return ir.rewrite(graph, _rejoined)


def _rejoined(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    x = inputs[0] if inputs else None
    whole = replace(node, inputs=inputs)
    if any(len(users[source]) != 1 for source in node.inputs):
        return whole
    if isinstance(node, ir.Affine) and isinstance(x, ir.Affine) and x.name == f"{node.name}.scaled":
        joins = (node.scale == 1).all() and (x.offset == 0).all()
        return replace(x, name=node.name, offset=node.offset) if joins else whole
    if isinstance(node, ir.Affine) and isinstance(x, ir.BinaryConv) and node.name == f"{x.name}.scaled":
        return replace(x, scale=node.scale) if (x.scale == 1).all() and (node.offset == 0).all() else whole
    if isinstance(node, ir.Add) and isinstance(x, ir.BinaryConv) and node.name == f"{x.name}.sum":
        ones = inputs[1]
        if not isinstance(ones, ir.BinaryConv) or ones.name != f"{x.name}.window":
            return whole
        same = all(getattr(x, what) == getattr(ones, what) for what in ("inputs", "shape", *_GEOMETRY))
        return replace(x, window_scale=ones.scale) if same and (ones.weight > 0).all() else whole
    return whole


def load(path: Path, no_limits: bool = False) -> onnx.ModelProto:
    """The model with its external data, local functions inlined, every operation known. Raises ExportError."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as e:
        raise ExportError(f"{path}: cannot be read: {e.strerror or e}") from None
    except Exception:  # of protobuf, whichever one is installed
        raise ExportError(f"{path}: is not an ONNX file, or a part of one") from None
    if not model.graph.node or not model.opset_import:
        raise ExportError(f"{path}: is not an ONNX file, or one without a network")
    if model.producer_name == "ovsw":  # whose nodes have the names that they share in their doc strings
        for node in model.graph.node:
            node.name = node.doc_string or node.name
    opset, newest = _opset(model), onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise ExportError(f"{path}: has opset {opset}, supported are {OLDEST} to {newest}")
    _load_external(path, model)
    check_nodes(model, no_limits)
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (RuntimeError, ValueError) as e:
            raise ExportError(f"{path}: its local functions cannot be inlined: {first_line(e)}") from None
    problems = [
        f"{_label(node)}: operation {'.'.join(filter(None, (node.domain, node.op_type)))} is not supported"
        for node in model.graph.node
        if node.op_type not in OPS
    ]
    if problems:
        raise ExportError(f"{path}: cannot be exported, {len(problems)} problem(s):", problems)
    return model


def metadata(model: onnx.ModelProto) -> dict[str, Any]:
    """The facts that `onnx_out` wrote about the network; values of a wrong type are left out."""
    kinds: dict[str, Any] = {"labels": (str, list), "resize": int, "deployed": dict}
    kinds |= dict.fromkeys(("arch", "source"), str) | dict.fromkeys(("mean", "std"), list)
    facts: dict[str, Any] = {}
    for entry in model.metadata_props:
        try:
            value = json.loads(entry.value)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, kinds.get(entry.key, bool)):
            facts[entry.key] = value
    return facts


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _label(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "a node without a name")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from (a.t for node in nodes for a in node.attribute if a.HasField("t"))


def _load_external(path: Path, model: onnx.ModelProto) -> None:
    """Reads tensors that are kept in files in the model's folder; other places are refused."""
    folder, files, total = path.resolve().parent, dict[Path, int](), 0
    for proto in _tensors(model):
        if not uses_external_data(proto):
            continue
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if len(entries) != len(proto.external_data):  # readers disagree about which of two equal keys counts
            raise ExportError(f"{path}: tensor '{proto.name}' repeats an entry of its external data")
        file = (folder / location).resolve()
        if not location or not file.is_relative_to(folder):
            raise ExportError(f"{path}: tensor '{proto.name}' is kept in '{location}', outside the model's folder")
        if not file.is_file():
            raise ExportError(f"{path}: tensor '{proto.name}' is kept in '{location}', which does not exist")
        try:
            data = _part(file, entries)
        except (OSError, ValueError) as e:
            raise ExportError(
                f"{path}: tensor '{proto.name}' cannot be read from '{location}': {first_line(e)}"
            ) from None
        files[file], total = file.stat().st_size, total + len(data)
        if total > _MOST_READS * sum(files.values()):
            raise ExportError(f"{path}: its tensors are {total} bytes, their files have {sum(files.values())}")
        proto.raw_data, proto.data_location = data, onnx.TensorProto.DEFAULT
        del proto.external_data[:]


def _part(file: Path, entries: dict[str, str]) -> bytes:
    """The bytes of a file that a tensor is kept in."""
    size = file.stat().st_size
    offset = int(entries.get("offset", 0))
    length = int(entries["length"]) if "length" in entries else size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise ValueError(f"bytes {offset} to {offset + length} of {size}")
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


def input_spec(path: Path, model: onnx.ModelProto) -> InputSpec:
    """The image that a model takes; unprepared, unless its metadata says more."""
    facts = metadata(model)
    filled = {proto.name for proto in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in filled]
    if len(inputs) != 1:
        names = ", ".join(f"'{value.name}'" for value in inputs)
        raise ExportError(f"{path}: has {len(inputs)} inputs{names and ': '}{names}; expected one, the image")
    (value,) = inputs
    dims = value.type.tensor_type.shape.dim
    text = ", ".join(d.dim_param or str(d.dim_value if d.HasField("dim_value") else "?") for d in dims)
    if value.type.tensor_type.elem_type not in _IMAGES or len(dims) != 4:
        raise ExportError(f"{path}: input '{value.name}' is ({text}), expected floats (n, channels, height, width)")
    batch, (channels, height, width) = dims[0], [d.dim_value for d in dims[1:]]
    if min(channels, height, width) < 1:
        raise ExportError(
            f"{path}: input '{value.name}' is ({text}); channels, height and width must be fixed when it is exported"
        )
    if batch.HasField("dim_value") and batch.dim_value != 1:
        raise ExportError(
            f"{path}: input '{value.name}' is ({text}), a batch of {batch.dim_value}; export it for 1 image"
        )
    spec, labels = plain_input(channels, height, width), facts.get("labels", ())
    mean, std = (_numbers(facts.get(key), channels) for key in ("mean", "std"))
    labels = labels if isinstance(labels, str) else tuple(map(str, labels))
    resize = facts.get("resize", spec.resize)
    return replace(spec, mean=mean or spec.mean, std=std or spec.std, resize=resize, labels=labels)


def _numbers(values: Any, count: int) -> tuple[float, ...] | None:
    usable = isinstance(values, list) and len(values) == count and all(isinstance(v, (int, float)) for v in values)
    return tuple(map(float, values)) if usable else None


class Network:
    """A model as a function of an image. What it does is recorded under the names of the nodes."""

    def __init__(self, path: Path, model: onnx.ModelProto, limits: Limits | None = None) -> None:
        self.path, self.limits = path, limits or Limits.of(model.ByteSize())
        graph = model.graph
        try:
            constants = {proto.name: tensor(proto) for proto in graph.initializer}
        except Exception as e:
            raise ExportError(f"{path}: {first_line(e)}") from None
        (image,) = (value for value in graph.input if value.name not in constants)
        self.image, self.outputs = image.name, [value.name for value in graph.output]
        self.one_by_one = image.type.tensor_type.shape.dim[0].HasField("dim_value")
        self.size = sum(t.numel() for t in constants.values() if t.is_floating_point())
        self.nodes: list[_Node] = []
        dependent = {self.image}
        meter = Meter("computing its constants", self.limits.constants, self.limits.work)
        for proto in graph.node:
            missing = [name for name in proto.input if name and name not in constants and name not in dependent]
            if missing:
                raise ExportError(f"{path}: {_label(proto)}: reads '{missing[0]}', which no earlier node computes")
            try:
                node = _Node(proto, _opset(model), [name not in dependent for name in proto.input])
            except Exception as e:
                raise ExportError(f"{path}: {_label(proto)} ({proto.op_type}): {first_line(e)}") from None
            if all(node.call.constant):
                with meter:
                    self._run(node, constants)
            else:
                dependent.update(filter(None, proto.output))
                self.nodes.append(node)
        lost = [name for name in self.outputs if name not in dependent]
        if lost or not self.outputs:
            what = f"its output '{lost[0]}' does not depend on its input" if lost else "it has no output"
            raise ExportError(f"{path}: {what}")
        last = {name: node for node in self.nodes for name in node.inputs}
        self.constants = {name: value for name, value in constants.items() if name in last}
        uses = sum(constants[name].numel() for node in self.nodes for name in node.inputs if name in constants)
        if uses > self.limits.weights:
            raise LimitError(f"has {uses:,} weights, the limit is {self.limits.weights:,.0f}{ANYWAY}")
        for name, node in last.items():
            if name not in self.outputs:
                node.finished.append(name)

    def check_work(self, shape: tuple[int, ...]) -> None:
        """Runs it once on an image of that shape. Raises LimitError or ExportError before something takes too much."""
        meter = Meter("one image", self.limits.maps, self.limits.work)
        meter.add(math.prod(shape))
        with meter:
            self(torch.zeros(1, *shape))

    def __call__(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.one_by_one and len(x) > 1:
            each = [self._outputs(image[None]) for image in x]
            outputs = tuple(torch.cat(parts) for parts in zip(*each))
        else:
            outputs = self._outputs(x)
        return outputs[0] if len(outputs) == 1 else outputs

    def _outputs(self, x: Tensor) -> tuple[Tensor, ...]:
        values = {**self.constants, self.image: x}
        for node in self.nodes:
            with scope(node.label, node.kind):
                self._run(node, values, x.dtype)
            for name in node.finished:
                values.pop(name, None)
        return tuple(values[name] for name in self.outputs)

    def _run(self, node: _Node, values: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
        try:
            results = node.run([values[name] if name else None for name in node.inputs], dtype)
        except ExportError:
            raise
        except Exception as e:  # whatever torch raises for what a file says
            raise ExportError(f"{self.path}: {node.label} ({node.kind}): {first_line(e)}") from None
        values.update((name, result) for name, result in zip(node.outputs, results) if name)


class _Node:
    """One node. Its constants may be wider than the image: it computes in the wider type and gives the image's."""

    def __init__(self, proto: onnx.NodeProto, opset: int, constant: list[bool]) -> None:
        self.label, self.kind = _label(proto), proto.op_type
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.finished: list[str] = []  # values that nobody reads after this node
        attributes = {a.name: attribute(a) for a in proto.attribute}
        self.call = Call(opset, attributes, len(self.outputs), constant)

    def run(self, inputs: list[Tensor | None], dtype: torch.dtype | None) -> list[Tensor]:
        """Its outputs; `dtype` is the image's, None for what does not depend on it."""
        self.call.dtype = dtype
        if self.kind not in ("Cast", "CastLike"):
            inputs = _alike(inputs)
        result = OPS[self.kind](self.call, *inputs)
        results = [result] if isinstance(result, Tensor) else list(result)
        return results if dtype is None else [r.to(dtype) if r.is_floating_point() else r for r in results]


def _alike(inputs: list[Tensor | None]) -> list[Tensor | None]:
    """All floats in the widest type among them."""
    floats = {x.dtype for x in inputs if x is not None and x.is_floating_point()}
    if len(floats) < 2:
        return inputs
    return [x.to(torch.float64) if x is not None and x.is_floating_point() else x for x in inputs]
