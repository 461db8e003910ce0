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


@dataclass(eq=False, repr=False)
class Node:
    name: str
    inputs: list[Node]
    shape: Shape

    def __repr__(self) -> str:
        """Without what it reads: graphs share nodes, so that their whole text may have any length."""
        return f"<{type(self).__name__} {self.name} {self.shape}>"


class Input(Node):
    pass


@dataclass(eq=False, repr=False)
class Window(Node):
    """Anything that slides over the map."""

    window: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]


@dataclass(eq=False, repr=False)
class MaxPool(Window):
    """`ceil`: the last windows may reach over the padded map, as with torch's ceil_mode."""

    dilation: tuple[int, int] = (1, 1)
    ceil: bool = False


@dataclass(eq=False, repr=False)
class AvgPool(Window):
    """`exclude_pad`: divides by the number of taps inside the map, as with torch's count_include_pad=False."""

    ceil: bool = False
    exclude_pad: bool = False


@dataclass(eq=False, repr=False)
class Conv(Window):
    """Weights are (out, in / groups, height, width); padded with zeros."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    dilation: tuple[int, int] = (1, 1)

    @property
    def groups(self) -> int:
        return self.inputs[0].shape[0] // self.weight.shape[1]


@dataclass(eq=False, repr=False)
class Linear(Node):
    weight: np.ndarray
    bias: np.ndarray | None = None


@dataclass(eq=False, repr=False)
class Affine(Node):
    scale: np.ndarray
    offset: np.ndarray


@dataclass(eq=False, repr=False)
class ChannelPad(Node):
    before: int
    after: int


class Add(Node):
    """The sum of two maps; either may be (channels, 1, 1) and then counts for every pixel."""


class Mul(Node):
    """The product of two maps; either may be (channels, 1, 1)."""


class Concat(Node):
    """The channels of all inputs, one after the other."""


@dataclass(eq=False, repr=False)
class Gather(Node):
    """out[c, y, x] = in[channels[c], rows[y], columns[x]], or `value` where one of the three is -1.

    Slices, flips, strides, channel shuffles, padding of any kind, nearest upsampling, expansion of single pixels.
    """

    channels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    value: float = 0.0


@dataclass(eq=False, repr=False)
class Bilinear(Node):
    """Output row y lies between rows `rows[y]` and `rows[y] + 1`, `row_fractions[y]` (0 <= f < 1) past the first.

    Where the fraction is 0 the second one is not read. Columns likewise.
    """

    rows: np.ndarray
    row_fractions: np.ndarray
    columns: np.ndarray
    column_fractions: np.ndarray


@dataclass(eq=False, repr=False)
class Softmax(Node):
    """Over the channels of each pixel; `log`: its logarithm."""

    log: bool = False


@dataclass(eq=False, repr=False)
class Act(Node):
    """`kind` is "clamp" (lo, hi), "prelu" (slope per channel below 0, `positive` above, 1 if None), "sigmoid", or
    "step": hi where x >= 0, or x > 0 if `strict`, and lo elsewhere.
    """

    kind: str
    lo: float = 0.0
    hi: float = 0.0
    slope: np.ndarray | None = None
    positive: np.ndarray | None = None
    strict: bool = False


# First group only: as the front ends make them.


@dataclass(eq=False, repr=False)
class BinaryConv(Window):
    """s = sign(input) convolved with sign(weight), times scale; plus `window_scale` times the sum of s in the window.

    A tap outside the map counts as an s of `pad_value` in every channel. `strict`: sign(0) is -1 instead of +1. Weights
    are (out, in / groups, height, width).
    """

    weight: np.ndarray
    scale: np.ndarray
    dilation: tuple[int, int] = (1, 1)
    pad_value: float = 0.0
    window_scale: np.ndarray | None = None
    strict: bool = False

    @property
    def groups(self) -> int:
        return self.inputs[0].shape[0] // self.weight.shape[1]


@dataclass(eq=False, repr=False)
class Norm(Node):
    """Batch norm in eval mode."""

    weight: np.ndarray
    bias: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray
    eps: float


class Flatten(Node):
    """A map of more than one pixel as a vector."""


@dataclass(eq=False, repr=False)
class Unsupported(Node):
    """Something that a front end does not know; `validate` reports all of them together."""

    reason: str


# Second group only: as folded.


@dataclass(eq=False, repr=False)
class Sign(Node):
    """Bits of a map: +1 where x >= threshold[c], or x > threshold[c] if strict[c], else -1.

    A threshold of None is 0 in every channel; `strict` of None is False in every channel.
    """

    threshold: np.ndarray | None = None
    strict: np.ndarray | None = None

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """The threshold of every channel, and whether it is strict there."""
        c = self.shape[0]
        return (
            np.zeros(c) if self.threshold is None else self.threshold,
            np.zeros(c, bool) if self.strict is None else self.strict,
        )


@dataclass(eq=False, repr=False)
class Dot(Window):
    """The integer part of a binary convolution: bits in, dots out. `positive` is True where the weight is +1.

    `window_scale` times the sum of the bits in the window is added to the dot.
    """

    positive: np.ndarray
    dilation: tuple[int, int] = (1, 1)
    pad_value: float = 0.0
    window_scale: np.ndarray | None = None

    @property
    def groups(self) -> int:
        return self.inputs[0].shape[0] // self.positive.shape[1]


class ToFloat(Node):
    """Integers only: the numbers that a map stands for, as f32."""


Users = dict[Node, list[Node]]


@dataclass
class Graph:
    """Nodes in an order in which they can be computed. `outputs` are the network's results, or else the last node is.

    `became` says of every node of the graph that a front end made which node has its value now. That one need not be
    part of the graph any more.
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
    """The nodes that `outputs` depend on, themselves included, inputs first; nodes met earlier stay earlier."""
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
    """Whether a value is a term of a sum of which a step is taken: x == y is one of x - y.

    Equal numbers must have been computed in the same way to be found equal, so that what others read, too, has to be
    read as it is.
    """

    def steps(x: Node) -> bool:
        return any(
            (isinstance(user, Act) and user.kind == "step") or (isinstance(user, Affine) and steps(user))
            for user in users[x]
        )

    shared = len(users[node.inputs[0]]) > 1
    return shared and any(isinstance(user, Add) and steps(user) for user in users[node])


def rewrite(graph: Graph, rule: Callable[[Node, list[Node], Users], Node]) -> Graph:
    """The graph of what `rule` makes of each node, given the node as it was, its new inputs, and who read what."""
    new: dict[Node, Node] = {}
    users = graph.users()
    for node in graph.nodes:
        new[node] = rule(node, [new[source] for source in node.inputs], users)
    became = {first: new[last] for first, last in graph.became.items() if last in new}
    outputs = [new[node] for node in graph.outputs]
    return Graph(reachable(*outputs), became, outputs)


def affine(name: str, x: Node, scale: np.ndarray, offset: np.ndarray, apart: bool = False) -> Affine:
    """scale * x + offset, joined with an affine that x may already be, if they are not to stay apart."""
    if isinstance(x, Affine) and not apart:
        return Affine(name, x.inputs, x.shape, scale * x.scale, scale * x.offset + offset)
    return Affine(name, [x], x.shape, scale, offset)
