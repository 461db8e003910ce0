"""Operations on every element alone, or on the channels of every pixel, and layers that were made known."""

from __future__ import annotations

import numpy as np

from ovsw.export import ir
from ovsw.export.frontend.functions import limits_of, slope_of
from ovsw.export.frontend.lowering import Lowering, RefusedError, constant_of, handles, largest
from ovsw.export.frontend.values import Call, Value, array, frame, is_value


@handles("image")
def _image(low: Lowering, call: Call) -> ir.Node:
    return ir.Input(call.where.name, [], frame(call.shape))


@handles("add", "sub", "rsub")
def _add(low: Lowering, call: Call) -> ir.Node:
    x, y = call.args[:2]
    alpha = float(call.arg(2, "alpha", 1))
    factors = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op]
    name = call.where.name
    if is_value(x) and is_value(y):
        nodes = _pair(low, call, x, y)
        terms = [low.affine(f"{name}.term", node, factor, 0.0) for node, factor in zip(nodes, factors)]
        return ir.Add(name, terms, frame(call.shape))
    value, constant, signs = (x, y, factors) if is_value(x) else (y, x, factors[::-1])
    return low.affine(name, low.operand(call, value, True), signs[0], signs[1] * constant_of(call, constant, "adds"))


@handles("mul")
def _mul(low: Lowering, call: Call) -> ir.Node:
    x, y = call.args[:2]
    if is_value(x) and is_value(y):
        return ir.Mul(call.where.name, _pair(low, call, x, y), frame(call.shape))
    value, constant = (x, y) if is_value(x) else (y, x)
    factor = constant_of(call, constant, "multiplies by")
    return low.affine(call.where.name, low.operand(call, value, True), factor, 0.0)


def _pair(low: Lowering, call: Call, x: Value, y: Value) -> list[ir.Node]:
    """Two operands, of which at least one has the result's shape."""
    nodes = [low.operand(call, x), low.operand(call, y)]
    if all(node.shape != frame(call.shape) for node in nodes):
        nodes[0] = low.operand(call, x, True)
    return nodes


@handles("div")
def _div(low: Lowering, call: Call) -> ir.Node:
    x, y = call.args[:2]
    if call.kwargs.get("rounding_mode"):
        raise RefusedError(f"a division with rounding_mode={call.kwargs['rounding_mode']!r} is not supported")
    if is_value(y):
        raise RefusedError(
            "a division by a map is not supported; one by a constant is, or by a deviation before a sign"
        )
    divisor = constant_of(call, y, "divides by")
    if not divisor.all():
        raise RefusedError("a division by 0")
    return low.affine(call.where.name, low.operand(call, x, True), 1.0 / divisor, 0.0)


@handles("neg")
def _neg(low: Lowering, call: Call) -> ir.Node:
    return low.affine(call.where.name, low.node(call.args[0]), -1.0, 0.0)


@handles("affine")
def _affine(low: Lowering, call: Call) -> ir.Node:
    """Not torch's: a value shifted to where a step is."""
    x, scale, offset = call.args
    return low.affine(f"{call.where.name}.shift", low.node(x), scale, offset)


@handles("square", "pow")
def _square(low: Lowering, call: Call) -> ir.Node:
    x, power = call.args[0], 2 if call.op == "square" else call.args[1]
    if not is_value(x) or is_value(power) or float(array(power).reshape(-1)[0]) not in (2, 3, 4):
        raise RefusedError("a power is supported for exponents of 2, 3 and 4")
    node, count = low.node(x), int(array(power).reshape(-1)[0])
    square = ir.Mul(call.where.name, [node, node], node.shape)
    return square if count == 2 else ir.Mul(call.where.name, [square, square if count == 4 else node], node.shape)


@handles("relu", "hardtanh", "relu6", "clamp", "clamp_min", "clamp_max")
def _clamp(low: Lowering, call: Call) -> ir.Node:
    limits = (np.zeros(1), np.array([np.inf])) if call.op == "relu" else limits_of(call)
    if limits is None:
        raise RefusedError("a clamp is supported between constants, one for all or one per channel")
    x = low.operand(call, call.args[0], True)
    lo, hi = limits
    return ir.Act(call.where.name, [x], x.shape, "clamp", float(lo[0]), float(hi[0]))


@handles("leaky_relu", "_prelu_kernel", "rrelu_with_noise")
def _prelu(low: Lowering, call: Call) -> ir.Node:
    slope = slope_of(call)
    if slope is None:
        raise RefusedError("a PReLU is supported with constant slopes, one for all or one per channel")
    x = low.operand(call, call.args[0], True)
    return ir.Act(call.where.name, [x], x.shape, "prelu", slope=np.broadcast_to(slope, x.shape[:1]).copy())


@handles("sigmoid")
def _sigmoid(low: Lowering, call: Call) -> ir.Node:
    x = low.node(call.args[0])
    return ir.Act(call.where.name, [x], x.shape, "sigmoid")


@handles("tanh")
def _tanh(low: Lowering, call: Call) -> ir.Node:
    """2 * sigmoid(2x) - 1."""
    name = call.where.name
    twice = low.affine(f"{name}.twice", low.node(call.args[0]), 2.0, 0.0)
    return low.affine(name, ir.Act(f"{name}.sigmoid", [twice], twice.shape, "sigmoid"), 2.0, -1.0)


@handles("silu", "hardswish")
def _swish(low: Lowering, call: Call) -> ir.Node:
    """x times a gate of x."""
    name, x = call.where.name, low.node(call.args[0])
    if call.op == "silu":
        gate: ir.Node = ir.Act(f"{name}.gate", [x], x.shape, "sigmoid")
    else:
        line = low.affine(f"{name}.line", x, 1 / 6, 0.5)
        gate = ir.Act(f"{name}.gate", [line], x.shape, "clamp", 0.0, 1.0)
    return ir.Mul(name, [x, gate], x.shape)


@handles("maximum", "minimum", "fmax", "fmin")
def _maximum(low: Lowering, call: Call) -> ir.Node:
    """max(x, y) = y + relu(x - y)."""
    x, y = call.args[:2]
    if not (is_value(x) and is_value(y)):
        value, constant = (x, y) if is_value(x) else (y, x)
        bound = constant_of(call, constant, "compares with")
        shifted = low.affine(f"{call.where.name}.shift", low.operand(call, value, True), 1.0, -bound)
        limits = (0.0, np.inf) if call.op in ("maximum", "fmax") else (-np.inf, 0.0)
        act = ir.Act(call.where.name, [shifted], shifted.shape, "clamp", *limits)
        return low.affine(call.where.name, act, 1.0, bound)
    return largest(low, call.where.name, [low.operand(call, v, True) for v in (x, y)], call.op in ("minimum", "fmin"))


@handles("glu")
def _glu(low: Lowering, call: Call) -> ir.Node:
    dim = call.arg(1, "dim", -1) % len(call.shape)
    if dim != 1:
        raise RefusedError("a GLU is supported over channels")
    x, (c, h, w) = low.node(call.args[0]), frame(call.shape)
    name, rows, columns = call.where.name, np.arange(h), np.arange(w)
    value, gate = (ir.Gather(f"{name}.{i}", [x], (c, h, w), np.arange(c) + i * c, rows, columns) for i in range(2))
    return ir.Mul(name, [value, ir.Act(f"{name}.gate", [gate], gate.shape, "sigmoid")], gate.shape)


@handles("_softmax", "_log_softmax", "softmax", "log_softmax")
def _softmax(low: Lowering, call: Call) -> ir.Node:
    x = low.node(call.args[0])
    dim = call.args[1] % len(call.shape)
    if dim != (1 if len(call.shape) > 1 else 0):
        raise RefusedError(f"a softmax over dimension {dim} is not supported; one over channels is")
    return ir.Softmax(call.where.name, [x], x.shape, log="log" in call.op)


@handles("_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _batch_norm(low: Lowering, call: Call) -> ir.Node:
    x, weight, bias, mean, var = call.args[:5]
    plain = call.op == "_native_batch_norm_legit_no_training"
    known = plain or len(call.args) > 7  # otherwise it has no running statistics
    training, eps = (False, call.args[6]) if plain else call.args[5:8:2] if known else (True, 0.0)
    if training or mean is None or var is None or any(is_value(t) for t in (weight, bias, mean, var)):
        raise RefusedError(
            "a norm by the statistics of the image itself (instance norm, or batch norm without running statistics or "
            "in training mode) is not supported; batch norm with running statistics is"
        )
    node = low.node(x)
    channels = node.shape[0]
    ones, zeros = np.ones(channels), np.zeros(channels)
    weight, bias = ones if weight is None else array(weight), zeros if bias is None else array(bias)
    return ir.Norm(call.where.name, [node], node.shape, weight, bias, array(mean), array(var), float(eps))


@handles("layer")
def _layer(low: Lowering, call: Call) -> ir.Node:
    """A layer that was made known: its converter is a user's and can do anything."""
    convert, module, *inputs = call.args
    name, shape = call.where.name, frame(call.shape)
    label = f"layer of type {type(module).__name__}"
    try:
        result = convert(name, [low.node(v) for v in inputs], shape, module)
    except Exception as e:
        text = str(e).strip().splitlines()
        raise RefusedError(f"{label}: its converter raises {type(e).__name__}: {text[0] if text else ''}") from None
    if not isinstance(result, ir.Node) or result.shape != shape:
        what = f"a node of shape {result.shape}" if isinstance(result, ir.Node) else f"{result!r}"
        raise RefusedError(f"{label}: its converter gave {what}, not a node of {shape}")
    return result
