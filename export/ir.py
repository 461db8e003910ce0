"""The graph of a network: its nodes, each kind of which has a module in `export.ops`.

Front ends make all kinds except `Sign`, `Dot` and `ToFloat`. The passes make those three, and replace every
`BinaryConv`, `Norm` and `Flatten`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ovsw.export.ops.act import Act
from ovsw.export.ops.add import Add
from ovsw.export.ops.affine import Affine, Norm
from ovsw.export.ops.bilinear import Bilinear
from ovsw.export.ops.binary import BinaryConv, Dot, Sign
from ovsw.export.ops.channel_pad import ChannelPad
from ovsw.export.ops.concat import Concat
from ovsw.export.ops.conv import Conv
from ovsw.export.ops.gather import Gather
from ovsw.export.ops.linear import Flatten, Linear
from ovsw.export.ops.mul import Mul
from ovsw.export.ops.node import Input, Node, Shape, Unsupported, Window
from ovsw.export.ops.pool import AvgPool, MaxPool
from ovsw.export.ops.round import Round
from ovsw.export.ops.softmax import Softmax
from ovsw.export.ops.to_float import ToFloat

__all__ = [
    "Act", "Add", "Affine", "AvgPool", "Bilinear", "BinaryConv", "ChannelPad", "Concat", "Conv", "Dot", "Flatten",
    "Gather", "Graph", "Input", "Linear", "MaxPool", "Mul", "Node", "Norm", "Round", "Shape", "Sign", "Softmax",
    "ToFloat", "Unsupported", "Users", "Window", "is_compared", "reachable", "rewrite",
]  # fmt: skip
NODES = tuple(kind for kind in list(vars().values()) if isinstance(kind, type) and issubclass(kind, Node))
Users = dict[Node, list[Node]]


@dataclass
class Graph:
    """Nodes in an order in which they can be computed. `outputs` are the network's results; default: the last node.

    `became` maps every node of the front end's graph to the node that has its value now, which may no longer be part of
    the graph.
    """

    nodes: list[Node] = field(default_factory=list)
    became: dict[Node, Node] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.became = self.became or {node: node for node in self.nodes}
        self.outputs = self.outputs or self.nodes[-1:]

    @property
    def output(self) -> Node:
        """The first of the results."""
        return self.outputs[0]

    @property
    def input_shape(self) -> Shape:
        return next(node.shape for node in self.nodes if isinstance(node, Input))

    def users(self) -> Users:
        """Who reads each node (once per reading)."""
        users: Users = defaultdict(list)
        for node in self.nodes:
            for source in node.inputs:
                users[source].append(node)
        return users


def reachable(*outputs: Node) -> list[Node]:
    """`outputs` and the nodes that they depend on, inputs first; nodes met earlier stay earlier."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, Iterable[Node]]] = [(node, iter(node.inputs)) for node in reversed(outputs)]
    while stack:
        node, rest = stack[-1]
        if node in order:
            stack.pop()
            continue
        for source in rest:
            if source not in order:
                stack.append((source, iter(source.inputs)))
                break
        else:
            order[node] = None
            stack.pop()
    return list(order)


def is_compared(node: Node, users: Users) -> bool:
    """Whether a value is a term of a sum that a step reads, as x == y is a step of x - y.

    Equal numbers are only found equal if they were computed in the same way, so a value that has other readers must be
    read unchanged.
    """

    def steps(x: Node) -> bool:
        return any(
            (isinstance(user, Act) and user.kind == "step") or (isinstance(user, Affine) and steps(user))
            for user in users[x]
        )

    shared = len(users[node.inputs[0]]) > 1
    return shared and any(isinstance(user, Add) and steps(user) for user in users[node])


def rewrite(graph: Graph, rule: Callable[[Node, list[Node], Users], Node]) -> Graph:
    """The graph with each node replaced by what `rule` returns for the old node, its new inputs and all users."""
    new: dict[Node, Node] = {}
    users = graph.users()
    for node in graph.nodes:
        new[node] = rule(node, [new[source] for source in node.inputs], users)
    became = {first: new[last] for first, last in graph.became.items() if last in new}
    outputs = [new[node] for node in graph.outputs]
    return Graph(reachable(*outputs), became, outputs)
