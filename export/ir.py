"""The exporter's picture of a network: nodes that know their inputs and their output's shape.

A front end makes nodes of the first group, `passes.fold` rewrites them into those of the second.
Arrays are numpy: weights in float32 as trained (out, in, height, width), everything per channel in float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(eq=False)
class Node:
    name: str
    inputs: list[Node]
    shape: Shape


class Input(Node):
    pass


@dataclass(eq=False)
class Window(Node):
    """Anything that slides over the map."""

    window: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]


class MaxPool(Window):
    pass


class AvgPool(Window):
    pass


@dataclass(eq=False)
class Conv(Window):
    weight: np.ndarray
    bias: np.ndarray | None = None


@dataclass(eq=False)
class Linear(Node):
    weight: np.ndarray
    bias: np.ndarray | None = None


@dataclass(eq=False)
class Affine(Node):
    scale: np.ndarray
    offset: np.ndarray


@dataclass(eq=False)
class ChannelPad(Node):
    before: int
    after: int


class Add(Node):
    pass


@dataclass(eq=False)
class Act(Node):
    """`kind` is "clamp" (lo, hi) or "prelu" (slope per channel)."""

    kind: str
    lo: float = 0.0
    hi: float = 0.0
    slope: np.ndarray | None = None


# First group only: as the front ends make them.


@dataclass(eq=False)
class BinaryConv(Window):
    """sign(input) convolved with sign(weight), times scale."""

    weight: np.ndarray
    scale: np.ndarray


@dataclass(eq=False)
class Norm(Node):
    """Batch norm in eval mode."""

    weight: np.ndarray
    bias: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray
    eps: float


class Flatten(Node):
    """A map of more than one pixel as a vector."""


@dataclass(eq=False)
class Unsupported(Node):
    """Something that a front end does not know; `validate` reports all of them together."""

    reason: str


# Second group only: as folded.


class Sign(Node):
    pass


@dataclass(eq=False)
class Dot(Window):
    """The integer part of a binary convolution: bits in, dots out. `positive` is True where the weight is +1."""

    positive: np.ndarray


Users = dict[Node, list[Node]]


@dataclass
class Graph:
    """Nodes in an order in which they can be computed; the last one's value is the network's output.

    `became` says of every node of the graph that a front end made which node has its value now. That one need not be
    part of the graph any more.
    """

    nodes: list[Node] = field(default_factory=list)
    became: dict[Node, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.became = self.became or {node: node for node in self.nodes}

    @property
    def output(self) -> Node:
        return self.nodes[-1]

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


def reachable(output: Node) -> list[Node]:
    """The nodes that `output` depends on, itself included, inputs first; nodes met earlier stay earlier."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, Iterable[Node]]] = [(output, iter(output.inputs))]
    while stack:
        node, rest = stack[-1]
        for source in rest:
            if source not in order:
                stack.append((source, iter(source.inputs)))
                break
        else:
            order[node] = None
            stack.pop()
    return list(order)


def rewrite(graph: Graph, rule: Callable[[Node, list[Node], Users], Node]) -> Graph:
    """The graph of what `rule` makes of each node, given the node as it was, its new inputs, and who read what."""
    new: dict[Node, Node] = {}
    users = graph.users()
    for node in graph.nodes:
        new[node] = rule(node, [new[source] for source in node.inputs], users)
    became = {first: new[last] for first, last in graph.became.items() if last in new}
    return Graph(reachable(new[graph.output]), became)


def affine(name: str, x: Node, scale: np.ndarray, offset: np.ndarray) -> Affine:
    """scale * x + offset, joined with an affine that x may already be."""
    if isinstance(x, Affine):
        return Affine(name, x.inputs, x.shape, scale * x.scale, scale * x.offset + offset)
    return Affine(name, [x], x.shape, scale, offset)
