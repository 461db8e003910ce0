"""Fuse: each op that does real work takes in what follows it, in the order in which the engine's epilogue applies it.

That is affine, addition of a residual, activation. What no op can take in becomes an op without a core.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def fuse(graph: ir.Graph) -> list[Fused]:
    """The ops of the file, in an order in which they can run."""
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


def _absorb(op: Fused, node: ir.Node, users: ir.Users) -> bool:
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


def _main(add: ir.Node, users: ir.Users) -> int:
    """Which operand's op takes the addition in: a binary convolution before others; the other is the residual."""

    def rank(x: ir.Node) -> int:
        if len(users[x]) != 1:
            return 0
        core = x.inputs[0] if isinstance(x, ir.Affine) and len(users[x.inputs[0]]) == 1 else x
        return 2 if isinstance(core, ir.Dot) else int(isinstance(core, _CORES))

    return int(rank(add.inputs[1]) >= rank(add.inputs[0]))
