"""Operations on every element alone, or on the channels of every pixel, and layers that were made known."""

from __future__ import annotations

import numpy as np

from ovsw.export import ir
from ovsw.export.frontend.builder import GraphBuilder, RefusedError, constant_of, handles, largest
from ovsw.export.frontend.functions import limits_of, slope_of
from ovsw.export.frontend.values import Call, Value, array, frame, is_value


@handles("image")
def _image(builder: GraphBuilder, call: Call) -> ir.Node:
    return ir.Input(call.where.name, [], frame(call.shape))


@handles("add", "sub", "rsub")
def _add(builder: GraphBuilder, call: Call) -> ir.Node:
    x, y = call.args[:2]
    alpha = float(call.arg(2, "alpha", 1))
    factors = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op]
    name = call.where.name
    if is_value(x) and is_value(y):
        nodes = _pair(builder, call, x, y)
        terms = [builder.affine(f"{name}.term", node, factor, 0.0) for node, factor in zip(nodes, factors)]
        return ir.Add(name, terms, frame(call.shape))
    value, constant, signs = (x, y, factors) if is_value(x) else (y, x, factors[::-1])
    return builder.affine(
        name, builder.operand(call, value, True), signs[0], signs[1] * constant_of(call, constant, "adds")
    )


@handles("mul")
def _mul(builder: GraphBuilder, call: Call) -> ir.Node:
    x, y = call.args[:2]
    if is_value(x) and is_value(y):
        return ir.Mul(call.where.name, _pair(builder, call, x, y), frame(call.shape))
    value, constant = (x, y) if is_value(x) else (y, x)
    factor = constant_of(call, constant, "multiplies by")
    return builder.affine(call.where.name, builder.operand(call, value, True), factor, 0.0)


def _pair(builder: GraphBuilder, call: Call, x: Value, y: Value) -> list[ir.Node]:
    """Two operands, of which at least one has the result's shape."""
    nodes = [builder.operand(call, x), builder.operand(call, y)]
    if all(node.shape != frame(call.shape) for node in nodes):
        nodes[0] = builder.operand(call, x, True)
    return nodes


@handles("div")
def _div(builder: GraphBuilder, call: Call) -> ir.Node:
    x, y = call.args[:2]
    if call.kwargs.get("rounding_mode"):
        raise RefusedError(f"division with rounding_mode={call.kwargs['rounding_mode']!r} is not supported")
    if is_value(y):
        raise RefusedError(
            "division by a map is not supported; divide by a constant, or by a deviation right before a sign"
        )
    divisor = constant_of(call, y, "divides by")
    if not divisor.all():
        raise RefusedError("division by 0")
    return builder.affine(call.where.name, builder.operand(call, x, True), 1.0 / divisor, 0.0)


@handles("neg")
def _neg(builder: GraphBuilder, call: Call) -> ir.Node:
    return builder.affine(call.where.name, builder.node(call.args[0]), -1.0, 0.0)


@handles("affine")
def _affine(builder: GraphBuilder, call: Call) -> ir.Node:
    """Not torch's: a value shifted to where a step is."""
    x, scale, offset = call.args
    return builder.affine(f"{call.where.name}.shift", builder.node(x), scale, offset)


@handles("square", "pow")
def _square(builder: GraphBuilder, call: Call) -> ir.Node:
    x, power = call.args[0], 2 if call.op == "square" else call.args[1]
    if not is_value(x) or is_value(power) or float(array(power).reshape(-1)[0]) not in (2, 3, 4):
        raise RefusedError("powers are supported for exponents 2, 3 and 4 only")
    node, count = builder.node(x), int(array(power).reshape(-1)[0])
    square = ir.Mul(call.where.name, [node, node], node.shape)
    return square if count == 2 else ir.Mul(call.where.name, [square, square if count == 4 else node], node.shape)


@handles("relu", "hardtanh", "relu6", "clamp", "clamp_min", "clamp_max")
def _clamp(builder: GraphBuilder, call: Call) -> ir.Node:
    limits = (np.zeros(1), np.array([np.inf])) if call.op == "relu" else limits_of(call)
    if limits is None:
        raise RefusedError("clamp bounds must be constant: one for all channels or one per channel")
    x = builder.operand(call, call.args[0], True)
    lo, hi = limits
    return ir.Act(call.where.name, [x], x.shape, "clamp", float(lo[0]), float(hi[0]))


@handles("leaky_relu", "_prelu_kernel", "rrelu_with_noise")
def _prelu(builder: GraphBuilder, call: Call) -> ir.Node:
    slope = slope_of(call)
    if slope is None:
        raise RefusedError("PReLU slopes must be constant: one for all channels or one per channel")
    x = builder.operand(call, call.args[0], True)
    return ir.Act(call.where.name, [x], x.shape, "prelu", slope=np.broadcast_to(slope, x.shape[:1]).copy())


@handles("round")
def _round(builder: GraphBuilder, call: Call) -> ir.Node:
    decimals = call.kwargs.get("decimals", 0)
    name, x = call.where.name, builder.node(call.args[0])
    scaled = builder.affine(f"{name}.scaled", x, 10.0**decimals, 0.0) if decimals else x
    whole = ir.Round(name, [scaled], x.shape)
    return builder.affine(name, whole, 10.0**-decimals, 0.0) if decimals else whole


@handles("sigmoid")
def _sigmoid(builder: GraphBuilder, call: Call) -> ir.Node:
    x = builder.node(call.args[0])
    return ir.Act(call.where.name, [x], x.shape, "sigmoid")


@handles("tanh")
def _tanh(builder: GraphBuilder, call: Call) -> ir.Node:
    """2 * sigmoid(2x) - 1."""
    name = call.where.name
    twice = builder.affine(f"{name}.twice", builder.node(call.args[0]), 2.0, 0.0)
    return builder.affine(name, ir.Act(f"{name}.sigmoid", [twice], twice.shape, "sigmoid"), 2.0, -1.0)


@handles("silu", "hardswish")
def _swish(builder: GraphBuilder, call: Call) -> ir.Node:
    """x times a gate of x."""
    name, x = call.where.name, builder.node(call.args[0])
    if call.op == "silu":
        gate: ir.Node = ir.Act(f"{name}.gate", [x], x.shape, "sigmoid")
    else:
        line = builder.affine(f"{name}.line", x, 1 / 6, 0.5)
        gate = ir.Act(f"{name}.gate", [line], x.shape, "clamp", 0.0, 1.0)
    return ir.Mul(name, [x, gate], x.shape)


@handles("maximum", "minimum", "fmax", "fmin")
def _maximum(builder: GraphBuilder, call: Call) -> ir.Node:
    """max(x, y) = y + relu(x - y)."""
    x, y = call.args[:2]
    if not (is_value(x) and is_value(y)):
        value, constant = (x, y) if is_value(x) else (y, x)
        bound = constant_of(call, constant, "compares with")
        shifted = builder.affine(f"{call.where.name}.shift", builder.operand(call, value, True), 1.0, -bound)
        limits = (0.0, np.inf) if call.op in ("maximum", "fmax") else (-np.inf, 0.0)
        act = ir.Act(call.where.name, [shifted], shifted.shape, "clamp", *limits)
        return builder.affine(call.where.name, act, 1.0, bound)
    return largest(
        builder, call.where.name, [builder.operand(call, v, True) for v in (x, y)], call.op in ("minimum", "fmin")
    )


@handles("glu")
def _glu(builder: GraphBuilder, call: Call) -> ir.Node:
    dim = call.arg(1, "dim", -1) % len(call.shape)
    if dim != 1:
        raise RefusedError("GLU is supported over channels only")
    x, (c, h, w) = builder.node(call.args[0]), frame(call.shape)
    name, rows, columns = call.where.name, np.arange(h), np.arange(w)
    value, gate = (ir.Gather(f"{name}.{i}", [x], (c, h, w), np.arange(c) + i * c, rows, columns) for i in range(2))
    return ir.Mul(name, [value, ir.Act(f"{name}.gate", [gate], gate.shape, "sigmoid")], gate.shape)


@handles("_softmax", "_log_softmax", "softmax", "log_softmax")
def _softmax(builder: GraphBuilder, call: Call) -> ir.Node:
    x = builder.node(call.args[0])
    dim = call.args[1] % len(call.shape)
    if dim != (1 if len(call.shape) > 1 else 0):
        raise RefusedError(f"softmax over dimension {dim} is not supported; use the channel dimension")
    return ir.Softmax(call.where.name, [x], x.shape, log="log" in call.op)


@handles("_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _batch_norm(builder: GraphBuilder, call: Call) -> ir.Node:
    x, weight, bias, mean, var = call.args[:5]
    plain = call.op == "_native_batch_norm_legit_no_training"
    known = plain or len(call.args) > 7  # otherwise it has no running statistics
    training, eps = (False, call.args[6]) if plain else call.args[5:8:2] if known else (True, 0.0)
    if training or mean is None or var is None or any(is_value(t) for t in (weight, bias, mean, var)):
        raise RefusedError(
            "normalising by the statistics of the image itself (instance norm, or batch norm without running "
            "statistics or in training mode) is not supported; use batch norm with running statistics"
        )
    node = builder.node(x)
    channels = node.shape[0]
    ones, zeros = np.ones(channels), np.zeros(channels)
    weight, bias = ones if weight is None else array(weight), zeros if bias is None else array(bias)
    return ir.Norm(call.where.name, [node], node.shape, weight, bias, array(mean), array(var), float(eps))


@handles("layer")
def _layer(builder: GraphBuilder, call: Call) -> ir.Node:
    """A layer that was made known: its converter is a user's and can do anything."""
    convert, module, *inputs = call.args
    name, shape = call.where.name, frame(call.shape)
    label = f"layer of type {type(module).__name__}"
    try:
        result = convert(name, [builder.node(v) for v in inputs], shape, module)
    except Exception as e:
        text = str(e).strip().splitlines()
        raise RefusedError(f"{label}: its converter raises {type(e).__name__}: {text[0] if text else ''}") from None
    if not isinstance(result, ir.Node) or result.shape != shape:
        what = f"a node of shape {result.shape}" if isinstance(result, ir.Node) else f"{result!r}"
        raise RefusedError(f"{label}: its converter gave {what}, not a node of {shape}")
    return result
