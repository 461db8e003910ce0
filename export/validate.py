"""Every reason why a graph cannot be exported, all of them at once."""

from __future__ import annotations

import math

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import ExportError

_PLAIN = (str, int, float, tuple, list, type(None))  # what else a node holds


def validate(graph: ir.Graph, zero_weights: str = "refuse") -> list[str]:
    """Raises ExportError with the whole list; returns warnings about what is exported but worth knowing."""
    users = graph.users()
    problems = [p for node in graph.nodes for p in _problems(node, users[node], zero_weights)]
    if not any(isinstance(node, (ir.BinaryConv, ir.Unsupported)) for node in graph.nodes):
        problems.append("the network is not binary: it has no binary convolution, such as ovsw.nn.BinaryConv2d")
    if sum(isinstance(node, ir.Input) for node in graph.nodes) != 1:
        problems.append("the output must depend on exactly one input")
    if isinstance(graph.output, ir.Input):
        problems.append("the network returns its input")
    elif graph.output.shape[1:] != (1, 1):
        problems.append(
            f"{graph.output.name}: the network returns a map of {graph.output.shape}, not a vector of logits"
        )
    if problems:
        raise ExportError(f"the network cannot be exported, {len(problems)} problem(s):", problems)
    return [w for node in graph.nodes for w in _warnings(node, users[node])]


def _problems(node: ir.Node, users: list[ir.Node], zero_weights: str) -> list[str]:
    problems = []
    if isinstance(node, ir.Unsupported):
        problems.append(f"{node.name}: {node.reason}")
    for what, array in vars(node).items():
        if not isinstance(array, np.ndarray):
            if not isinstance(array, _PLAIN):
                problems.append(f"{node.name}: {what} is a {type(array).__name__}, expected a numpy array")
        elif array.shape != (expected := _array_shape(node, what)):
            problems.append(f"{node.name}: {what} has the shape {array.shape}, expected {expected}")
        elif not np.isfinite(array).all():
            count = int((~np.isfinite(array)).sum())
            problems.append(f"{node.name}: {count} of {array.size} values of {what} are not finite")
    if isinstance(node, ir.BinaryConv):
        zeros = int((node.weight == 0).sum())
        if zeros and zero_weights == "refuse":
            problems.append(
                f"{node.name}: {zeros} of {node.weight.size} binary weights are exactly 0, whose sign is +1 in the "
                "paper and 0 in its released code; --zero-weights plus takes them as +1"
            )
    if isinstance(node, ir.Norm):
        bad = int((node.running_var < 0).sum())
        if bad:
            problems.append(f"{node.name}: running_var is negative in {bad} of {node.running_var.size} channels")
    if isinstance(node, ir.Flatten):
        others = [u.name for u in users if not isinstance(u, ir.Linear)]
        if others or not users:
            problems.append(f"{node.name}: a flattened {node.inputs[0].shape} map is read by {others}, not by a Linear")
    return problems


def _array_shape(node: ir.Node, what: str) -> tuple[int, ...]:
    """What a constant of a node looks like: weights of a layer, or one number per channel."""
    if what == "weight" and isinstance(node, (ir.Conv, ir.BinaryConv)):
        return (node.shape[0], node.inputs[0].shape[0], *node.window)
    if what == "weight" and isinstance(node, ir.Linear):
        return (node.shape[0], math.prod(node.inputs[0].shape))
    return node.shape[:1]


def _warnings(node: ir.Node, users: list[ir.Node]) -> list[str]:
    """A channel that is exactly 0 before a sign: +1 here and in the paper, 0 in the paper's released code."""
    if not isinstance(node, ir.Norm) or any(isinstance(user, ir.Add) for user in users):
        return []
    dead = int(((node.weight == 0) & (node.bias == 0)).sum())
    if not dead:
        return []
    return [f"{node.name}: {dead} channels are always 0 (weight and bias are 0); where binarised, they count as +1"]
