"""How an export changes a network, for people: the graph as recorded and after each pass, and the plan in the file.

`explain` collects it, `table` prints it for a terminal, `explain_svg.svg` draws it. The passes are run again one by
one, so only the graph and the model are needed.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.ops.act import act_note
from ovsw.export.ops.binary import threshold_note
from ovsw.export.ops.fused import Fused, Lowered
from ovsw.export.passes.fold import fold
from ovsw.export.passes.fuse import fuse
from ovsw.export.passes.legalize import legalize
from ovsw.export.passes.sink import sink
from ovsw.util import text

WIDTH = 120  # columns of a terminal
_WEIGHT_BITS = {"bits": 1, "i8": 8, "i16": 16, "f32": 32}  # of weights; positions, in i32, are none
_ROOMS = {room.op: room for room in ir.NODES}
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
    """How a front end's `graph` became `model`. With `lowered`, steps say what the integers stand for."""
    passes = _Passes(graph, model.numerics)
    if [op.name for op in passes.ops] != [op.name for op in model.ops]:
        raise ValueError(f"the model's {len(model.ops)} ops are not the {len(passes.ops)} of this graph")
    names = [row.name for row in passes.stages[-1].rows]
    scales: list[Lowered | None] = list(lowered) if lowered else [None] * len(names)
    steps = (_step(model, *parts) for parts in zip(names, model.ops, passes.ops, passes.computes(), scales))
    return Explanation(
        name=str(model.metadata.get("arch", "network")),
        numerics=model.numerics,
        bytes=len(bnn.to_bytes(model)),
        values=tuple(model.values),
        outputs=tuple(model.outputs),
        stages=tuple(passes.stages),
        steps=tuple(steps),
    )


def stages(graph: ir.Graph, numerics: str) -> list[Stage]:
    """The graph as recorded and after each pass."""
    return _Passes(graph, numerics).stages


class _Passes:
    """The passes, one after the other, and which nodes the recorded ones became."""

    def __init__(self, recorded: ir.Graph, numerics: str) -> None:
        self.recorded = recorded
        self.stages = [Stage("recorded", _SAYS["recorded"], "", _rows(recorded.nodes, {}))]
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
        self.stages.append(Stage("fuse", _SAYS["fuse"], changes, _fused_rows(self.ops)))

    def _after(self, name: str, before: ir.Graph, run: Callable[[ir.Graph], ir.Graph]) -> ir.Graph:
        after = run(ir.Graph(before.nodes, outputs=before.outputs))  # which then says what became of these nodes
        inverted = _inverted(before, after)
        self.stages.append(Stage(name, _SAYS[name], _changes(before, after, inverted), _rows(after.nodes, inverted)))
        there = set(after.nodes)
        now = {first: after.became.get(last) for first, last in self.became.items()}
        self.became = {first: node for first, node in now.items() if node in there and node is not None}
        return after

    def computes(self) -> list[tuple[str, ...]]:
        """For each op, the names of the recorded nodes that it computes."""
        owner = {node: op for op in reversed(self.ops) for node in _span(op)}
        by_name = {node.name: op for node, op in owner.items()}
        writer = {op.sign: op for op in self.ops if op.sign is not None}
        often = Counter(node.name for node in self.recorded.nodes)
        users = self.recorded.users()
        computed_by: dict[ir.Node, Fused] = {}
        for node in reversed(self.recorded.nodes):
            op = owner.get(self.became[node]) if node in self.became else None
            if op is None and often[node.name] == 1 and not isinstance(node, ir.Input):
                op = by_name.get(node.name)
            if op is None and not isinstance(node, ir.Input):  # no map holds its value: it is part of its reader
                reader = next((user for user in users[node] if user in computed_by), None)
                op = computed_by.get(reader) if reader is not None else None
                if op is not None and isinstance(reader, ir.BinaryConv):
                    op = writer.get(op.source, op)  # type: ignore[call-overload]
            if op is not None:
                computed_by[node] = op
        names: dict[Fused, list[str]] = {op: [] for op in self.ops}
        for node, row in zip(self.recorded.nodes, self.stages[0].rows):
            if node in computed_by:
                names[computed_by[node]].append(row.name)
        return [tuple(names[op]) for op in self.ops]


def _span(op: Fused) -> list[ir.Node]:
    """The nodes of the legalized graph that an op computes; its core, if it has one, comes first."""
    add = op.summed if op.residual is not None else None
    nodes = dict.fromkeys(node for node in (op.core, op.affine, add, op.act, op.sign) if node is not None)
    return list(nodes)


# What changed.


def _changes(before: ir.Graph, after: ir.Graph, inverted: dict[ir.Node, int]) -> str:
    there = set(after.nodes)
    left: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)  # nodes by name and kind that are not matched yet
    for node in reversed(after.nodes):
        left[node.name, _kind(node)].append(node)

    def take(node: ir.Node) -> ir.Node:
        left[node.name, _kind(node)].remove(node)
        return node

    def image(node: ir.Node) -> ir.Node | None:
        """What a node has become: the node with its value, if of its kind; else one with its name, or its value."""
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
    """For each sign, the number of channels that this pass inverted, as the weights that read them show."""
    counts: dict[ir.Node, int] = {}
    for node in before.nodes:
        image = after.became.get(node)
        if not isinstance(node, ir.Dot) or not isinstance(image, ir.Dot) or image.inputs[0] is node.inputs[0]:
            continue
        differ = (node.positive != image.positive).reshape(
            node.groups, -1, node.positive.shape[1], math.prod(node.window)
        )
        count = int(differ.all(axis=(1, 3)).sum())
        if count:
            counts[image.inputs[0]] = count
    return counts


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.most_common() if n)


# What a node is.


def _kind(node: ir.Node) -> str:
    return type(node).__name__


def _unique(names: Iterable[str]) -> list[str]:
    """The names in their order, with a number behind those that were there before."""
    taken: Counter[str] = Counter()
    unique: list[str] = []
    for name in names:
        taken[name] += 1
        unique.append(name if taken[name] == 1 else f"{name}({taken[name]})")
    return unique


def _rows(nodes: Sequence[ir.Node], inverted: dict[ir.Node, int]) -> tuple[Row, ...]:
    names = dict(zip(nodes, _unique(node.name for node in nodes)))

    def notes(node: ir.Node) -> str:
        return ", ".join([*node.notes(), *([f"{inverted[node]} inverted"] if node in inverted else [])])

    return tuple(
        Row(name, _kind(node), tuple(names[x] for x in node.inputs), node.shape, notes(node))
        for node, name in names.items()
    )


def _fused_rows(ops: Sequence[Fused]) -> tuple[Row, ...]:
    names = dict(zip(ops, _unique(op.name for op in ops)))
    writer = {node: name for op, name in names.items() for node in (op.value, op.sign)}
    rows = []
    for op, name in names.items():
        first, *taken = _span(op)
        notes = [*first.notes(), *(f"then {_kind(node)} {', '.join(node.notes())}".rstrip() for node in taken)]
        reads = tuple(writer.get(node, node.name) for node in op.reads)
        rows.append(Row(name, _kind(first), reads, op.value.shape, "; ".join(notes)))
    return tuple(rows)


# The plan.


def _step(
    model: bnn.Model, name: str, op: bnn.Op, fused: Fused, computes: tuple[str, ...], lowered: Lowered | None
) -> Step:
    writes = tuple(i for i in (op.out, op.bits) if i is not None)
    stored = [model.values[i] for i in writes]
    weight = None if op.weight is None else model.tensors[op.weight]
    bits = None if weight is None else _WEIGHT_BITS.get(weight.dtype)
    macs = 0
    if weight is not None and bits is not None:
        macs = math.prod(weight.shape) * (1 if op.kind == "linear" else stored[0].h * stored[0].w)
    return Step(
        name=name,
        kind=op.kind,
        reads=tuple(i for i in (op.input, op.residual) if i is not None),
        writes=writes,
        elements="+".join(value.kind for value in stored),
        shape=stored[0].shape,
        about=", ".join(_ROOMS.get(op.kind, ir.Node).about(model, op)),
        then=", ".join(_then(model, op, fused, lowered)),
        weight_bits=bits,
        bytes=sum(model.tensors[i].array.nbytes for i in op.tensors),
        binary_macs=macs if op.kind == "bconv" else 0,
        real_macs=0 if op.kind == "bconv" else macs,
        computes=computes,
    )


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
        yield fused.act.notes()[0] + (" as {:g}..{:g}".format(*op.clamp) if whole else "")
    elif op.act == "clamp":
        yield act_note(op.act, *op.clamp)
    if op.bits is not None:
        at = threshold_note(None if op.threshold is None else model.tensors[op.threshold].array)
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
    result = classes or "gives " + ", ".join(text.dims(value.shape) for value in results)
    binary, real = sum(s.binary_macs for s in e.steps), sum(s.real_macs for s in e.steps)
    return (
        f"{result}, input {text.dims(e.values[0].shape)}, numerics {e.numerics}, {len(e.steps)} ops, "
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
            lines += [*_wrapped(stage.says, "  "), "", _stage_table(stage), ""]
        count = len(stage.rows)
    return _cut("\n".join([*lines, *([] if verbose else [""]), _plan(e)]))


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=indent or "    ")


def _stage_table(stage: Stage) -> str:
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
