"""Every reason why a graph cannot be exported, all of them at once."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend.binary import two_values

_PLAIN = (str, int, float, tuple, list, type(None))  # what else a node holds


def validate(graph: ir.Graph, zero_weights: str = "refuse") -> list[str]:
    """Raises ExportError with the whole list; returns warnings about what is exported but worth knowing."""
    users = graph.users()
    problems = [p for node in graph.nodes for p in _problems(node, users[node], zero_weights)]
    if not any(isinstance(node, (ir.BinaryConv, ir.Unsupported)) for node in graph.nodes):
        problems.append(_not_binary(graph))
    if sum(isinstance(node, ir.Input) for node in graph.nodes) != 1:
        problems.append("the output must depend on exactly one input")
    for node, count in Counter(graph.outputs).items():
        if isinstance(node, ir.Input):
            problems.append("the network returns its input")
        elif count > 1:
            problems.append(f"{node.name}: the network returns this {count} times; return it once")
    if problems:
        raise ExportError(f"the network cannot be exported, {len(problems)} problem(s):", problems)
    return [w for node in graph.nodes for w in node.warnings(users[node])]


def _not_binary(graph: ir.Graph) -> str:
    """What was found instead of a binary layer."""
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if isinstance(node, (ir.Conv, ir.Linear)):
            what = "convolutions" if isinstance(node, ir.Conv) else "linear layers"
            rows = node.weight.reshape(len(node.weight), -1)
            signs = rows.shape[1] > 2 and two_values(rows) is not None
            bits = isinstance(node.inputs[0], ir.Act) and node.inputs[0].kind == "step"
            kind = "binary weights but a real input" if signs else "a binary input but real weights" if bits else ""
            counts[f"{what} with {kind or 'real weights and a real input'}"] += 1
    listed = ", ".join(f"{n} {what}" for what, n in counts.items()) or "no layer with weights"
    return (
        f"the network is not binary: it has no binary convolution, such as ovsw.nn.BinaryConv2d, but {listed}; a "
        "layer is binary if its input has two levels and its weights have two values in each output channel"
    )


def _problems(node: ir.Node, users: list[ir.Node], zero_weights: str) -> list[str]:
    problems = []
    for what, array in vars(node).items():
        if not isinstance(array, np.ndarray):
            if not isinstance(array, _PLAIN):
                problems.append(f"{node.name}: {what} is a {type(array).__name__}, expected a numpy array")
        elif array.shape != (expected := node.array_shape(what)):
            problems.append(f"{node.name}: {what} has the shape {array.shape}, expected {expected}")
        elif not np.isfinite(array).all():
            count = int((~np.isfinite(array)).sum())
            problems.append(f"{node.name}: {count} of {array.size} values of {what} are not finite")
    return problems + node.problems(users, zero_weights)
