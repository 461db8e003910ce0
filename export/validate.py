"""Every reason why a graph cannot be exported, all of them at once."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend.binary import two_values

_PLAIN = (str, int, float, tuple, list, type(None))  # what else a node holds
_CHANCE = 1e-6  # of a random weight to be exactly 0, at most


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
    return [w for node in graph.nodes for w in _warnings(node, users[node])]


def _not_binary(graph: ir.Graph) -> str:
    """What was found instead of a binary layer."""
    found: Counter[str] = Counter()
    for node in graph.nodes:
        if isinstance(node, (ir.Conv, ir.Linear)):
            what = "convolutions" if isinstance(node, ir.Conv) else "linear layers"
            rows = node.weight.reshape(len(node.weight), -1)
            signs = rows.shape[1] > 2 and two_values(rows) is not None
            bits = isinstance(node.inputs[0], ir.Act) and node.inputs[0].kind == "step"
            kind = "binary weights but a real input" if signs else "a binary input but real weights" if bits else ""
            found[f"{what} with {kind or 'real weights and a real input'}"] += 1
    listed = ", ".join(f"{n} {what}" for what, n in found.items()) or "no layer with weights"
    return (
        f"the network is not binary: it has no binary convolution, such as ovsw.nn.BinaryConv2d, but {listed}; binary "
        "are those whose input has two levels and whose weights have two values in each output channel"
    )


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
    if isinstance(node, ir.BinaryConv) and zero_weights == "refuse":
        zeros, size = int((node.weight == 0).sum()), node.weight.size
        if zeros:
            problems.append(
                f"{node.name}: {zeros} of {size} binary weights are exactly 0, whose sign is +1 in the paper and 0 in "
                f"its released code; --zero-weights plus takes them as +1{_about_zeros(zeros, size)}"
            )
    if isinstance(node, ir.Norm):
        bad = int((node.running_var < 0).sum())
        if bad:
            problems.append(f"{node.name}: running_var is negative in {bad} of {node.running_var.size} channels")
        none = int((node.running_var + node.eps == 0).sum())
        if none:
            problems.append(f"{node.name}: running_var + eps is 0 in {none} of {node.running_var.size} channels")
    if isinstance(node, ir.Flatten):
        others = [u.name for u in users if not isinstance(u, ir.Linear)]
        if others or not users:
            problems.append(f"{node.name}: a flattened {node.inputs[0].shape} map is read by {others}, not by a Linear")
    return problems


def _about_zeros(zeros: int, size: int) -> str:
    """How likely it is that zeros mean nothing."""
    if zeros <= 1 + _CHANCE * size:
        return ", which is harmless here: so few come from a random initialisation"
    if zeros > size // 20:
        return f", which is wrong if they are meant: {zeros / size:.0%} of zeros look like a ternary layer"
    return ", which --images or --verify should confirm"


def _array_shape(node: ir.Node, what: str) -> tuple[int, ...]:
    """What a constant of a node looks like: weights of a layer, places in a map, or one number per channel."""
    if what == "weight" and isinstance(node, (ir.Conv, ir.BinaryConv)):
        channels, given = node.inputs[0].shape[0], node.weight.shape[1] if node.weight.ndim > 1 else 0
        grouped = given and channels % given == 0 and node.shape[0] % (channels // given) == 0
        return (node.shape[0], given if grouped else channels, *node.window)
    if what == "weight" and isinstance(node, ir.Linear):
        return (node.shape[0], math.prod(node.inputs[0].shape))
    if what in ("rows", "row_fractions"):
        return node.shape[1:2]
    if what in ("columns", "column_fractions"):
        return node.shape[2:]
    return node.shape[:1]


def _warnings(node: ir.Node, users: list[ir.Node]) -> list[str]:
    """A channel that is exactly 0 before a sign: +1 here and in the paper, 0 in the paper's released code."""
    if not isinstance(node, ir.Norm) or any(isinstance(user, ir.Add) for user in users):
        return []
    dead = int(((node.weight == 0) & (node.bias == 0)).sum())
    if not dead:
        return []
    return [f"{node.name}: {dead} channels are always 0 (weight and bias are 0); where binarised, they count as +1"]
