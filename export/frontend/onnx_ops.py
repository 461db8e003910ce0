"""What each ONNX operation computes, in torch functions: `OPS` has them by name, for opsets 7 and later.

An operation gets its call (attributes, opset, which inputs are constants) and its inputs, None where one is left out.
What depends on the image is written so that the recorder sees the plainest torch operation that does it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from torch import Tensor
from torch.nn import functional as F

Inputs = Optional[Tensor]
Result = Union[Tensor, Sequence[Tensor]]
LARGEST = 1 << 28  # elements of a tensor that one operation may create
_MOST_PARAMETERS = 1 << 12  # numbers that a tensor of sizes, axes and the like may hold

_TYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT16: torch.float32,
    onnx.TensorProto.BFLOAT16: torch.float32,
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.BOOL: torch.bool,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
}


@dataclass
class Call:
    """How a node calls its operation: `constant` says of each input whether it is the same for all images.

    `dtype` is the float type of everything that depends on the image; None for constants, which keep their own.
    """

    opset: int
    attributes: dict[str, Any]
    outputs: int
    constant: list[bool] = field(default_factory=list)
    dtype: torch.dtype | None = None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def list(self, name: str, inputs: Sequence[Inputs], position: int) -> list[int] | None:
        """Whole numbers that older opsets have as an attribute and newer ones as an input."""
        numbers = inputs[position] if position < len(inputs) else None
        if numbers is not None:
            return [int(n) for n in _listed(numbers.reshape(-1))]
        return self.get(name)


def tensor(proto: onnx.TensorProto) -> Tensor:
    """A tensor of the file; half precision becomes float32."""
    if uses_external_data(proto):  # onnx would read it, from a place that nobody has checked
        raise ValueError(f"tensor '{proto.name}' is kept in a file, which is not supported here")
    if proto.data_type not in _TYPES:
        raise ValueError(f"tensor '{proto.name}' is of type {_type_name(proto.data_type)}")
    array = numpy_helper.to_array(proto)
    return torch.tensor(np.ascontiguousarray(array).astype(_numpy(_TYPES[proto.data_type])).reshape(array.shape))


def attribute(proto: onnx.AttributeProto) -> Any:
    """Floats as the author wrote them, 1e-05 and not 9.99999974e-06: the shortest decimal that is this float32."""
    value = onnx.helper.get_attribute_value(proto)
    if proto.type == onnx.AttributeProto.FLOAT:
        return exact(value)
    if proto.type == onnx.AttributeProto.FLOATS:
        return [exact(v) for v in value]
    if proto.type == onnx.AttributeProto.TENSOR:
        return tensor(value)
    if proto.type == onnx.AttributeProto.STRING:
        return value.decode("utf-8", "replace")
    return value


def exact(value: float) -> float:
    return float(str(np.float32(value)))


def _numpy(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _type_name(code: int) -> str:
    return onnx.TensorProto.DataType.Name(code) if code in onnx.TensorProto.DataType.values() else f"number {code}"


def _fits(shape: Sequence[int]) -> list[int]:
    if any(n < 0 for n in shape) or math.prod(shape) > LARGEST:
        raise ValueError(f"makes a tensor of shape {tuple(shape)}")
    return list(shape)


def _listed(numbers: Tensor) -> list[Any]:
    """The numbers of a tensor that says sizes, axes or the like."""
    if numbers.numel() > _MOST_PARAMETERS:
        raise ValueError(f"has {numbers.numel():,} sizes or axes, expected at most {_MOST_PARAMETERS:,}")
    return numbers.tolist()


# Arithmetic


def _extreme(pairwise: Callable[[Tensor, Tensor], Tensor], clamp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Max and Min; one number is a clamp."""

    def run(call: Call, *inputs: Tensor) -> Tensor:
        numbers = [x for x, constant in zip(inputs, call.constant) if constant and x.numel() == 1]
        known = {id(n) for n in numbers}
        maps = [x for x in inputs if id(x) not in known]
        if len(maps) == 0 or any(n.ndim > maps[0].ndim for n in numbers):
            return functools.reduce(pairwise, inputs)
        joined = functools.reduce(pairwise, maps)
        return functools.reduce(lambda x, n: clamp(x, n.item()), numbers, joined)

    return run


def _quotient(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The smallest integer divided by -1 ends a process, so -1 is not divided by."""
    if a.is_floating_point():
        return a / b
    opposite = b == -1
    return torch.where(opposite, -a, torch.div(a, torch.where(opposite, 1, b), rounding_mode="trunc"))


def _remainder(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        b = torch.where(b == -1, 1, b)  # which leaves 0, too
    return torch.fmod(a, b) if call.get("fmod", 0) else torch.remainder(a, b)


def _clip(call: Call, x: Tensor, low: Inputs = None, high: Inputs = None) -> Tensor:
    lo = call.get("min") if low is None else low.item()
    hi = call.get("max") if high is None else high.item()
    if lo is not None and lo <= torch.finfo(torch.float32).min:
        lo = None
    if hi is not None and hi >= torch.finfo(torch.float32).max:
        hi = None
    return x if lo is None and hi is None else torch.clamp(x, lo, hi)


def _prelu(_: Call, x: Tensor, slope: Tensor) -> Tensor:
    aligned = (1,) * (x.ndim - slope.ndim) + tuple(slope.shape)
    channels = x.shape[1] if x.ndim > 1 else 1
    if slope.numel() == 1 or (slope.numel() == channels == aligned[1] and x.ndim > 1):
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


def _softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Before opset 13 over all dimensions from the axis on."""

    def run(call: Call, x: Tensor) -> Tensor:
        axis = call.get("axis", -1 if call.opset >= 13 else 1)
        if call.opset >= 13 or math.prod(x.shape[axis:][1:]) == 1:
            return function(x, dim=axis)
        return function(x.flatten(axis), dim=-1).reshape(x.shape)

    return run


def _cast(call: Call, x: Tensor, like: Inputs = None) -> Tensor:
    code = call.get("to")
    if like is None and code not in _TYPES:
        raise ValueError(f"casts to {_type_name(code)}")
    target = like.dtype if like is not None else _TYPES[code]
    if target.is_floating_point:
        if call.dtype is not None:
            return x.to(call.dtype)
        if x.dtype == torch.float64:
            return x  # a constant keeps its digits
    return x.to(target)


# Layers


def _padding(call: Call, x: Tensor, window: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows and columns before and after."""
    if x.ndim != 4 or len(window) != 2:
        raise ValueError(f"works on a tensor of shape {tuple(x.shape)}, expected (n, channels, height, width)")
    kind = call.get("auto_pad", "NOTSET")
    if kind == "VALID":
        return [0, 0], [0, 0]
    if kind == "NOTSET":
        pads = call.get("pads", [0, 0, 0, 0])
        return list(pads[:2]), list(pads[2:])
    stride, dilation = call.get("strides", [1, 1]), call.get("dilations", [1, 1])
    before, after = [], []
    for n, k, s, d in zip(x.shape[2:], window, stride, dilation):
        total = max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        small, large = total // 2, total - total // 2
        before.append(large if kind == "SAME_LOWER" else small)
        after.append(small if kind == "SAME_LOWER" else large)
    return before, after


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    return F.pad(x, [before[1], after[1], before[0], after[0]], value=value)


def _conv(call: Call, x: Tensor, weight: Tensor, bias: Inputs = None) -> Tensor:
    before, after = _padding(call, x, weight.shape[2:])
    if before != after:
        x, before = _padded(x, before, after), [0, 0]
    stride, dilation = call.get("strides", [1, 1]), call.get("dilations", [1, 1])
    return F.conv2d(x, weight, bias, stride, before, dilation, call.get("group", 1))


def _gemm(call: Call, a: Tensor, b: Tensor, c: Inputs = None) -> Tensor:
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    a, b = a.t() if call.get("transA", 0) else a, b if call.get("transB", 0) else b.t()
    plain = alpha == 1 and (c is None or beta == 1)
    if plain and (c is None or (c.numel() == b.shape[0] and c.shape[-1] == b.shape[0])):
        return F.linear(a, b, None if c is None else c.reshape(-1))
    product = F.linear(a, b) * alpha
    return product if c is None else product + c * beta


def _batch_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise ValueError("is a batch norm in training mode; export the network in eval mode")
    if not call.get("spatial", 1):
        raise ValueError("is a batch norm with spatial=0")
    return F.batch_norm(x, mean, var, scale, bias, training=False, eps=call.get("epsilon", 1e-5))


def _dropout(_: Call, x: Tensor, ratio: Inputs = None, training: Inputs = None) -> Tensor:
    if training is not None and training.item():
        raise ValueError("is a dropout in training mode; export the network in eval mode")
    return x


def _max_pool(call: Call, x: Tensor) -> Tensor:
    window = call.attributes["kernel_shape"]
    before, after = _padding(call, x, window)
    if before != after or any(2 * p > k for p, k in zip(before, window)):
        x, before = _padded(x, before, after, -math.inf), [0, 0]
    stride, dilation = call.get("strides", [1, 1]), call.get("dilations", [1, 1])
    return F.max_pool2d(x, window, stride, before, dilation, bool(call.get("ceil_mode", 0)))


def _average_pool(call: Call, x: Tensor) -> Tensor:
    window, stride = call.attributes["kernel_shape"], call.get("strides", [1, 1])
    before, after = _padding(call, x, window)
    ceil, include = bool(call.get("ceil_mode", 0)), bool(call.get("count_include_pad", 0))
    if any(d != 1 for d in call.get("dilations", [1, 1])):
        raise ValueError("is an average pool with dilation")
    if before == after and all(2 * p <= k for p, k in zip(before, window)):
        return F.avg_pool2d(x, window, stride, before, ceil, include)
    pooled = F.avg_pool2d(_padded(x, before, after), window, stride, 0, ceil)
    if include:
        return pooled
    inside = _padded(torch.ones(1, 1, *x.shape[2:], dtype=x.dtype), before, after)
    return pooled / F.avg_pool2d(inside, window, stride, 0, ceil)


def _global_pool(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda _, x: function(x, tuple(range(2, x.ndim)), keepdim=True)


def _reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(call: Call, *inputs: Tensor) -> Tensor:
        x, axes = inputs[0], call.list("axes", inputs, 1)
        if not axes:
            if call.get("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        return function(x, tuple(axes), keepdim=bool(call.get("keepdims", 1)))

    return run


def _product(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


# Shapes


def _shape(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(list(x.shape)[call.get("start", 0) : call.get("end")], dtype=torch.int64)


def _constant(call: Call) -> Tensor:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in call.attributes:
            return torch.tensor(call.attributes[name], dtype=torch.float32 if "float" in name else torch.int64)
    if "value" not in call.attributes:
        raise ValueError(
            f"is a constant without a numeric value: {', '.join(call.attributes) or 'it has no attributes'}"
        )
    return call.attributes["value"]


def _constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    value = call.get("value", torch.zeros(1))
    return value.reshape(()).expand(_fits(_listed(shape))).clone()


def _reshape(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    sizes = _listed(shape)
    if not call.get("allowzero", 0):
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return x.reshape(sizes)


def _squeeze(call: Call, *inputs: Tensor) -> Tensor:
    axes = call.list("axes", inputs, 1)
    return inputs[0].squeeze() if axes is None else inputs[0].squeeze(tuple(axes))


def _unsqueeze(call: Call, *inputs: Tensor) -> Tensor:
    x, axes = inputs[0], call.list("axes", inputs, 1) or []
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(_: Call, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(_fits(np.broadcast_shapes(tuple(x.shape), tuple(_listed(shape)))))


def _tile(_: Call, x: Tensor, repeats: Tensor) -> Tensor:
    times = _listed(repeats)
    _fits([n * r for n, r in zip(x.shape, times)])
    return x.repeat(times)


def _range(_: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    if delta.item() == 0:
        raise ValueError("is a range in steps of 0")
    _fits([max(0, math.ceil((limit.item() - start.item()) / delta.item()))])
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _split(call: Call, *inputs: Tensor) -> Sequence[Tensor]:
    x, axis = inputs[0], call.get("axis", 0)
    sizes = call.list("split", inputs, 1)
    if sizes is not None and len(sizes) != call.outputs:
        raise ValueError(f"splits into {len(sizes)} parts and has {call.outputs} outputs")
    return torch.split(x, sizes if sizes is not None else math.ceil(x.shape[axis] / call.outputs), axis)


def _slice(call: Call, *inputs: Tensor) -> Tensor:
    x = inputs[0]
    starts, ends = call.list("starts", inputs, 1), call.list("ends", inputs, 2)
    if starts is None or ends is None:
        raise ValueError("has no starts and ends")
    axes = call.list("axes", inputs, 3) or list(range(len(starts)))
    steps = call.list("steps", inputs, 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        chosen = range(x.shape[axis])[start:end:step]
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(chosen.start, max(chosen.start, chosen.stop), step),)]
        else:
            x = x.index_select(axis, torch.from_numpy(np.arange(chosen.start, chosen.stop, step)))
    return x


def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    if indices.ndim == 0:
        return x.select(axis, int(indices))
    flat = x.index_select(axis, indices.reshape(-1).long())
    return flat if indices.ndim == 1 else flat.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _pad(call: Call, *inputs: Inputs) -> Tensor:
    x, pads, mode = inputs[0], call.list("pads", inputs, 1), call.get("mode", "constant")
    if x is None or pads is None:
        raise ValueError("has no pads")
    axes = call.list("axes", inputs, 3)
    axes = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    around = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    _fits([n + sum(around.get(axis, (0, 0))) for axis, n in enumerate(x.shape)])
    if mode == "constant":
        filling = inputs[2] if len(inputs) > 2 else None
        value = call.get("value", 0.0) if filling is None else filling.item()
        flat = [n for axis in reversed(range(x.ndim)) for n in around.get(axis, (0, 0))]
        while flat[-2:] == [0, 0]:
            del flat[-2:]
        return F.pad(x, flat, value=value) if flat else x
    if mode not in ("reflect", "edge", "wrap"):
        raise ValueError(f"pads in mode '{mode}'")
    for axis, (before, after) in around.items():
        if before or after:
            kept = np.arange(x.shape[axis])[max(0, -before) : x.shape[axis] - max(0, -after)]
            rows = np.pad(kept, (max(0, before), max(0, after)), mode)
            x = x.index_select(axis, torch.from_numpy(rows))
    return x


def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    b = call.attributes["blocksize"]
    n, c, h, w = x.shape
    if call.get("mode", "DCR") == "CRD":
        parts = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    b = call.attributes["blocksize"]
    n, c, h, w = x.shape
    order = (0, 1, 3, 5, 2, 4) if call.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    parts = x.reshape(n, c, h // b, b, w // b, b).permute(order)
    return parts.reshape(n, c * b * b, h // b, w // b)


def _upsample(call: Call, x: Tensor, scales: Inputs = None) -> Tensor:
    factors = call.get("scales") if scales is None else _listed(scales)
    return _resized(x, call.get("mode", "nearest"), "asymmetric", "floor", factors, None)


def _resize(call: Call, *inputs: Inputs) -> Tensor:
    x = inputs[0]
    assert x is not None
    mode = call.get("mode", "nearest")
    if call.opset < 11:
        assert inputs[1] is not None
        return _resized(x, mode, "asymmetric", "ceil_of_smaller", _listed(inputs[1]), None)
    for name, usual in (("antialias", 0), ("keep_aspect_ratio_policy", "stretch")):
        if call.get(name, usual) != usual:
            raise ValueError(f"resizes with {name}={call.get(name)}")
    scales, sizes = (*inputs[2:], None, None)[:2]
    factors = None if scales is None or scales.numel() == 0 else _listed(scales)
    lengths = None if sizes is None or sizes.numel() == 0 else _listed(sizes)
    axes = [a % x.ndim for a in call.get("axes", range(x.ndim))]
    if factors is not None:
        factors = [factors[axes.index(i)] if i in axes else 1.0 for i in range(x.ndim)]
    if lengths is not None:
        lengths = [lengths[axes.index(i)] if i in axes else n for i, n in enumerate(x.shape)]
    where = call.get("coordinate_transformation_mode", "half_pixel")
    return _resized(x, mode, where, call.get("nearest_mode", "round_prefer_floor"), factors, lengths)


def _resized(
    x: Tensor, mode: str, where: str, rounding: str, scales: list[float] | None, sizes: list[int] | None
) -> Tensor:
    if scales is None and sizes is None:
        raise ValueError("has neither scales nor sizes")
    lengths = [math.floor(n * s) for n, s in zip(x.shape, scales)] if scales is not None else list(sizes or ())
    factors = scales if sizes is None and scales is not None else [new / n for new, n in zip(lengths, x.shape)]
    _fits(lengths)
    if list(x.shape) == lengths and all(f == 1 for f in factors):
        return x
    if where == "align_corners" and any(n * s != new for n, s, new in zip(x.shape, factors, lengths)):
        raise ValueError(f"resizes {tuple(x.shape)} by {factors}, not to whole sizes, with align_corners coordinates")
    if mode == "nearest":
        for axis, (old, new, factor) in enumerate(zip(x.shape, lengths, factors)):
            if old != new:
                x = x.index_select(axis, _nearest(old, new, factor, where, rounding))
        return x
    smooth = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
    if mode != "linear" or where not in smooth or x.ndim != 4 or lengths[:2] != list(x.shape[:2]):
        raise ValueError(f"resizes {tuple(x.shape)} to {tuple(lengths)}, {mode} with {where} coordinates")
    if where == "pytorch_half_pixel" and any(new == 1 != old for new, old in zip(lengths, x.shape)):
        raise ValueError(f"resizes {tuple(x.shape)} to {tuple(lengths)}, which PyTorch computes differently")
    if smooth[where] or scales is None:
        return F.interpolate(x, size=lengths[2:], mode="bilinear", align_corners=smooth[where])
    return F.interpolate(x, scale_factor=factors[2:], mode="bilinear", align_corners=False)


def _nearest(old: int, new: int, factor: float, where: str, rounding: str) -> Tensor:
    """Which of `old` places each of `new` ones takes, in float32 as ONNX Runtime has it."""
    places, scale = np.arange(new, dtype=np.float32), np.float32(factor)
    half = np.float32(0.5)
    if where == "asymmetric":
        at = places / scale
    elif where == "align_corners":
        at = places * np.float32(old - 1) / np.float32(max(1, new - 1))
    elif where == "half_pixel" or (where == "pytorch_half_pixel" and new > 1):
        at = (places + half) / scale - half
    elif where == "pytorch_half_pixel":
        at = np.zeros_like(places)
    else:
        raise ValueError(f"resizes with {where} coordinates")
    round_: dict[str, Callable[[Any], Any]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "ceil_of_smaller": np.ceil if factor < 1 else np.floor,  # opset 10 does not say; so ONNX Runtime has it
        "round_prefer_floor": lambda v: np.ceil(v - half),
        "round_prefer_ceil": lambda v: np.floor(v + half),
    }
    return torch.from_numpy(np.clip(round_[rounding](at), 0, old - 1).astype(np.int64))


def _plain(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda _, *inputs: function(*inputs)


_SAME_NAME = "Abs Add Ceil Cos Exp Floor Log MatMul Mul Neg Reciprocal Relu Round Sigmoid Sign Sin Sqrt Sub Tanh Where"
_PLAIN: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name.lower()) for name in _SAME_NAME.split()},
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSwish": lambda x: x * torch.clamp(x / 6 + 0.5, 0.0, 1.0),
    "Identity": lambda x: x,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "Size": lambda x: torch.tensor(x.numel(), dtype=torch.int64),
    "Softplus": F.softplus,
    "Xor": torch.logical_xor,
}
OPS: dict[str, Callable[..., Result]] = {
    **{name: _plain(function) for name, function in _PLAIN.items()},
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "BipolarQuant": lambda _, x, scale: torch.where(x >= 0, scale, -scale),
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Concat": lambda call, *inputs: torch.cat(inputs, call.attributes["axis"]),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "DepthToSpace": _depth_to_space,
    "Div": _quotient,
    "Dropout": _dropout,
    "Einsum": lambda call, *inputs: torch.einsum(call.attributes["equation"], *inputs),
    "Expand": _expand,
    "Flatten": lambda call, x: x.reshape(math.prod(x.shape[: call.get("axis", 1)]), -1),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "HardSigmoid": lambda call, x: torch.clamp(x * call.get("alpha", 0.2) + call.get("beta", 0.5), 0.0, 1.0),
    "LeakyRelu": lambda call, x: F.leaky_relu(x, call.get("alpha", 0.01)),
    "LogSoftmax": _softmax(F.log_softmax),
    "Max": _extreme(torch.maximum, torch.clamp_min),
    "MaxPool": _max_pool,
    "Mean": lambda _, *inputs: functools.reduce(torch.add, inputs) / len(inputs),
    "Min": _extreme(torch.minimum, torch.clamp_max),
    "Mod": _remainder,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": lambda _, x, exponent: torch.pow(x, exponent.item() if exponent.numel() == 1 else exponent).to(x.dtype),
    "Range": _range,
    "ReduceL1": _reduced(lambda x, axes, keepdim: x.abs().sum(axes, keepdim=keepdim)),
    "ReduceL2": _reduced(lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim).sqrt()),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_product),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim)),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Softmax": _softmax(F.softmax),
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": lambda _, *inputs: functools.reduce(torch.add, inputs),
    "Tile": _tile,
    "Transpose": lambda call, x: x.permute(call.get("perm", list(reversed(range(x.ndim))))),
    "Unsqueeze": _unsqueeze,
    "Upsample": _upsample,
}
