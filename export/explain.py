"""What an export does to a network, for people: the graph as recorded, after each pass, and the plan that is written.

`explain` collects it, `table` writes it for a terminal, `explain_svg.svg` draws it. The passes are run once more, one
by one, so whoever exports need not keep anything but the graph and the model.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.passes.fold import fold
from ovsw.export.passes.fuse import Fused, fuse
from ovsw.export.passes.legalize import legalize
from ovsw.export.passes.lower import Lowered
from ovsw.export.passes.sink import sink
from ovsw.util import text

WIDTH = 120  # columns of a terminal
_WEIGHT_BITS = {"bits": 1, "i8": 8, "i16": 16, "f32": 32}  # of weights; positions, in i32, are none
_SECOND = {"mul": "*", "concat": "|"}  # ops that read a second map as their own and not as a residual

_SAYS = {
    "recorded": "The network as the front end read it.",
    "fold": "Batch norms, scales and biases become one multiplier and offset per channel; a binary convolution is the "
    "sign of its input, a dot product of bits and a scale.",
    "sink": "A scale or offset that the op before cannot take moves on: into a threshold, weights, behind a pool.",
    "legalize": "The same results in the form that the file's ops have; pools read sums, results become f32.",
    "fuse": "Each op that does real work takes in the scale, the addition, the activation and the sign after it.",
}


@dataclass(frozen=True)
class Row:
    """A node of a stage; `reads` are the names of its inputs."""

    name: str
    kind: str
    reads: tuple[str, ...]
    shape: tuple[int, int, int]
    notes: str


@dataclass(frozen=True)
class Stage:
    """The graph after a pass. `says` is what the pass does, `changes` what it did here."""

    name: str
    says: str
    changes: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Step:
    """An op of the plan.

    `reads` are the values of its input and, if there is one, of its second map; `writes` those it stores, `elements`
    their kinds. `about` says what its core does, `then` what follows it. `computes` are the names of the recorded nodes
    that it stands for.
    """

    name: str
    kind: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    elements: str
    shape: tuple[int, int, int]
    about: str
    then: str
    weight_bits: int | None
    bytes: int
    binary_macs: int
    real_macs: int
    computes: tuple[str, ...]

    @property
    def macs(self) -> int:
        return self.binary_macs + self.real_macs


@dataclass(frozen=True)
class Explanation:
    """A network on its way into a file; `values` are the maps between the steps, of which the first is the image."""

    name: str
    numerics: str
    bytes: int
    values: tuple[bnn.Value, ...]
    outputs: tuple[int, ...]
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]


def explain(graph: ir.Graph, model: bnn.Model, lowered: Sequence[Lowered] = ()) -> Explanation:
    """How `graph`, as a front end made it, became `model`. With `lowered`, steps say what the integers stand for."""
    way = _Way(graph, model.numerics)
    names = [op.name for op in way.ops]
    if names != [op.name for op in model.ops]:
        raise ValueError(f"the model's {len(model.ops)} ops are not the {len(names)} of this graph")
    computes = way.computes()
    scales: list[Lowered | None] = list(lowered) if lowered else [None] * len(names)
    steps = (_step(model, *parts) for parts in zip(model.ops, way.ops, computes, scales))
    return Explanation(
        name=str(model.metadata.get("arch", "network")),
        numerics=model.numerics,
        bytes=len(bnn.to_bytes(model)),
        values=tuple(model.values),
        outputs=tuple(model.outputs),
        stages=tuple(way.stages),
        steps=tuple(steps),
    )


def stages(graph: ir.Graph, numerics: str) -> list[Stage]:
    """The graph as recorded and after each pass."""
    return _Way(graph, numerics).stages


class _Way:
    """The passes, one after the other, and what became of the recorded nodes."""

    def __init__(self, recorded: ir.Graph, numerics: str) -> None:
        self.recorded = recorded
        self.stages = [Stage("recorded", _SAYS["recorded"], "", tuple(map(_row, recorded.nodes)))]
        self.became: dict[ir.Node, ir.Node] = {node: node for node in recorded.nodes}
        graph = recorded
        passes: dict[str, Callable[[ir.Graph], ir.Graph]] = {
            "fold": fold,
            "sink": sink,
            "legalize": lambda graph: legalize(graph, numerics),
        }
        for name, run in passes.items():
            graph = self._after(name, graph, run)
        self.ops = fuse(graph)
        kinds = Counter(_kind(node) for op in self.ops for node in _span(op)[1:])
        changes = f"taken in: {_counts(kinds)}" if kinds else "each node is an op"
        self.stages.append(Stage("fuse", _SAYS["fuse"], changes, tuple(map(_fused_row, self.ops))))

    def _after(self, name: str, before: ir.Graph, run: Callable[[ir.Graph], ir.Graph]) -> ir.Graph:
        after = run(ir.Graph(before.nodes, outputs=before.outputs))  # which then says what became of these nodes
        inverted = _inverted(before, after)
        rows = tuple(_row(node, inverted.get(node, 0)) for node in after.nodes)
        self.stages.append(Stage(name, _SAYS[name], _changes(before, after, inverted), rows))
        there = set(after.nodes)
        found = {first: after.became.get(last) for first, last in self.became.items()}
        self.became = {first: node for first, node in found.items() if node in there and node is not None}
        return after

    def computes(self) -> list[tuple[str, ...]]:
        """Of each op the names of the recorded nodes whose work it does."""
        owner = {node: op for op in reversed(self.ops) for node in _span(op)}
        by_name = {node.name: op for node, op in owner.items()}
        writer = {op.sign: op for op in self.ops if op.sign is not None}
        often = Counter(node.name for node in self.recorded.nodes)
        users = self.recorded.users()
        found: dict[ir.Node, Fused] = {}
        for node in reversed(self.recorded.nodes):
            op = owner.get(self.became[node]) if node in self.became else None
            if op is None and often[node.name] == 1 and not isinstance(node, ir.Input):
                op = by_name.get(node.name)
            if op is None and not isinstance(node, ir.Input):  # its value is nowhere: part of what its reader does
                reader = next((user for user in users[node] if user in found), None)
                op = found.get(reader) if reader is not None else None
                if op is not None and isinstance(reader, ir.BinaryConv):
                    op = writer.get(op.source, op)  # type: ignore[call-overload]
            if op is not None:
                found[node] = op
        names: dict[Fused, list[str]] = {op: [] for op in self.ops}
        for node in self.recorded.nodes:
            if node in found:
                names[found[node]].append(node.name)
        return [tuple(names[op]) for op in self.ops]


def _span(op: Fused) -> list[ir.Node]:
    """The nodes of the legal graph that an op computes, the core or what stands in its place first."""
    summed = op.value if op.act is None else op.act.inputs[0]
    add = summed if op.residual is not None else None
    nodes = dict.fromkeys(node for node in (op.core, op.affine, add, op.act, op.sign) if node is not None)
    return list(nodes)


# What changed.


def _changes(before: ir.Graph, after: ir.Graph, inverted: dict[ir.Node, int]) -> str:
    there = set(after.nodes)
    left: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)  # by name and kind, those that are nobody's yet
    for node in reversed(after.nodes):
        left[node.name, _kind(node)].append(node)

    def take(node: ir.Node) -> ir.Node:
        left[node.name, _kind(node)].remove(node)
        return node

    def image(node: ir.Node) -> ir.Node | None:
        """What stands for a node now: what has its value, if of its kind, else its namesake, its core, or any kind."""
        value = after.became.get(node)
        for kind in (_kind(node), "Dot") if isinstance(node, ir.BinaryConv) else (_kind(node),):
            if (value not in there or _kind(value) != kind) and left[node.name, kind]:
                return left[node.name, kind].pop()
        if value not in there:
            return None
        return take(value) if value in left[value.name, _kind(value)] else value

    became: Counter[tuple[str, str]] = Counter()
    merged: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    thresholds = 0
    for node in before.nodes:
        new = image(node)
        if new is None:
            merged[_kind(node)] += 1
        elif _kind(new) != _kind(node):
            became[_kind(node), _kind(new)] += 1
        elif isinstance(node, (ir.Conv, ir.Linear)):
            weights[_kind(node)] += new.weight is not node.weight  # type: ignore[attr-defined]
        elif isinstance(node, ir.Sign) and node.threshold is None:
            thresholds += new.threshold is not None  # type: ignore[attr-defined]
    added = Counter(_kind(node) for nodes in left.values() for node in nodes)
    parts = [f"{n} {old} became {kind}" for (old, kind), n in became.items()]
    parts += [f"{_counts(merged)} merged into others"] if merged else []
    parts += [f"{_counts(added)} added"] if added else []
    parts += [f"{_counts(weights)} got new weights"] if any(weights.values()) else []
    parts += [f"{thresholds} Sign got a threshold"] if thresholds else []
    parts += [f"{sum(inverted.values())} channels of bits inverted"] if inverted else []
    return ", ".join(parts) or "nothing changed"


def _inverted(before: ir.Graph, after: ir.Graph) -> dict[ir.Node, int]:
    """How many channels a sign stores inverted since this pass, by the weights that read them."""
    found: dict[ir.Node, int] = {}
    for node in before.nodes:
        image = after.became.get(node)
        if not isinstance(node, ir.Dot) or not isinstance(image, ir.Dot) or image.inputs[0] is node.inputs[0]:
            continue
        differ = (node.positive != image.positive).reshape(
            node.groups, -1, node.positive.shape[1], math.prod(node.window)
        )
        count = int(differ.all(axis=(1, 3)).sum())
        if count:
            found[image.inputs[0]] = count
    return found


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.most_common() if n)


# What a node is.


def _kind(node: ir.Node) -> str:
    return type(node).__name__


def _row(node: ir.Node, inverted: int = 0) -> Row:
    notes = [*_notes(node), *([f"{inverted} inverted"] if inverted else [])]
    return Row(node.name, _kind(node), tuple(x.name for x in node.inputs), node.shape, ", ".join(notes))


def _fused_row(op: Fused) -> Row:
    first, *taken = _span(op)
    notes = [*_notes(first), *(f"then {_kind(node)} {', '.join(_notes(node))}".rstrip() for node in taken)]
    return Row(op.name, _kind(first), tuple(x.name for x in op.reads), op.value.shape, "; ".join(notes))


def _notes(node: ir.Node) -> list[str]:
    notes: list[str] = []
    if isinstance(node, ir.Window):
        value = getattr(node, "pad_value", None)
        notes += _window(node.window, node.stride, node.pad, getattr(node, "dilation", (1, 1)), value)
        groups = getattr(node, "groups", 1)
        notes += _groups(groups, node.inputs[0].shape[0])
        notes += _pool(getattr(node, "ceil", False), getattr(node, "exclude_pad", False))
    if getattr(node, "window_scale", None) is not None:
        notes.append("two levels of weights")
    if getattr(node, "bias", None) is not None and not isinstance(node, ir.Norm):
        notes.append("bias")
    if isinstance(node, (ir.BinaryConv, ir.Act)) and node.strict:
        notes.append("0 counts as negative")
    if isinstance(node, ir.Linear):
        notes.insert(0, f"{node.weight.shape[1]}->{node.weight.shape[0]}")
    elif isinstance(node, ir.Affine):
        notes.append(_affine(node))
    elif isinstance(node, ir.Norm):
        notes.append(f"batch norm, eps {node.eps:g}")
    elif isinstance(node, ir.Act):
        notes.insert(0, _act(node.kind, node.lo, node.hi, node.positive is not None))
    elif isinstance(node, ir.Sign):
        notes.append(_threshold(node.threshold))
    elif isinstance(node, (ir.Add, ir.Mul)):
        notes += [f"{x.name} per channel" for x in node.inputs if x.shape != node.shape]
    elif isinstance(node, ir.ChannelPad):
        notes.append(f"{node.before} before, {node.after} after")
    elif isinstance(node, ir.Concat):
        notes.append(" + ".join(str(x.shape[0]) for x in node.inputs))
    elif isinstance(node, (ir.Gather, ir.Bilinear)):
        notes.append(f"from {text.dims(node.inputs[0].shape)}")
        absent = isinstance(node, ir.Gather) and min(map(np.min, (node.channels, node.rows, node.columns))) < 0
        notes += [f"fills with {node.value:g}"] if isinstance(node, ir.Gather) and absent else []
    elif isinstance(node, ir.Softmax) and node.log:
        notes.append("logarithm")
    elif isinstance(node, ir.Unsupported):
        notes.append(node.reason)
    return notes


def _window(
    window: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    dilation: tuple[int, int],
    value: float | None,
) -> list[str]:
    def pair(sizes: tuple[int, int]) -> str:
        return str(sizes[0]) if sizes[0] == sizes[1] else text.dims(sizes)

    parts = [text.dims(window) + (f"/{pair(stride)}" if stride != (1, 1) else "")]
    if any(pad):
        parts.append(f"pads {pair(pad)}" + ("" if value is None else f" with {value:g}"))
    return parts + ([f"dilation {pair(dilation)}"] if dilation != (1, 1) else [])


def _groups(groups: int, channels: int) -> list[str]:
    return [] if groups == 1 else ["depthwise" if groups == channels else f"{groups} groups"]


def _pool(ceil: bool, exclude_pad: bool) -> list[str]:
    return ["ceil"] * ceil + ["padding not counted"] * exclude_pad


def _affine(node: ir.Affine) -> str:
    parts = ["scale"] * bool((node.scale != 1).any()) + ["offset"] * bool(node.offset.any())
    if not parts:
        return "changes nothing"
    alike = all((values == values[0]).all() for values in (node.scale, node.offset))
    return f"{', '.join(parts)} {'for all channels' if alike else 'per channel'}"


def _act(kind: str, lo: float, hi: float, two: bool = False) -> str:
    if kind == "clamp":
        return "ReLU" if (lo, hi) == (0, math.inf) else f"clamp {lo:g}..{hi:g}"
    if kind == "prelu":
        return "PReLU with two slopes" if two else "PReLU"
    return f"step {lo:g} | {hi:g}" if kind == "step" else kind


def _threshold(values: np.ndarray | None) -> str:
    if values is None:
        return "at 0"
    return f"at {values[0]:.3g}" if (values == values[0]).all() else "threshold per channel"


# The plan.


def _step(model: bnn.Model, op: bnn.Op, fused: Fused, computes: tuple[str, ...], lowered: Lowered | None) -> Step:
    writes = tuple(i for i in (op.out, op.bits) if i is not None)
    stored = [model.values[i] for i in writes]
    weight = None if op.weight is None else model.tensors[op.weight]
    bits = None if weight is None else _WEIGHT_BITS.get(weight.dtype)
    macs = 0
    if weight is not None and bits is not None:
        macs = math.prod(weight.shape) * (1 if op.kind == "linear" else stored[0].h * stored[0].w)
    return Step(
        name=op.name,
        kind=op.kind,
        reads=tuple(i for i in (op.input, op.residual) if i is not None),
        writes=writes,
        elements="+".join(value.kind for value in stored),
        shape=stored[0].shape,
        about=", ".join(_about(model, op, weight, stored[0])),
        then=", ".join(_then(model, op, fused, lowered)),
        weight_bits=bits,
        bytes=sum(model.tensors[i].array.nbytes for i in op.tensors),
        binary_macs=macs if op.kind == "bconv" else 0,
        real_macs=0 if op.kind == "bconv" else macs,
        computes=computes,
    )


def _about(model: bnn.Model, op: bnn.Op, weight: bnn.Tensor | None, stored: bnn.Value) -> Iterable[str]:
    source = model.values[op.input]
    if op.kind in ("bconv", "conv", "maxpool", "avgpool"):
        pads_with = op.pad_value if op.kind == "bconv" else None
        yield from _window(op.window, op.stride, op.pad, op.dilation, pads_with)
        yield from _pool(op.ceil, op.exclude_pad)
    if weight is not None and op.kind in ("bconv", "conv"):
        yield f"{source.c}->{stored.c}"
        yield from _groups(source.c // weight.shape[3], source.c)
        if op.scale is not None and len(model.tensors[op.scale].shape) == 2:
            yield "two levels of weights"
    elif op.kind == "linear" and weight is not None:
        yield f"{weight.shape[1]}->{weight.shape[0]}"
    elif op.kind == "channel_pad":
        yield f"{op.channels[0]} + {source.c} + {op.channels[1]}"
    elif op.kind == "concat" and op.residual is not None:
        yield f"{source.c} + {model.values[op.residual].c}"
    elif op.kind in ("gather", "bilinear"):
        yield f"from {text.dims(source.shape)}"


def _then(model: bnn.Model, op: bnn.Op, fused: Fused, lowered: Lowered | None) -> Iterable[str]:
    if op.scale is not None:
        yield "scale" if op.kind != "to_float" else "numbers of integers"
    if op.offset is not None and op.kind != "to_float":
        yield "offset"
    if op.residual is not None and op.kind not in _SECOND:
        pixel = model.values[op.residual].shape != model.values[op.input].shape and op.kind == "eltwise"
        yield "+ map per channel" if pixel else "+ map"
    if fused.act is not None:
        whole = lowered is None and model.numerics == "integer" and fused.act.kind in ("clamp", "step")
        yield _notes(fused.act)[0] + (" as {:g}..{:g}".format(*op.clamp) if whole else "")
    elif op.act == "clamp":
        yield _act(op.act, *op.clamp)
    if op.bits is not None:
        at = _threshold(None if op.threshold is None else model.tensors[op.threshold].array)
        yield f"sign {at}" if at.startswith("at") else f"sign by {at}"
    if lowered is not None and lowered.kind in ("i16", "i32") and lowered.fused.wants_map:
        yield f"1 is {lowered.steps:.6g} steps"


# For a terminal.


def amount(n: int) -> str:
    """A count in few characters, such as 41.2 M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= 0.9995 * size:  # which rounds to one of it
            return f"{n / size:.3g} {unit}" if n < 999.5 * size else f"{n // size} {unit}"
    return str(n)


def headline(e: Explanation) -> str:
    """One line on the whole network."""
    results = [e.values[i] for i in e.outputs]
    classes = f"{results[0].c} classes" if len(results) == 1 and results[0].shape[1:] == (1, 1) else None
    made = classes or "gives " + ", ".join(text.dims(value.shape) for value in results)
    binary, real = sum(s.binary_macs for s in e.steps), sum(s.real_macs for s in e.steps)
    return (
        f"{made}, input {text.dims(e.values[0].shape)}, numerics {e.numerics}, {len(e.steps)} ops, "
        f"{e.bytes / 1e6:.2f} MB, {amount(binary)} binary and {amount(real)} real MACs"
    )


def table(e: Explanation, verbose: bool = False) -> str:
    """What each pass did, and the plan; `verbose`: the rows of all stages, too."""
    lines = [text.visible(e.name, 60), *_wrapped(headline(e)), ""]
    count = 0
    for stage in e.stages:
        number = f"{count} nodes -> {len(stage.rows)}" if count else f"{len(stage.rows)} nodes"
        number += " ops" if stage.name == "fuse" else ""
        kinds = _counts(Counter(row.kind for row in stage.rows))
        lines += _wrapped(f"{stage.name}: {number}: {stage.changes or kinds}")
        if verbose:
            lines += [*_wrapped(stage.says, "  "), "", _rows(stage), ""]
        count = len(stage.rows)
    return _cut("\n".join([*lines, *([] if verbose else [""]), _plan(e)]))


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=indent or "    ")


def _rows(stage: Stage) -> str:
    rows = [
        (
            text.visible(row.name, 30),
            row.kind,
            text.dims(row.shape),
            text.visible(", ".join(row.reads), 34),
            text.visible(row.notes, 200),
        )
        for row in stage.rows
    ]
    return text.table(("node", "kind", "shape", "reads", "notes"), rows)


def _plan(e: Explanation) -> str:
    """Two lines for each op: what it is; what it does after its core, and which recorded nodes it computes."""
    writer = {value: f"#{i}" for i, step in enumerate(e.steps) for value in step.writes}
    rows = []
    for i, step in enumerate(e.steps):
        reads = f" {_SECOND.get(step.kind, '+')} ".join(writer.get(value, "image") for value in step.reads)
        macs = amount(step.macs) if step.macs else "-"
        rows.append(
            (f"#{i}", text.visible(step.name, 24), step.kind, reads, text.dims(step.shape), step.elements)
            + (str(step.weight_bits or "-"), f"{step.bytes:,}", macs, step.about)
        )
    head = ("", "op", "kind", "reads", "output", "stores", "bits", "bytes", "MACs", "window and channels")
    top, rule, *body = text.table(head, rows, right=(6, 7, 8)).split("\n")
    lines, start = [top, rule[:WIDTH]], top.index(head[-1])
    for line, step in zip(body, e.steps):
        about, *more = textwrap.wrap(step.about, max(WIDTH - start, 20)) or [""]
        lines += [(line[:start] + about).rstrip(), *(" " * start + part for part in more)]
        names = text.visible(f"= {', '.join(step.computes)}", 200) if step.computes else ""
        lines += _wrapped("  ".join(filter(None, (step.then, names))), "     ")
    return "\n".join(lines)


def _cut(lines: str) -> str:
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 2]}.." for line in lines.split("\n"))
