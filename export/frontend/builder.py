"""From a recording to a graph: each operation becomes nodes of `ir`, or an `Unsupported` node that says where it is.

This module has the driver and the piecewise linear functions. `elementwise`, `windows` and `pools` have the operations,
by their names in ATen; `arrange` has those that only move elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils._pytree import tree_flatten

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend.arrange import arranged
from ovsw.export.frontend.functions import Functions, Step, limits_of
from ovsw.export.frontend.piecewise import Piecewise
from ovsw.export.frontend.recorder import Recording
from ovsw.export.frontend.values import (
    Arranged,
    Call,
    Value,
    frame,
    is_value,
    names,
    numbers_of,
    per_channel,
    same_call,
)

_MOST_BREAKS = 4
_OF_IMAGES = names(
    """convolution _convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm"""
)
Handler = Callable[["GraphBuilder", Call], ir.Node]
HANDLERS: dict[str, Handler] = {}


class RefusedError(Exception):
    """An operation cannot be exported; the message says why, and what to use instead."""


def handles(*ops: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return register


class GraphBuilder:
    def __init__(self, recording: Recording) -> None:
        self.functions = Functions(recording)
        self.nodes: dict[Value, ir.Node] = {}
        for call in recording.calls:  # in their order, so that no recursion goes deep; what nobody reads is dropped
            if call.op != "constant":
                self.node(call)

    def node(self, value: Value) -> ir.Node:
        if value not in self.nodes:
            self.nodes[value] = self._node(value)
        return self.nodes[value]

    def _node(self, value: Value) -> ir.Node:
        name, shape = value.where.name, frame(value.shape)
        try:
            if isinstance(value, Arranged):
                node = arranged(name, value, self.node)
                if isinstance(node, str):
                    raise RefusedError(node)
                return node
            node = self._call(value)
            if node.shape != shape:
                raise RefusedError(f"its result {tuple(value.shape)} is not a map of one image")
            return node
        except RefusedError as e:
            sources = value.sources if isinstance(value, Arranged) else _values(value.args)
            inputs = [self.node(v) for v in sources if not (isinstance(v, Call) and v.op == "constant")]
            return ir.Unsupported(name, inputs, shape, f"{e} ({value.where})")

    def _call(self, call: Call) -> ir.Node:
        if call.op in _OF_IMAGES and is_value(x := call.args[0]) and len(x.shape) == 4 and x.shape[0] != 1:
            raise ExportError(
                f"{call.where.name}: it gets {x.shape[0]} images at once ({call.where}). Only networks of one image "
                "can be exported: run the file once for each image, and compare the results outside"
            )
        if call.output and call.op not in HANDLERS:
            raise RefusedError(f"the second result of {call.op} is not supported")
        source, f = self.functions.of(call)
        if source is not call and (f.is_step or not _is_natural(call)):
            return self.emitted(call, source, f)
        total = self.functions.sum(call)
        if total.cancelled:
            return self.summed(call, total.terms, total.constant)
        handler = HANDLERS.get(call.op)
        if handler is None:
            raise RefusedError(f"{call.op.strip('_').replace('native_', '')} is not supported{_nearest(call)}")
        return handler(self, call)

    def graph(self, outputs: Sequence[Value]) -> ir.Graph:
        nodes = [self.node(value) for value in outputs]
        return ir.Graph(ir.reachable(*nodes), outputs=nodes)

    # Parts of nodes.

    def affine(self, name: str, x: ir.Node, scale: Any, offset: Any) -> ir.Node:
        scale, offset = (np.broadcast_to(np.asarray(v, np.float64), x.shape[:1]).copy() for v in (scale, offset))
        return x if (scale == 1).all() and (offset == 0).all() else ir.Affine(name, [x], x.shape, scale, offset)

    def expanded(self, name: str, x: ir.Node, shape: ir.Shape) -> ir.Node:
        """A map whose channels, rows or columns are one, repeated."""
        if x.shape == shape:
            return x
        if any(n not in (1, m) for n, m in zip(x.shape, shape)):
            raise RefusedError(f"a map of {x.shape} cannot be broadcast to {shape}")
        channels, rows, columns = (np.arange(m) if n == m else np.zeros(m, int) for n, m in zip(x.shape, shape))
        return ir.Gather(f"{name}.expanded", [x], shape, channels, rows, columns)

    def operand(self, call: Call, x: Value, whole: bool = False) -> ir.Node:
        """An operand as a map of the result's shape, or of one pixel, if not `whole`."""
        full = (1,) * (len(call.shape) - len(x.shape)) + tuple(x.shape)
        narrow = full
        if isinstance(x, Arranged) and not whole:  # written with expand()
            x, narrow = self._unexpanded(x, full)
        node = self.node(self.reshaped(x, narrow))
        shape = frame(call.shape)
        if len(call.shape) > 1 and call.shape[0] != 1:
            raise RefusedError(f"its result {tuple(call.shape)} is not that of one image")
        if not whole and node.shape[1:] == (1, 1):
            shape = (shape[0], 1, 1)
        return self.expanded(x.where.name, node, shape)

    def _unexpanded(self, x: Arranged, full: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
        index = x.index.reshape(full)
        if len(full) == 4 and max(full[2:]) > 1 and (index == index[:, :, :1, :1]).all():
            small = np.ascontiguousarray(index[:, :, :1, :1])
            return self.value(small, x), tuple(small.shape)
        return x, full

    def value(self, index: np.ndarray, like: Arranged) -> Value:
        """The value with these element numbers, all of which are from the sources of `like`."""
        used = [s for s in like.sources if ((index >= s.start) & (index < s.start + s.size)).any()]
        return same_call(index, used) or Arranged(np.ascontiguousarray(index), used, like.where)

    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        if tuple(x.shape) == tuple(shape):
            return x
        index = numbers_of(x)
        sources = x.sources if isinstance(x, Arranged) else [x]
        return self.value(index.reshape(shape), Arranged(index, sources, x.where))

    def summed(self, call: Call, terms: dict[Value, np.ndarray], constant: np.ndarray) -> ir.Node:
        name, total = call.where.name, None
        for value, weight in terms.items():
            term = self.affine(f"{name}.term", self.node(value), weight, 0.0)
            total = term if total is None else ir.Add(name, [total, term], term.shape)
        if total is None:
            raise RefusedError("its result is constant")
        return self.affine(name, total, 1.0, constant)

    # Piecewise linear functions.

    def emitted(self, call: Value, source: Value, f: Piecewise) -> ir.Node:
        name = call.where.name
        if f.is_line:
            return self.affine(name, self.node(source), f.slope[0], f.offset[0])
        step = self.functions.step(call)
        if step is not None:
            return self.stepped(name, step)
        x = self.node(source)
        if f.is_continuous and len(f.breaks) == 2 and not f.slope[0].any() and not f.slope[2].any():
            return self._clamped(name, x, f)
        if len(f.breaks) > _MOST_BREAKS:
            raise RefusedError(f"it has {len(f.breaks) + 1} levels or slopes, up to {_MOST_BREAKS + 1} are supported")
        return self._bent(name, x, f)

    def stepped(self, name: str, step: Step) -> ir.Node:
        """Two levels as a map."""
        x = self.node(step.of)
        lo, hi = (float(v[0]) for v in (step.lo, step.hi)) if step.uniform else (-1.0, 1.0)
        node = ir.Act(name, [x], x.shape, "step", lo, hi, strict=step.strict)
        return node if step.uniform else self.affine(name, node, (step.hi - step.lo) / 2, (step.hi + step.lo) / 2)

    def _clamped(self, name: str, x: ir.Node, f: Piecewise) -> ir.Node:
        first, last = f.offset[0], f.offset[2]
        lo, hi = np.minimum(first, last), np.maximum(first, last)
        with np.errstate(invalid="ignore"):
            wide = f.breaks[1] - f.breaks[0]
        if not (np.isfinite(wide) & (wide > 0)).all():  # no clamp in some channels
            return self._bent(name, x, f)
        if (lo == lo[0]).all() and (hi == hi[0]).all():
            line = self.affine(f"{name}.line", x, f.slope[1], f.offset[1])
            return ir.Act(name, [line], x.shape, "clamp", float(lo[0]), float(hi[0]))
        unit = self.affine(f"{name}.line", x, 1 / wide, -f.breaks[0] / wide)
        act = ir.Act(f"{name}.clamp", [unit], x.shape, "clamp", 0.0, 1.0)
        return self.affine(name, act, last - first, first)

    def _bent(self, name: str, x: ir.Node, f: Piecewise) -> ir.Node:
        """A sum of nodes: the function around its first break, then the change at each further break."""
        f = f.widened(x.shape[0])
        total: ir.Node | None = None
        for k in range(len(f.breaks)):
            some = np.isfinite(f.breaks[k])
            t = np.where(some, f.breaks[k], 0.0)
            shifted = self.affine(f"{name}.shift", x, 1.0, -t)
            before = f.slope[0] if k == 0 else np.zeros_like(t)
            after = np.where(some, f.slope[k + 1] - (0.0 if k == 0 else f.slope[k]), before)
            left, right = (f.slope[i] * t + f.offset[i] for i in (k, k + 1))
            jumps = ((f.at[k] - left, False), (right - f.at[k], True))  # at t, and just above it
            terms: list[ir.Node] = []
            if before.any() or after.any():
                if (after == 1).all() and not before.any():
                    terms.append(ir.Act(name, [shifted], x.shape, "clamp", 0.0, np.inf))
                else:
                    positive = None if (after == 1).all() else after
                    terms.append(ir.Act(name, [shifted], x.shape, "prelu", slope=before, positive=positive))
            for jump, strict in jumps:
                if (some & (np.abs(jump) > 1e-12)).any():
                    step = ir.Act(f"{name}.step", [shifted], x.shape, "step", 0.0, 1.0, strict=strict)
                    terms.append(self.affine(f"{name}.jump", step, np.where(some, jump, 0.0), 0.0))
            if k == 0 and not terms:
                terms.append(self.affine(f"{name}.none", shifted, 0.0, 0.0))
            for term in terms:
                total = term if total is None else ir.Add(name, [total, term], x.shape)
        assert total is not None
        t = np.where(np.isfinite(f.breaks[0]), f.breaks[0], 0.0)
        return self.affine(f"{name}.level", total, 1.0, f.slope[0] * t + f.offset[0])


def _values(args: Any) -> list[Value]:
    flat, _ = tree_flatten(args)
    return list(dict.fromkeys(a for a in flat if is_value(a)))


def _is_natural(call: Call) -> bool:
    """Whether one node computes the operation, so that it need not be expressed as a function of an earlier value."""
    if call.op in ("relu", "leaky_relu", "_prelu_kernel", "rrelu_with_noise", "hardtanh", "relu6"):
        return True
    if call.op in ("clamp", "clamp_min", "clamp_max"):
        limits = limits_of(call)
        return limits is not None and all(limit.size == 1 for limit in limits)
    return call.op in ("add", "sub", "rsub", "mul", "div", "neg") and len(_values(call.args)) == 1


_HINTS = {
    "use ReLU, PReLU or hardswish": "gelu",
    "use PReLU": "elu celu selu",
    "use hardswish": "mish",
    "use ReLU": "softplus",
    "use batch norm": "native_layer_norm native_group_norm",
    "only products with constant matrices are": "bmm mm",
    "return the logits and take the largest outside": "argmax",
    "return the logits and sort them outside": "topk sort",
    "use x[mask] = number or torch.where": "index_put",
    "only a division by it right before a sign is": "std var",
    "only right before a sign it is": "sqrt",
    "use softmax or sigmoid": "exp",
    "use bilinear upsampling": "_upsample_bicubic2d_aa upsample_bicubic2d",
    "use bilinear upsampling without antialias": "_upsample_bilinear2d_aa",
}
_NEAREST = {op: hint for hint, ops in _HINTS.items() for op in names(ops)}


def _nearest(call: Call) -> str:
    """What can be used instead."""
    known = _NEAREST.get(call.op)
    layer = "ovsw.export.register_layer can make the layer known" if call.where.path else None
    return "".join(f"; {hint}" for hint in (known, layer) if hint)


def constant_of(call: Call, x: Any, verb: str) -> np.ndarray:
    number = per_channel(x, call.shape)
    if number is None:
        raise RefusedError(f"it {verb} constants that differ from pixel to pixel; one number per channel is supported")
    return number


def largest(builder: GraphBuilder, name: str, nodes: list[ir.Node], smallest: bool = False) -> ir.Node:
    """The largest of several maps: max(x, y) = y + relu(x - y)."""
    result = nodes[0]
    limits = (-np.inf, 0.0) if smallest else (0.0, np.inf)
    for node in nodes[1:]:
        less = builder.affine(f"{name}.less", node, -1.0, 0.0)
        difference = ir.Add(f"{name}.difference", [result, less], node.shape)
        result = ir.Add(name, [node, ir.Act(f"{name}.over", [difference], node.shape, "clamp", *limits)], node.shape)
    return result
