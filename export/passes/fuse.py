"""Fuse: each op takes in the nodes that follow it, in the order of the engine's epilogue.

The order is: affine, addition of a residual, activation. A node that no op can take in becomes an op without a core.
"""

from __future__ import annotations

from ovsw.export import ir
from ovsw.export.ops.fused import Fused


def fuse(graph: ir.Graph, apart: bool = False) -> list[Fused]:
    """The ops of the file, in an order in which they can run; `apart`: one for each node."""
    users = graph.users()
    order = {node: i for i, node in enumerate(graph.nodes)}
    taken: set[ir.Node] = set()
    ops: list[Fused] = []
    for node in graph.nodes:
        if node in taken or isinstance(node, (ir.Input, ir.Sign)):
            continue
        op = _core(node) if node.op else _epilogue_alone(node)
        while True:
            taken.add(op.value)
            readers = users[op.value]
            if apart or len(readers) != 1 or op.value in graph.outputs or not _absorb(op, readers[0], users):
                break
        ops.append(op)
    by_value = {op.value: op for op in ops}
    for node in graph.nodes:
        if isinstance(node, ir.Sign):  # an op stores the bits of one sign; others are ops of their own
            writer = by_value.get(node.inputs[0])
            if writer is not None and writer.sign is None and _has_epilogue(writer):
                writer.sign = node
            else:
                ops.append(Fused(None, node.inputs[0], node, sign=node))
    read = {node for op in ops for node in op.reads} | set(graph.outputs)
    for op in ops:
        op.wants_map = op.value in read and op.value is not op.sign
    return sorted(ops, key=lambda op: order[op.value])


def _core(node: ir.Node) -> Fused:
    return Fused(node, node.inputs[0], node, other=node.inputs[1] if node.has_second_input else None)


def _has_epilogue(op: Fused) -> bool:
    return op.core is None or op.core.has_epilogue


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
    if op.act or not _has_epilogue(op):
        return False
    if isinstance(node, ir.Affine) and not op.affine and not op.residual:
        op.affine = node
    elif isinstance(node, ir.Add) and not op.residual and not op.other and _main(node, users) is op.value:
        op.residual = node.inputs[1] if node.inputs[0] is op.value else node.inputs[0]
    elif isinstance(node, ir.Act) and not (node.kind == "sigmoid" and op.core is not None and op.core.has_weight):
        op.act = node
    else:
        return False
    op.value = node
    return True


def _main(add: ir.Node, users: ir.Users) -> ir.Node | None:
    """The operand whose op takes the addition in, a binary convolution before others; the other one is the residual.

    None if that is a pixel which counts for the whole map.
    """

    def rank(x: ir.Node) -> int:
        if len(users[x]) != 1:
            return 0
        core = x.inputs[0] if isinstance(x, ir.Affine) and len(users[x.inputs[0]]) == 1 else x
        return 2 if isinstance(core, ir.Dot) else int(bool(core.op) and not core.has_second_input)

    first, second = add.inputs
    if first.shape != second.shape:
        return None
    return second if rank(second) >= rank(first) else first
