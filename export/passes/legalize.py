"""Legalize: the folded graph in the form that a float or an integer file needs, with the same results.

Max-pools read the sums of a convolution before they are scaled, so that the nodes after the pool join its epilogue.
Clamped integers need no calibration, so integer files have the pool behind the clamp wherever the result is the same.
There, pools, pads and additions do not scale, only convolutions read pixels, and results come from a `Linear` or a
`ToFloat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import NotIntegerError
from ovsw.export.ops.affine import affine


def legalize(graph: ir.Graph, numerics: str) -> ir.Graph:
    if numerics == "float":
        return ir.rewrite(graph, _pool_sums)
    pools, ends = (_pool_clamps, _pool_whole_sums), (_end_with_linear, _linear_inside)
    _refuse_softmax_inside(graph)
    for rule in (*pools, *ends, _read_pixels(), _scale_by_average):
        graph = ir.rewrite(graph, rule)
    return _end_in_float(graph)


def _refuse_softmax_inside(graph: ir.Graph) -> None:
    for node in graph.nodes:
        if any(isinstance(x, ir.Softmax) for x in node.inputs) and not isinstance(node, ir.Softmax):
            raise NotIntegerError(f"{node.name}: reads a softmax, which must be the last op of an integer file")


def _is_pool_of_sums(node: ir.Node, users: ir.Users) -> bool:
    """Whether a max-pool alone reads a convolution, scaled or not."""
    if not isinstance(node, ir.MaxPool):
        return False
    x = node.inputs[0]
    core = x.inputs[0] if isinstance(x, ir.Affine) else x
    return isinstance(core, (ir.Dot, ir.Conv)) and len(users[x]) == len(users[core]) == 1


def _pool_clamps(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """clamp(a * max(x) + b) = max(clamp(a * x + b)) where a >= 0."""
    new = replace(node, inputs=inputs)
    if not isinstance(node, ir.Act) or node.kind != "clamp":
        return new
    scaled = node.inputs[0] if isinstance(node.inputs[0], ir.Affine) else None
    pool, new_pool = (node.inputs[0], inputs[0]) if scaled is None else (scaled.inputs[0], inputs[0].inputs[0])
    if not _is_pool_of_sums(pool, users) or len(users[pool]) != 1 or len(users[node.inputs[0]]) != 1:
        return new
    x = new_pool.inputs[0]
    if scaled is not None and (scaled.scale >= 0).all():
        x = affine(scaled.name, x, scaled.scale, scaled.offset)
    elif scaled is not None or not isinstance(x, ir.Affine):
        return new
    return replace(new_pool, inputs=[replace(new, inputs=[x], shape=x.shape)])


def _pool_sums(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """max(a * n + b) = |a| * max(sign(a) * n) + b: pools the sums themselves, whose weights are negated where a < 0."""
    if isinstance(node, ir.Affine):
        return affine(node.name, inputs[0], node.scale, node.offset, ir.is_compared(node, users))
    new, x = replace(node, inputs=inputs), next(iter(inputs), None)
    if not isinstance(x, ir.Affine) or not _is_pool_of_sums(node, users):
        return new
    core, negative = x.inputs[0], (x.scale < 0)[:, None, None, None]
    if isinstance(core, ir.Dot):
        window = core.window_scale
        window = None if window is None else np.where(x.scale < 0, -window, window)
        core = replace(core, positive=core.positive ^ negative, window_scale=window)
    elif isinstance(core, ir.Conv):
        core = replace(core, weight=np.where(negative, -core.weight, core.weight))
    return ir.Affine(x.name, [replace(new, inputs=[core])], node.shape, np.abs(x.scale), x.offset)


def _pool_whole_sums(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """The same for sums that are whole numbers."""
    if isinstance(node, ir.MaxPool):
        core = inputs[0].inputs[0] if isinstance(inputs[0], ir.Affine) else inputs[0]
        if not isinstance(core, ir.Dot) or core.window_scale is not None or core.pad_value != round(core.pad_value):
            return replace(node, inputs=inputs)
    return _pool_sums(node, inputs, users)


def _end_with_linear(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """Logits that are a convolution over the whole map come from the Linear that it is."""
    if not isinstance(node, ir.Conv) or node.groups > 1 or any(node.pad) or not _is_last(node, users):
        return replace(node, inputs=inputs)
    if node.window == node.inputs[0].shape[1:]:
        weight = node.weight.transpose(0, 2, 3, 1).reshape(len(node.weight), -1)
        return ir.Linear(node.name, inputs, node.shape, weight)
    return replace(node, inputs=inputs)


def _is_last(node: ir.Node, users: ir.Users) -> bool:
    """Whether nothing but scaling and a softmax follows."""
    return all(isinstance(user, (ir.Affine, ir.Softmax)) and _is_last(user, users) for user in users[node])


def _linear_inside(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """A linear layer whose result is read on is a convolution over the whole map; so is one over pixels."""
    if not isinstance(node, ir.Linear) or (_is_last(node, users) and not isinstance(node.inputs[0], ir.Input)):
        return replace(node, inputs=inputs)
    c, h, w = inputs[0].shape
    weight = node.weight.reshape(-1, h, w, c).transpose(0, 3, 1, 2)
    return ir.Conv(node.name, inputs, node.shape, (h, w), (1, 1), (0, 0), np.ascontiguousarray(weight))


def _read_pixels() -> Callable[[ir.Node, list[ir.Node], ir.Users], ir.Node]:
    """Whatever else reads the image reads it from a convolution that leaves it as it is."""
    copies: dict[ir.Node, ir.Node] = {}

    def rule(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        if isinstance(node, ir.Conv) or not any(isinstance(x, ir.Input) for x in inputs):
            return replace(node, inputs=inputs)
        for x in inputs:
            if isinstance(x, ir.Input) and x not in copies:
                eye = np.eye(x.shape[0], dtype=np.float32)[:, :, None, None]
                copies[x] = ir.Conv(f"{x.name}.pixels", [x], x.shape, (1, 1), (1, 1), (0, 0), eye)
        return replace(node, inputs=[copies.get(x, x) for x in inputs])

    return rule


def _scale_by_average(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """An average over one pixel does the scaling where the op before cannot."""
    if isinstance(node, ir.Affine):
        source = node.inputs[0]
        wide = isinstance(source, ir.Mul) and node.offset.any()  # 32 bits do not hold the offset of a product
        if not source.takes_affine or len(users[source]) != 1 or wide:
            inputs = [ir.AvgPool(node.name, inputs, node.shape, (1, 1), (1, 1), (0, 0))]
    return replace(node, inputs=inputs)


def _end_in_float(graph: ir.Graph) -> ir.Graph:
    """Results, and what a softmax reads, are f32."""
    floats: dict[ir.Node, ir.Node] = {}

    def in_float(x: ir.Node) -> ir.Node:
        core = x.inputs[0] if isinstance(x, ir.Affine) else x
        if core.in_float:
            return x
        return floats.setdefault(x, ir.ToFloat(f"{x.name}.float", [x], x.shape))

    def rule(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
        return replace(node, inputs=list(map(in_float, inputs)) if isinstance(node, ir.Softmax) else inputs)

    graph = ir.rewrite(graph, rule)
    outputs = list(map(in_float, graph.outputs))
    return ir.Graph(ir.reachable(*outputs), graph.became, outputs)
