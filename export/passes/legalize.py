"""Legalize: the folded graph in the form that files of either numerics want, with the same results.

Max-pools read the sums of a convolution, before they are scaled: what follows the pool then joins its epilogue.
Integers store nothing that is not clamped, so there the pool goes behind the clamp wherever that is the same. Integer
pools, pads and additions do not scale, and integer logits come from a `Linear`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovsw.export import ir

_SCALING = (ir.Dot, ir.Conv, ir.Linear, ir.AvgPool)  # whose integer ops have a multiplier


def legalize(graph: ir.Graph, numerics: str) -> ir.Graph:
    rules = [_pool_sums] if numerics == "float" else [_pool_clamps, _pool_sums, _end_with_linear, _scale_by_average]
    for rule in rules:
        graph = ir.rewrite(graph, rule)
    return graph


def is_integer_clamp(node: ir.Node | None) -> bool:
    """Whether it is a clamp that the stream's integers can have."""
    return isinstance(node, ir.Act) and node.kind == "clamp" and max(abs(node.lo), abs(node.hi)) <= 2


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
    if not is_integer_clamp(node):
        return new
    scaled = node.inputs[0] if isinstance(node.inputs[0], ir.Affine) else None
    pool, new_pool = (node.inputs[0], inputs[0]) if scaled is None else (scaled.inputs[0], inputs[0].inputs[0])
    if not _is_pool_of_sums(pool, users) or len(users[pool]) != 1 or len(users[node.inputs[0]]) != 1:
        return new
    x = new_pool.inputs[0]
    if scaled is not None and (scaled.scale >= 0).all():
        x = ir.affine(scaled.name, x, scaled.scale, scaled.offset)
    elif scaled is not None or not isinstance(x, ir.Affine):
        return new
    return replace(new_pool, inputs=[replace(new, inputs=[x], shape=x.shape)])


def _pool_sums(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """max(a * n + b) = |a| * max(sign(a) * n) + b: pools the sums themselves, whose weights are negated where a < 0."""
    if isinstance(node, ir.Affine):
        return ir.affine(node.name, inputs[0], node.scale, node.offset)
    new, x = replace(node, inputs=inputs), next(iter(inputs), None)
    if not isinstance(x, ir.Affine) or not _is_pool_of_sums(node, users):
        return new
    core, negative = x.inputs[0], (x.scale < 0)[:, None, None, None]
    if isinstance(core, ir.Dot):
        core = replace(core, positive=core.positive ^ negative)
    elif isinstance(core, ir.Conv):
        core = replace(core, weight=np.where(negative, -core.weight, core.weight))
    return ir.Affine(x.name, [replace(new, inputs=[core])], node.shape, np.abs(x.scale), x.offset)


def _end_with_linear(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """Logits that are a convolution over the whole map come from the Linear that it is."""
    last = all(isinstance(user, ir.Affine) and not users[user] for user in users[node])
    if last and isinstance(node, ir.Conv) and node.window == node.inputs[0].shape[1:] and not any(node.pad):
        weight = node.weight.transpose(0, 2, 3, 1).reshape(len(node.weight), -1)
        return ir.Linear(node.name, inputs, node.shape, weight)
    return replace(node, inputs=inputs)


def _scale_by_average(node: ir.Node, inputs: list[ir.Node], users: ir.Users) -> ir.Node:
    """Scaling is an average over one pixel where the op before cannot scale."""
    if isinstance(node, ir.Affine):
        source = node.inputs[0]
        if not isinstance(source, _SCALING) or len(users[source]) != 1:
            inputs = [ir.AvgPool(node.name, inputs, node.shape, (1, 1), (1, 1), (0, 0))]
    return replace(node, inputs=inputs)
