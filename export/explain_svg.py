"""The picture of an explanation: one SVG without scripts or fonts, for light and dark screens.

The plan runs from top to bottom, in several columns if it is long. A map goes straight down to the next op. Other maps
take lanes beside the boxes: residuals and other second inputs at the right, first inputs at the left. A column begins
with stubs that name the ops of earlier columns that it reads. Names come from foreign files, so `_Canvas` cuts and
escapes all text.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.explain import Explanation, Step, amount, headline
from ovsw.util.text import visible

BOX, GAP, LANE, MARGIN = 430, 46, 13, 36  # widths of a box and a lane, height between boxes
TALLEST = 4000  # of a picture that can be split
_BARS = 126  # width of the bars in a box
_WIDE, _BESIDE = BOX - 36, BOX - 36 - _BARS  # of text in a box, below the bars and beside them

_FAMILIES = {  # of nodes and ops: name in the legend, colour
    "binary": ("binary convolution", "#4763e4"),
    "real": ("real convolution, linear", "#e07a2d"),
    "pool": ("pool", "#2a9d72"),
    "move": ("moves, joins", "#9061c9"),
    "each": ("element by element", "#cf4f7d"),
    "end": ("image, result", "#77808c"),
}
_FAMILY = {name: node.family for node in ir.NODES for name in (node.__name__, node.op)}
_TITLES = {
    "bconv": "binary conv",
    "conv": "conv",
    "channel_pad": "channel pad",
    "eltwise": "element by element",
    "mul": "product",
    "log_softmax": "log softmax",
    "to_float": "to float",
}
_MAP_COLOURS = {"bits": "#4763e4", "i16": "#119da4", "i32": "#7b5ea7", "u8": "#e9a820", "f32": "#d1495b"}
_CLASSES = {**{family: colour for family, (_, colour) in _FAMILIES.items()}, **_MAP_COLOURS}

_STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #20242a; }
.paper { fill: #fbfbf9; } .block { fill: #1d2733; fill-opacity: .045; } .track { fill: #1d2733; fill-opacity: .09; }
.grey { fill: #68717d; } .strong { font-weight: 650; } .stub { fill: #1d2733; fill-opacity: .06; }
.box { fill-opacity: .11; stroke-opacity: .55; stroke-width: 1.2; } .full { stroke: none; }
.edge { fill: none; stroke-linecap: round; stroke-linejoin: round; stroke-width: 3; } .straight { stroke-width: 4; }
"""
_DARK = """
text { fill: #e7e9ec; } .paper { fill: #16191d; } .grey { fill: #98a1ad; }
.block, .track, .stub { fill: #e9eef5; } .block { fill-opacity: .05; } .track { fill-opacity: .13; }
.box { fill-opacity: .2; stroke-opacity: .75; }
"""


def svg(e: Explanation) -> str:
    """The picture; the same explanation gives the same text."""
    canvas, columns = _Canvas(), _columns(_items(e))
    plan = sum(column.width for column in columns)
    width = max(1010.0, 2 * MARGIN + plan)
    top, x = _head(canvas, e, width - 2 * MARGIN), (width - plan) / 2
    for column in columns:
        column.place(x, top)
        x += column.width
        _draw(canvas, e, column)
    height = max(column.items[-1].bottom for column in columns) + MARGIN
    colours = "\n".join(f".{name} {{ fill: {colour}; stroke: {colour}; }}" for name, colour in _CLASSES.items())
    size = f'width="{width:g}" height="{height:g}"'
    head = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(visible(e.name, 60))}</title>",
        f"<style>\n{colours}{_STYLE}@media (prefers-color-scheme: dark) {{{_DARK}}}</style>",
        f'<rect class="paper" {size}/>',
    ]
    return "\n".join([*head, *canvas.parts, "</svg>\n"])


# Text and shapes.


class _Canvas:
    """Collects shapes and text; `kind` are classes of the style sheet."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, size: float, room: float, kind: str = "", end: str = "") -> float:
        """One line, cut to `room`; returns its width. `end` is the text's anchor, if that is not its start."""
        words = _fitted(words.replace("->", "\N{RIGHTWARDS ARROW}"), size, room, "strong" in kind)
        more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{end}"' if end else "")
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{more}>{escape(words)}</text>')
        return _width(words, size, "strong" in kind)

    def rect(self, x: float, y: float, w: float, h: float, r: float, *kinds: str) -> None:
        """One rectangle of each kind, one over the other."""
        place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}"'
        self.parts += [f'<rect {place} class="{kind}"/>' for kind in kinds]

    def path(self, d: str, kind: str) -> None:
        self.parts.append(f'<path d="{d}" class="{kind}"/>')

    @contextlib.contextmanager
    def group(self, title: str, **data: str | int) -> Iterator[None]:
        more = "".join(f" data-{name}={quoteattr(str(value))}" for name, value in data.items())
        self.parts.append(f"<g{more}><title>{escape(title)}</title>")
        yield
        self.parts.append("</g>")


def _width(words: str, size: float, strong: bool = False) -> float:
    """About the width of a line in a wide font: what is cut to it fits in any other font too."""

    def em(c: str) -> float:
        if c in "iljtfrI.,:;|!'()[]/ -":
            return 0.39
        return 1.0 if c in "mwMW@%" or ord(c) > 0x2E80 else 0.66 if c.islower() or c.isdigit() else 0.84

    return sum(map(em, words)) * size * (1.1 if strong else 1.0)


def _fitted(words: str, size: float, room: float, strong: bool) -> str:
    """Printable characters that fit into `room`, cut in the middle."""
    whole = words = visible(words, 400)
    keep = len(whole)
    while keep > 0 and _width(words, size, strong) > room:
        keep -= 1
        words = f"{whole[: keep - keep // 2]}\N{HORIZONTAL ELLIPSIS}{whole[len(whole) - keep // 2 :]}"
    return words


def _wrapped(words: str, size: float, room: float, first: float | None = None) -> list[str]:
    """Lines that fit, broken after commas; the first one may have less room."""
    lines: list[str] = []
    for part in words.split(", "):
        joined = f"{lines[-1]}, {part}" if lines else part
        if not lines or _width(joined, size) <= (first or room if len(lines) == 1 else room):
            lines[-1:] = [joined]
        else:
            lines.append(part)
    return lines


# Columns of ops, and the lanes beside them.


@dataclass
class _Item:
    """An op, or without a `step` the image, a result or a stub; `reads` and `writes` are values by their numbers."""

    number: int
    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    step: Step | None = None
    is_stub: bool = False
    x: float = 0.0
    y: float = 0.0

    def __post_init__(self) -> None:
        self.lines: list[str] = []  # what the op does; the first line stands beside the bars
        self.height, self.below, self.inset = 30.0, 32.0, 0.0 if self.is_stub else 90.0
        if self.step is not None:
            core = f"{_TITLES.get(self.step.kind, self.step.kind)} {self.step.about}".strip()
            self.lines = _wrapped(core, 11, _WIDE, _BESIDE) + [s for s in _wrapped(self.step.then, 11, _WIDE) if s]
            self.height = 30.0 + 16 * (len(self.lines) + bool(self.step.computes))
            self.below, self.inset = float(GAP), 0.0
        self.pitch = self.height + self.below

    @property
    def middle(self) -> float:
        return self.x + BOX / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def module(self) -> str:
        """The module that an op belongs to, by its name."""
        return "" if self.step is None else re.sub(r"(^|[./])[^./]*$", "", self.name)


def _items(e: Explanation) -> list[_Item]:
    """The image, the ops and the results, in the order of the plan."""
    items = [_Item(0, "image", writes=(0,))]
    items += [_Item(i, step.name, step.reads, step.writes, step) for i, step in enumerate(e.steps, 1)]
    for i, value in enumerate(e.outputs, 1):
        items.append(_Item(len(items), "result" if len(e.outputs) == 1 else f"result {i}", reads=(value,)))
    return items


@dataclass
class _Edge:
    """The `role`-th input of an item, which comes from an item or stub of the same column.

    Its `lane` is at the right (1) or left (-1) of the boxes; a map without one goes straight down.
    """

    source: _Item
    target: _Item
    value: int
    role: int
    lane: int | None = None

    @property
    def side(self) -> int:
        return 1 if self.role else -1


class _Column:
    def __init__(self, items: list[_Item]) -> None:
        self.items = items
        self.edges: list[_Edge] = []
        self.ends: dict[int, list[int]] = {-1: [], 1: []}  # of the lanes of each side, where the last map ends
        writer = {value: i for i, item in enumerate(items) for value in item.writes}
        in_lanes: dict[tuple[int, int], list[tuple[int, _Edge]]] = defaultdict(list)
        for i, target in enumerate(items):
            edges = [_Edge(items[writer[value]], target, value, role) for role, value in enumerate(target.reads)]
            straight = next((edge for edge in edges if writer[edge.value] == i - 1), None)
            self.edges += edges
            for edge in edges:
                if edge is not straight:
                    in_lanes[edge.side, edge.value].append((i, edge))
        for (side, value), edges_to in in_lanes.items():
            ends = self.ends[side]
            lane = next((n for n, end in enumerate(ends) if end <= writer[value]), len(ends))
            ends[lane : lane + 1] = [edges_to[-1][0]]
            for _, edge in edges_to:
                edge.lane = lane

    def lane(self, side: int, number: int) -> float:
        """How far a lane is from the boxes; lanes are nearer to each other where there are many."""
        return 30 + min(LANE, 240 / max(len(self.ends[side]), 1)) * number

    def room(self, side: int) -> float:
        return 22 + self.lane(side, len(self.ends[side]))

    @property
    def width(self) -> float:
        return self.room(-1) + BOX + self.room(1)

    def place(self, x: float, y: float) -> None:
        for item in self.items:
            item.x, item.y = x + self.room(-1), y
            y += item.pitch


def _columns(items: list[_Item]) -> list[_Column]:
    """As many columns of about the same height as make the picture a little taller than wide, and not too tall."""
    total = sum(item.pitch for item in items)
    count = max(round(math.sqrt(total / 650)), math.ceil(total / (0.7 * TALLEST)), 1)
    parts: dict[int, list[_Item]] = defaultdict(list)
    so_far = 0.0
    for item in items:
        parts[min(int(so_far / total * count), count - 1)].append(item)
        so_far += item.pitch
    columns: list[_Column] = []
    before: list[_Item] = []
    for part in parts.values():
        read = {value for item in part for value in item.reads}
        stubs = [replace(item, reads=(), step=None, is_stub=True) for item in before if read & set(item.writes)]
        columns.append(_Column(stubs + part))
        before += part
    return columns


# The head: what it is, how it came about, what colours mean.


def _head(canvas: _Canvas, e: Explanation, room: float) -> float:
    """Returns where the columns begin."""
    canvas.text(MARGIN, 62, e.name, 30, room, "strong")
    canvas.text(MARGIN, 88, headline(e).replace(", ", " \N{MIDDLE DOT} "), 13.5, room, "grey")
    return _legend(canvas, e, _stages(canvas, e, room) + 14, room) + 40


def _stages(canvas: _Canvas, e: Explanation, room: float) -> float:
    """A bar of nodes for each stage, and what the pass changed. Returns where the next line goes."""
    y, longest, most = 124.0, 330.0, max(len(stage.rows) for stage in e.stages)
    for stage in e.stages:
        with canvas.group(f"{stage.name}: {stage.says}"):
            canvas.text(MARGIN, y, stage.name, 13, 84, "strong")
            families = Counter(_FAMILY.get(row.kind, "each") for row in stage.rows)
            x = MARGIN + 92.0
            for family in filter(families.get, _FAMILIES):
                part = longest * families[family] / most
                canvas.rect(x, y - 11, max(part - 1, 0.5), 14, 1.5, f"full {family}")
                x += part
            unit = "ops" if stage.name == "fuse" else "nodes"
            x += 20 + canvas.text(x + 8, y, f"{len(stage.rows)} {unit}", 13, 120, "strong")
            start = max(x, MARGIN + 92 + longest + 100)
            lines = _wrapped(stage.changes or stage.says, 12, room + MARGIN - start)
            for i, line in enumerate(lines):
                canvas.text(start, y + 15 * i, line, 12, room + MARGIN - start, "grey")
        y += 7 + 15 * len(lines)
    return y


def _legend(canvas: _Canvas, e: Explanation, y: float, room: float) -> float:
    shown = {_FAMILY.get(row.kind, "each") for stage in e.stages for row in stage.rows}
    shown |= {value.kind for value in e.values}
    names = {**{family: name for family, (name, _) in _FAMILIES.items()}, **{k: f"{k} map" for k in _MAP_COLOURS}}
    x = float(MARGIN)
    for kind in filter(shown.__contains__, _CLASSES):
        wide = 46 + _width(names[kind], 12)
        if x + wide > MARGIN + room:
            x, y = float(MARGIN), y + 22
        if kind in _FAMILIES:
            canvas.rect(x, y - 10, 20, 12, 3, f"box {kind}")
        else:
            canvas.path(f"M{x:g} {y - 4:g}h20", f"edge straight {kind}")
        canvas.text(x + 27, y, names[kind], 12, 300, "grey")
        x += wide
    return y


# The network.


def _draw(canvas: _Canvas, e: Explanation, column: _Column) -> None:
    for module, group in groupby(column.items, lambda item: item.module):
        items = list(group)
        if module and len(items) > 1:  # a shade behind ops of the same module
            x, y = items[0].x - 12, items[0].y - 19
            canvas.rect(x, y, BOX + 24, items[-1].bottom + 11 - y, 10, "block")
            canvas.text(x + 10, y + 13, module, 10.5, BOX / 2 - 30, "grey")
    for edge in column.edges:
        _edge(canvas, e.values[edge.value], column, edge)
    straight = {edge.value for edge in column.edges if edge.lane is None}
    labels = {(edge.value, 0 if edge.value in straight else edge.side): edge.source for edge in column.edges}
    for (value, side), source in labels.items():  # beside the line, or below the corner where it leaves its op
        x = {0: source.middle + 10, 1: source.x + BOX - 2, -1: source.x + 2}[side]
        canvas.text(x, source.bottom + 15, _map(e.values[value]), 10, 101, "grey", "end" if side > 0 else "")
    for item in column.items:
        if item.step is None:
            _pill(canvas, e, item)
        else:
            _box(canvas, e, item, item.step)


def _edge(canvas: _Canvas, value: bnn.Value, column: _Column, edge: _Edge) -> None:
    source, target, side, x = edge.source, edge.target, edge.side, edge.source.middle
    if edge.lane is None:
        line, head = f"M{x:g} {source.bottom:g}V{target.y - 7:g}", f"M{x - 6:g} {target.y - 9:g}h12l-6 9z"
    else:
        boxes = source.x + (BOX if side > 0 else 0)
        start, end = (boxes - side * item.inset for item in (source, target))
        y0 = source.bottom - (10 if value.kind == "bits" else 16)
        y1 = target.y + min(18.0, target.height / 2)
        line = f"M{start:g} {y0:g}H{boxes + side * column.lane(side, edge.lane):g}V{y1:g}H{end + side * 8:g}"
        head = f"M{end + side * 9:g} {y1 - 6:g}v12l{-9 * side:g} -6z"
    title = f"{_map(value)}: {visible(source.name, 200)} to {visible(target.name, 200)}"
    with canvas.group(title, edge=f"{source.number} {target.number} {edge.role}"):
        canvas.path(line, f"edge straight {value.kind}" if edge.lane is None else f"edge {value.kind}")
        canvas.path(head, f"full {value.kind}")


def _box(canvas: _Canvas, e: Explanation, item: _Item, step: Step) -> None:
    x, y, family = item.x, item.y, _FAMILY.get(step.kind, "each")
    macs = f"{amount(step.binary_macs)} binary and {amount(step.real_macs)} real MACs, {step.bytes:,} bytes"
    computes = f"computes {visible(', '.join(step.computes), 1000)}" if step.computes else ""
    title = (f"{visible(step.name, 200)}: {step.kind} {step.about}", step.then, macs, computes)
    with canvas.group("\n".join(filter(None, title)), op=item.number - 1):
        canvas.rect(x, y, BOX, item.height, 9, "paper", f"box {family}")
        canvas.rect(x, y, 6, item.height, 3, f"full {family}")
        canvas.text(x + 18, y + 20, step.name, 13.5, _BESIDE, "strong")
        for i, line in enumerate(item.lines):
            canvas.text(x + 18, y + 37 + 16 * i, line, 11, _WIDE if i else _BESIDE)
        if step.computes:
            canvas.text(x + 18, item.bottom - 9, " \N{MIDDLE DOT} ".join(step.computes), 10.5, _WIDE, "grey")
        at, left = y + 11, x + BOX - _BARS - 10
        for unit, each in (("MACs", [s.macs for s in e.steps]), ("bytes", [s.bytes for s in e.steps])):
            part = each[item.number - 1]
            if part:  # a bar beside the largest one's length, and the share of the sum
                share = part / sum(each)
                canvas.rect(left, at, 50, 7, 3.5, "track")
                canvas.rect(left, at, max(50 * part / max(each), 3), 7, 3.5, f"full {family}")
                words = f"{share:.1%} {unit}" if share >= 0.0005 else f"<0.1% {unit}"
                canvas.text(left + 56, at + 7.5, words, 9.5, _BARS - 50, "grey")
                at += 16


def _pill(canvas: _Canvas, e: Explanation, item: _Item) -> None:
    """The image, a result, or a stub."""
    shape = (item.x + item.inset, item.y, BOX - 2 * item.inset, item.height, item.height / 2)
    if item.is_stub:
        canvas.rect(*shape, "paper", "stub")
        words = f"from {'the image' if item.number == 0 else item.name}"
        canvas.text(item.middle, item.y + 19.5, words, 11.5, BOX - 40, "grey", "middle")
        return
    words = f"{item.name}: {_map(e.values[(item.writes or item.reads)[0]])}"
    with canvas.group(words, end=item.number):
        canvas.rect(*shape, "paper", "box end")
        canvas.text(item.middle, item.y + 19.5, words, 12.5, shape[2] - 30, "strong", "middle")


def _map(value: bnn.Value) -> str:
    return f"{value.kind} {value.c}\N{MULTIPLICATION SIGN}{value.h}\N{MULTIPLICATION SIGN}{value.w}"
