"""A module as calls that can be run again, and the exporter's node for each of them.

The exporter's own recorder sees what is computed for one image; training in the deployed arithmetic has to compute it
again, with other weights and with gradients. torch.fx records the calls, layers are recognised by their type, functions
by identity. What is not known becomes an `Unsupported` node.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend.layers import LAYERS, Converter, conv_fault, f32, f64, pair
from ovsw.nn import BinaryConv2d, Shift
from ovsw.util.text import first_line


def in_eval(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module on the CPU, in eval mode; tensors that already have this type are shared, not copied."""
    owned = (t for m in model.modules() for part in (m._parameters, m._buffers, vars(m)) for t in part.values())
    memo: dict[int, Any] = {}
    try:
        for tensor in (t for t in owned if isinstance(t, torch.Tensor)):
            value = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(value, requires_grad=False) if is_parameter else value
        return copy.deepcopy(model, memo).eval()
    except (TypeError, ValueError, RuntimeError) as e:
        raise ExportError(f"{type(model).__name__} cannot be copied: {first_line(e)}") from None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = _converter(m) is not None or isinstance(m, BinaryConv2d)
        return known or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs the graph and notes the shape of every tensor."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, torch.Tensor) else None
        return result


def recorded(model: nn.Module, input_shape: ir.Shape) -> fx.GraphModule:
    """The calls that `model` makes in eval mode for one image of `input_shape`, each with the shape of its result."""
    try:
        module = fx.GraphModule(model, _Tracer().trace(model))
    except (TypeError, ValueError, RuntimeError, fx.proxy.TraceError) as e:
        raise ExportError(f"{type(model).__name__} cannot be traced by torch.fx: {first_line(e)}") from None
    try:
        with torch.no_grad():
            _Shapes(module).run(torch.zeros(1, *input_shape))
    except Exception as e:  # whatever the network's own code raises for an input it does not fit
        raise ExportError(f"{type(model).__name__} does not take an input of {input_shape}: {first_line(e)}") from None
    return module


def converted(module: fx.GraphModule) -> tuple[ir.Graph, dict[fx.Node, ir.Node]]:
    """The graph of recorded calls with the numbers that the module has now, and the node that each call became."""
    converter = _Converter(module)
    return converter.convert(), converter.nodes


class _Converter:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.nodes: dict[fx.Node, ir.Node] = {}

    def convert(self) -> ir.Graph:
        for node in self.module.graph.nodes:
            if node.op == "output":
                result = node.args[0]
                if not isinstance(result, fx.Node) or result not in self.nodes:
                    raise ExportError("the network must return one tensor")
                return ir.Graph(ir.reachable(self.nodes[result]))
            if node.meta["shape"] is not None:  # sizes and other numbers are constants by now
                c, h, w = (*node.meta["shape"][1:], 1, 1, 1)[:3]  # a vector is a map of one pixel
                self.nodes[node] = self.node(node, (c, h, w))
        raise ExportError("the network returns nothing")

    def node(self, node: fx.Node, shape: ir.Shape) -> ir.Node:
        name = str(node.target) if node.op == "call_module" else node.name
        sources = [self.nodes[n] for n in node.all_input_nodes if n in self.nodes]
        if node.op == "placeholder":
            return ir.Input(name, [], shape)
        if len(node.meta["shape"]) not in (2, 4):
            return ir.Unsupported(name, sources, shape, f"gives a tensor of shape {node.meta['shape']}")
        arguments: dict[str, Any] = {}
        target: Any = node.target
        hint = ""
        if node.op == "call_module":
            target = self.module.get_submodule(str(node.target))
            known: Callable[..., ir.Node] | None = _converter(target)
            label, hint = f"layer of type {type(target).__name__}", "; ovsw.export.register_layer can make it known"
        elif node.op in ("call_function", "call_method"):
            known = _CALLS.get(target)
            label = getattr(target, "__name__", str(target)) + "()"
            arguments = self.arguments(node)
        else:
            known, label = None, f"{node.op} '{node.target}'"
        if known is None:
            return ir.Unsupported(name, sources, shape, f"{label} is not supported{hint}")
        if _is_in_place(node, target, arguments) and len(node.all_input_nodes[0].users) > 1:
            return ir.Unsupported(name, sources, shape, f"{label} changes in place what is also read elsewhere")
        try:
            result = known(name, sources, shape, target if node.op == "call_module" else arguments)
        except Exception as e:  # a user's converter can raise anything
            reason = f"{label}: its converter raises {type(e).__name__}: {first_line(e)}"
            return ir.Unsupported(name, sources, shape, reason)
        if not isinstance(result, ir.Node) or result.shape != shape:
            what = f"a node of shape {result.shape}" if isinstance(result, ir.Node) else f"{result!r}"
            return ir.Unsupported(name, sources, shape, f"{label}: its converter gave {what}, not a node of {shape}")
        if isinstance(result, ir.Window) and _window_shape(result) != shape[1:]:
            return ir.Unsupported(name, sources, shape, f"{label}: its rounding of the output size is not supported")
        return result

    def arguments(self, node: fx.Node) -> dict[str, Any]:
        """A call's arguments by name, as far as the signature is known; positional ones also as 0, 1, ..."""
        try:
            normal = node.normalized_arguments(self.module, normalize_to_only_use_kwargs=True)
        except RuntimeError:  # several signatures fit
            normal = None
        by_name = dict(node.kwargs if normal is None else normal.kwargs)
        return {**{str(i): a for i, a in enumerate(node.args)}, **by_name}


def _converter(module: nn.Module) -> Converter | None:
    return LAYERS.get(type(module)) or _MODULES.get(type(module))


def _is_in_place(node: fx.Node, target: Any, arguments: dict[str, Any]) -> bool:
    if node.op == "call_module":
        return bool(getattr(target, "inplace", False))
    return target is operator.iadd or str(target).endswith("_") or bool(arguments.get("inplace"))


def _window_shape(node: ir.Window) -> tuple[int, int]:
    sizes = zip(node.inputs[0].shape[1:], node.window, node.stride, node.pad)
    h, w = ((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
    return (h, w)


def _get(m: Any, name: str, default: Any = None) -> Any:
    """An attribute of a module, or an argument of a call."""
    return m.get(name, default) if isinstance(m, dict) else getattr(m, name, default)


# One converter per kind of layer. Each takes (name, inputs, shape, module), or the arguments for a function.


def _conv(name: str, inputs: list[ir.Node], shape: ir.Shape, m: nn.Conv2d) -> ir.Node:
    fault = conv_fault(m)
    if fault:
        return ir.Unsupported(name, inputs, shape, f"convolution with {fault} is not supported")
    geometry = (pair(m.kernel_size), pair(m.stride), pair(m.padding))
    bias = None if m.bias is None else f64(m.bias)
    return ir.Conv(name, inputs, shape, *geometry, weight=f32(m.weight), bias=bias)


def _linear(name: str, inputs: list[ir.Node], shape: ir.Shape, m: nn.Linear) -> ir.Node:
    if inputs[0].shape != (m.in_features, 1, 1):
        return ir.Unsupported(name, inputs, shape, f"a Linear of a {inputs[0].shape} map is not supported, flatten it")
    return ir.Linear(name, inputs, shape, f32(m.weight), None if m.bias is None else f64(m.bias))


def _norm(name: str, inputs: list[ir.Node], shape: ir.Shape, m: nn.BatchNorm2d) -> ir.Node:
    if m.running_mean is None or m.running_var is None:
        return ir.Unsupported(name, inputs, shape, "batch norm without running statistics is not supported")
    gamma = np.ones(m.num_features) if m.weight is None else f64(m.weight)
    beta = np.zeros(m.num_features) if m.bias is None else f64(m.bias)
    return ir.Norm(name, inputs, shape, gamma, beta, f64(m.running_mean), f64(m.running_var), m.eps)


def _shift(name: str, inputs: list[ir.Node], shape: ir.Shape, m: Shift) -> ir.Node:
    return ir.Affine(name, inputs, shape, np.ones(shape[0]), f64(m.bias).reshape(-1))


def _clamp(lo: float, hi: float) -> Callable[..., ir.Node]:
    return lambda name, inputs, shape, _: ir.Act(name, inputs, shape, "clamp", lo, hi)


def _hardtanh(name: str, inputs: list[ir.Node], shape: ir.Shape, m: Any) -> ir.Node:
    return ir.Act(name, inputs, shape, "clamp", float(_get(m, "min_val", -1.0)), float(_get(m, "max_val", 1.0)))


def _prelu(name: str, inputs: list[ir.Node], shape: ir.Shape, m: nn.PReLU) -> ir.Node:
    return ir.Act(name, inputs, shape, "prelu", slope=np.broadcast_to(f64(m.weight), shape[:1]).copy())


def _max_pool(name: str, inputs: list[ir.Node], shape: ir.Shape, m: Any) -> ir.Node:
    if pair(_get(m, "dilation", 1)) != (1, 1):
        return ir.Unsupported(name, inputs, shape, "max-pool with dilation is not supported")
    window = pair(_get(m, "kernel_size"))
    stride = pair(_get(m, "stride") or window)
    return ir.MaxPool(name, inputs, shape, window, stride, pair(_get(m, "padding", 0)))


def _avg_pool(name: str, inputs: list[ir.Node], shape: ir.Shape, m: Any) -> ir.Node:
    if pair(_get(m, "padding", 0)) != (0, 0) or _get(m, "divisor_override") is not None:
        return ir.Unsupported(name, inputs, shape, "average pool with padding or divisor_override is not supported")
    window = pair(_get(m, "kernel_size"))
    return ir.AvgPool(name, inputs, shape, window, pair(_get(m, "stride") or window), (0, 0))


def _adaptive_pool(name: str, inputs: list[ir.Node], shape: ir.Shape, _: Any) -> ir.Node:
    (h, w), (oh, ow) = inputs[0].shape[1:], shape[1:]
    if h % oh or w % ow:
        return ir.Unsupported(name, inputs, shape, f"adaptive pool from {h}x{w} to {oh}x{ow} is not supported")
    window = (h // oh, w // ow)
    if window == (1, 1):
        return inputs[0]
    return ir.AvgPool(name, inputs, shape, window, window, (0, 0))


def _add(name: str, inputs: list[ir.Node], shape: ir.Shape, a: dict[str, Any]) -> ir.Node:
    left, right = a.get("0", a.get("input")), a.get("1", a.get("other"))
    twice = inputs * 2 if isinstance(left, fx.Node) and left is right else inputs
    if len(twice) != 2 or any(n.shape != shape for n in twice) or a.get("alpha", 1) != 1:
        return ir.Unsupported(name, inputs, shape, "addition of anything but two maps of one shape is not supported")
    return ir.Add(name, twice, shape)


def _pad(name: str, inputs: list[ir.Node], shape: ir.Shape, a: dict[str, Any]) -> ir.Node:
    pad = [int(n) for n in a.get("pad", a.get("1", ()))]
    mode, value = a.get("mode", "constant"), a.get("value") or 0
    if mode != "constant" or value != 0 or any(pad[:4]) or any(pad[6:]) or any(n < 0 for n in pad):
        return ir.Unsupported(
            name, inputs, shape, f"padding {tuple(pad)} ({mode}) is not supported, only zero channels are"
        )
    before, after = (pad + [0] * 6)[4:6]
    return ir.ChannelPad(name, inputs, shape, before, after)


def _flatten(name: str, inputs: list[ir.Node], shape: ir.Shape, _: Any) -> ir.Node:
    c, h, w = inputs[0].shape
    if inputs[0].shape == shape:
        return inputs[0]
    if shape != (c * h * w, 1, 1):
        return ir.Unsupported(name, inputs, shape, f"reshaping {(c, h, w)} to anything but a vector is not supported")
    return ir.Flatten(name, inputs, shape)


def _identity(name: str, inputs: list[ir.Node], shape: ir.Shape, _: Any) -> ir.Node:
    return inputs[0]


_MODULES: dict[type[nn.Module], Converter] = {
    Shift: _shift,
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.Hardtanh: _hardtanh,
    nn.ReLU: _clamp(0.0, np.inf),
    nn.ReLU6: _clamp(0.0, 6.0),
    nn.PReLU: _prelu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: _flatten,
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout2d: _identity,
}
_CALLS: dict[Any, Callable[..., ir.Node]] = {  # functions, and methods by name
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    torch.flatten: _flatten,
    F.hardtanh: _hardtanh,
    F.relu: _clamp(0.0, np.inf),
    torch.relu: _clamp(0.0, np.inf),
    F.max_pool2d: _max_pool,
    F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_pool,
    F.pad: _pad,
    "add": _add,
    "add_": _add,
    "relu": _clamp(0.0, np.inf),
    "flatten": _flatten,
    "view": _flatten,
    "reshape": _flatten,
    "contiguous": _identity,
}
