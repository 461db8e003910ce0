"""Step 4, fold: batch norms, scales and biases become one multiplier and one offset, and chains become single ops.

First the traced nodes are rewritten so that all arithmetic per channel is an `Affine` in float64 and a binary
convolution is `Sign`, `Dot`, `Affine`. Then each op that does real work takes in what follows it, in the order in which
the engine's epilogue applies it: affine, addition of a residual, activation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ovsw.export import ir

_CORES = (ir.Dot, ir.Conv, ir.Linear, ir.MaxPool, ir.AvgPool, ir.ChannelPad)


@dataclass(eq=False)
class Fused:
    """One op of the file: act(scale * core(source) + offset + residual). Sources are nodes of the folded graph.

    `core` is None where there is nothing but the epilogue. `value` is the node whose value this op computes.
    """

    core: ir.Node | None
    source: ir.Node
    value: ir.Node
    affine: ir.Affine | None = None
    residual: ir.Node | None = None
    act: ir.Act | None = None
    wants_map: bool = False
    wants_bits: bool = False

    @property
    def name(self) -> str:
        return (self.core or self.value).name


def fold(graph: ir.Graph) -> list[Fused]:
    """The ops of the file, in an order in which they can run."""
    return _fuse(_Rewriter(graph).rewrite())


class _Rewriter:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.made: dict[ir.Node, ir.Node] = {}
        self.signs: dict[ir.Node, ir.Sign] = {}

    def rewrite(self) -> ir.Graph:
        for node in self.graph.nodes:
            self.made[node] = self.node(node)
        return ir.Graph(ir.reachable(self.made[self.graph.output]))

    def node(self, node: ir.Node) -> ir.Node:
        inputs = [self.made[n] for n in node.inputs]
        if isinstance(node, ir.BinaryConv):
            geometry = (node.kernel, node.stride, node.pad)
            dot = ir.Dot(node.name, [self.sign(inputs[0])], node.shape, *geometry, positive=node.weight >= 0)
            return ir.Affine(node.name, [dot], node.shape, node.scale, np.zeros_like(node.scale))
        if isinstance(node, ir.Norm):
            scale = node.weight / np.sqrt(node.running_var + node.eps)
            return _affine(node.name, inputs[0], scale, node.bias - scale * node.running_mean)
        if isinstance(node, ir.Affine):
            return self.shifted_sum(node, inputs[0]) or _affine(node.name, inputs[0], node.scale, node.offset)
        if isinstance(node, ir.Linear):
            linear = replace(node, inputs=inputs, weight=_weight_hwc(node, inputs[0]), bias=None)
            return _biased(linear if not isinstance(inputs[0], ir.Flatten) else _unflattened(linear), node.bias)
        if isinstance(node, ir.Conv):
            return _biased(replace(node, inputs=inputs, bias=None), node.bias)
        if isinstance(node, ir.MaxPool) and self.is_private(node.inputs[0]):
            return _pool_before_affine(replace(node, inputs=inputs))
        return replace(node, inputs=inputs)

    def shifted_sum(self, node: ir.Affine, x: ir.Node) -> ir.Node | None:
        """(scale * x + offset + residual) + shift, with the shift moved into the offset: one op instead of two."""
        add = node.inputs[0]
        if not isinstance(x, ir.Add) or len(self.users[add]) != 1 or (node.scale != 1).any():
            return None
        for i, term in enumerate(x.inputs):
            if isinstance(term, ir.Affine) and self.is_private(add.inputs[i]):
                terms = list(x.inputs)
                terms[i] = _affine(term.name, term, node.scale, node.offset)
                return replace(x, name=node.name, inputs=terms)
        return None

    def sign(self, x: ir.Node) -> ir.Sign:
        if x not in self.signs:
            self.signs[x] = ir.Sign(f"{x.name}.sign", [x], x.shape)
        return self.signs[x]

    def is_private(self, node: ir.Node) -> bool:
        """Whether a traced node's value, and what it is computed from by scaling, has one reader only."""
        while len(self.users[node]) == 1 and isinstance(node, ir.Norm):
            node = node.inputs[0]
        return len(self.users[node]) == 1


def _affine(name: str, x: ir.Node, scale: np.ndarray, offset: np.ndarray) -> ir.Affine:
    """scale * x + offset, joined with an affine that x may already be."""
    if isinstance(x, ir.Affine):
        return ir.Affine(name, x.inputs, x.shape, scale * x.scale, scale * x.offset + offset)
    return ir.Affine(name, [x], x.shape, scale, offset)


def _biased(x: ir.Node, bias: np.ndarray | None) -> ir.Node:
    return x if bias is None else _affine(x.name, x, np.ones_like(bias), bias)


def _weight_hwc(node: ir.Linear, source: ir.Node) -> np.ndarray:
    """The columns of a linear layer in the order of the engine's maps: row, column, channel."""
    if not isinstance(source, ir.Flatten):
        return node.weight
    c, h, w = source.inputs[0].shape
    return np.ascontiguousarray(node.weight.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(node.weight), -1))


def _unflattened(linear: ir.Linear) -> ir.Linear:
    return replace(linear, inputs=linear.inputs[0].inputs)


def _pool_before_affine(pool: ir.MaxPool) -> ir.Node:
    """max(a * n + b) = |a| * max(sign(a) * n) + b: pools the dots themselves, whose weights are negated where a < 0."""
    affine = pool.inputs[0]
    if not isinstance(affine, ir.Affine) or not isinstance(affine.inputs[0], (ir.Dot, ir.Conv)):
        return pool
    core, negative = affine.inputs[0], affine.scale < 0
    if isinstance(core, ir.Dot):
        core = replace(core, positive=core.positive ^ negative[:, None, None, None])
    else:
        core = replace(core, weight=np.where(negative[:, None, None, None], -core.weight, core.weight))
    return ir.Affine(affine.name, [replace(pool, inputs=[core])], pool.shape, np.abs(affine.scale), affine.offset)


def _fuse(graph: ir.Graph) -> list[Fused]:
    users = graph.users()
    order = {node: i for i, node in enumerate(graph.nodes)}
    taken: set[ir.Node] = set()
    ops: list[Fused] = []
    for node in graph.nodes:
        if node in taken or isinstance(node, (ir.Input, ir.Sign)):
            continue
        op = Fused(node, node.inputs[0], node) if isinstance(node, _CORES) else _epilogue_alone(node)
        while True:
            taken.add(op.value)
            readers = users[op.value]
            if len(readers) != 1 or not _absorb(op, readers[0], users):
                break
        ops.append(op)
    for node in graph.nodes:
        if isinstance(node, ir.Sign) and isinstance(node.inputs[0], ir.Input):
            ops.append(Fused(None, node.inputs[0], node))
    by_value = {op.value: op for op in ops}
    for node in graph.nodes:
        for source in node.inputs:
            if source in by_value:
                by_value[source].wants_bits |= isinstance(node, ir.Sign)
                by_value[source].wants_map |= not isinstance(node, ir.Sign)
    for op in ops:
        if isinstance(op.value, ir.Sign):
            op.wants_bits, op.wants_map = True, False
    by_value[graph.output].wants_map = True
    return sorted(ops, key=lambda op: order[op.value])


def _epilogue_alone(node: ir.Node) -> Fused:
    """An affine, addition or activation that no op before it can take in."""
    op = Fused(None, node.inputs[0], node)
    if isinstance(node, ir.Affine):
        op.affine = node
    elif isinstance(node, ir.Add):
        op.residual = node.inputs[1]
    elif isinstance(node, ir.Act):
        op.act = node
    else:
        raise TypeError(f"{type(node).__name__} has no place in a folded graph")
    return op


def _absorb(op: Fused, node: ir.Node, users: dict[ir.Node, list[ir.Node]]) -> bool:
    """Takes `node`, the only reader of the op's value, into the op's epilogue if the order allows."""
    if op.act:
        return False
    if isinstance(node, ir.Affine) and not op.affine and not op.residual:
        op.affine = node
    elif isinstance(node, ir.Add) and not op.residual and node.inputs[_main(node, users)] is op.value:
        op.residual = node.inputs[1 - _main(node, users)]
    elif isinstance(node, ir.Act):
        op.act = node
    else:
        return False
    op.value = node
    return True


def _main(add: ir.Node, users: dict[ir.Node, list[ir.Node]]) -> int:
    """Which operand's op takes the addition in: a binary convolution before others; the other is the residual."""

    def rank(x: ir.Node) -> int:
        if len(users[x]) != 1:
            return 0
        core = x.inputs[0] if isinstance(x, ir.Affine) and len(users[x.inputs[0]]) == 1 else x
        return 2 if isinstance(core, ir.Dot) else int(isinstance(core, _CORES))

    return int(rank(add.inputs[1]) >= rank(add.inputs[0]))
