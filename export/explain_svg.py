"""The picture of an explanation: one SVG without scripts or fonts of its own, for light and dark screens.

The plan runs from top to bottom, in several columns if it is long. What the next op reads goes straight down, other
maps along lanes at the sides: residuals and other second maps at the right, first ones at the left. What a column reads
from an earlier one starts there at a stub with the name of its op. Names come from foreign files: all text goes through
`_Canvas`, which cuts and escapes it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from ovsw import format as bnn
from ovsw.export.explain import Explanation, Step, amount, headline
from ovsw.util.text import visible

BOX, GAP, LANE, MARGIN = 430, 46, 13, 36  # widths of a box and a lane, height between boxes
TALLEST = 4000  # of a picture that can be split
_SHAPE = 1.35  # height to width that looks well
_STUB = 30  # height of one, of the image and of results
_BARS = 126  # width of the bars in a box
_WIDE, _BESIDE = BOX - 36, BOX - 36 - _BARS  # of text in a box, below the bars and beside them

_LOOKS = {  # class of an op: what it is called, its colour
    "binary": ("binary convolution", "#4763e4"),
    "real": ("real convolution, linear", "#e07a2d"),
    "pool": ("pool", "#2a9d72"),
    "move": ("moves, joins", "#9061c9"),
    "each": ("element by element", "#cf4f7d"),
    "end": ("image, result", "#77808c"),
}
_CLASS = {
    **dict.fromkeys(("bconv", "Dot", "BinaryConv", "Sign"), "binary"),
    **dict.fromkeys(("conv", "linear", "Conv", "Linear"), "real"),
    **dict.fromkeys(("maxpool", "avgpool", "MaxPool", "AvgPool"), "pool"),
    **dict.fromkeys(("channel_pad", "concat", "gather", "bilinear"), "move"),
    **dict.fromkeys(("ChannelPad", "Concat", "Gather", "Bilinear", "Flatten"), "move"),
    "Input": "end",
}  # all others work element by element
_TITLES = {
    "bconv": "binary conv",
    "conv": "conv",
    "channel_pad": "channel pad",
    "eltwise": "element by element",
    "mul": "product",
    "log_softmax": "log softmax",
    "to_float": "to float",
}
_MAPS = {"bits": "#4763e4", "i16": "#119da4", "i32": "#7b5ea7", "u8": "#e9a820", "f32": "#d1495b"}

_STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #20242a; }
.paper { fill: #fbfbf9; } .block { fill: #1d2733; fill-opacity: .045; } .track { fill: #1d2733; fill-opacity: .09; }
.grey { fill: #68717d; } .strong { font-weight: 650; } .stub { fill: #1d2733; fill-opacity: .06; }
.box { fill-opacity: .11; stroke-opacity: .55; stroke-width: 1.2; } .edge { fill: none; stroke-linecap: round; }
"""
_DARK = """
text { fill: #e7e9ec; } .paper { fill: #16191d; } .grey { fill: #98a1ad; }
.block, .track, .stub { fill: #e9eef5; } .block { fill-opacity: .05; } .track { fill-opacity: .13; }
.box { fill-opacity: .2; stroke-opacity: .75; }
"""


def svg(e: Explanation) -> str:
    """The picture; the same explanation gives the same text."""
    canvas = _Canvas()
    columns = _columns(_items(e))
    head = _Head(e)
    width = max(head.least, 2 * MARGIN + sum(column.width for column in columns))
    top = head.draw(canvas, width)
    x = MARGIN + max(0.0, (width - 2 * MARGIN - sum(column.width for column in columns)) / 2)
    for column in columns:
        column.place(x, top)
        x += column.width
    height = max(column.bottom for column in columns) + MARGIN
    _Drawing(canvas, e, columns).draw()
    return canvas.document(width, height, visible(e.name, 60))


# Text and shapes.


class _Canvas:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, size: float, room: float, classes: str = "", anchor: str = "start"
    ) -> float:
        """One line, cut to `room`; gives its width."""
        words = fitted(words.replace("->", "\N{RIGHTWARDS ARROW}"), size, room, "strong" in classes)
        style = f' class="{classes}"' if classes else ""
        end = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{style}{end}>{escape(words)}</text>')
        return width_of(words, size, "strong" in classes)

    def rect(self, x: float, y: float, w: float, h: float, r: float, more: str) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}" {more}/>')

    def path(self, d: str, more: str) -> None:
        self.parts.append(f'<path d="{d}" {more}/>')

    def open(self, about: str, **attributes: str | int) -> None:
        more = "".join(f" {name.replace('_', '-')}={quoteattr(str(value))}" for name, value in attributes.items())
        self.parts.append(f"<g{more}><title>{escape(about)}</title>")

    def close(self) -> None:
        self.parts.append("</g>")

    def document(self, width: float, height: float, title: str) -> str:
        style = f"{_STYLE}@media (prefers-color-scheme: dark) {{{_DARK}}}\n"
        return "\n".join(
            [
                '<?xml version="1.0" encoding="UTF-8"?>',
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" role="img">',
                f"<title>{escape(title)}</title><style>{style}</style>",
                f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def width_of(words: str, size: float, strong: bool = False) -> float:
    """About the width of a line in a wide font: what is cut to it does not run over in any."""

    def em(c: str) -> float:
        if c in "iljtfrI.,:;|!'()[]/ -":
            return 0.39
        if c in "mwMW@%" or ord(c) > 0x2E80:
            return 1.0
        if not c.isalnum():
            return 0.84
        return 0.72 if c.isupper() else 0.635

    return sum(map(em, words)) * size * (1.1 if strong else 1.0)


def fitted(words: str, size: float, room: float, strong: bool = False) -> str:
    """Printable characters that fit into `room`, cut in the middle."""
    words = visible(words, 400)
    if width_of(words, size, strong) <= room:
        return words
    keep = len(words) - 1
    while keep > 0:
        tail = keep // 2
        cut = f"{words[: keep - tail]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - tail :]}"
        if width_of(cut, size, strong) <= room:
            return cut
        keep -= 1
    return "\N{HORIZONTAL ELLIPSIS}"


def wrapped(words: str, size: float, room: float, first: float | None = None) -> list[str]:
    """Lines that fit, broken after commas; the first one may have less room."""
    lines: list[str] = []
    for part in words.split(", "):
        joined = f"{lines[-1]}, {part}" if lines else part
        if not lines or width_of(joined, size) <= (first or room if len(lines) == 1 else room):
            lines[-1:] = [joined]
        else:
            lines.append(part)
    return lines


# What stands in the columns.


@dataclass
class _Item:
    """An op, the image, a result, or a stub of an item of an earlier column (`of`); values by their numbers."""

    number: int
    name: str
    look: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    step: Step | None = None
    of: int | None = None
    x: float = 0.0
    y: float = 0.0

    @property
    def about(self) -> list[str]:
        """What the op does, in lines; the first one stands beside the bars."""
        assert self.step is not None
        core = wrapped(f"{_TITLES.get(self.step.kind, self.step.kind)} {self.step.about}".strip(), 11, _WIDE, _BESIDE)
        return core + (wrapped(self.step.then, 11, _WIDE) if self.step.then else [])

    @property
    def computes(self) -> str:
        return "" if self.step is None else " \N{MIDDLE DOT} ".join(self.step.computes)

    @property
    def height(self) -> float:
        return _STUB if self.step is None else 30.0 + 16 * (len(self.about) + bool(self.computes))

    @property
    def below(self) -> float:
        """How far it is to the next item."""
        return GAP if self.step is not None else 32.0

    @property
    def inset(self) -> float:
        """How much narrower than a box it is at each side."""
        return 90.0 if self.step is None and self.of is None else 0.0

    @property
    def middle(self) -> float:
        return self.x + BOX / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


def _items(e: Explanation) -> list[_Item]:
    """All but stubs, in the order of the plan."""
    items = [_Item(0, "image", "end", writes=(0,))]
    for i, step in enumerate(e.steps, 1):
        items.append(_Item(i, step.name, _CLASS.get(step.kind, "each"), step.reads, step.writes, step))
    for i, value in enumerate(e.outputs):
        name = "result" if len(e.outputs) == 1 else f"result {i + 1}"
        items.append(_Item(len(items), name, "end", reads=(value,)))
    return items


@dataclass
class _Edge:
    """From an item or its stub, both of the same column, to the `role`-th reading of another."""

    source: _Item
    target: _Item
    value: int
    role: int
    lane: int | None = None  # None: straight down

    @property
    def side(self) -> int:
        return 1 if self.role else -1


@dataclass
class _Column:
    items: list[_Item]
    edges: list[_Edge] = field(default_factory=list)
    lanes: dict[int, int] = field(default_factory=dict)  # how many at each side

    def __post_init__(self) -> None:
        place = {id(item): i for i, item in enumerate(self.items)}
        writer = {value: item for item in self.items for value in item.writes}
        trunks: dict[tuple[int, int], list[_Edge]] = {}
        for target in self.items:
            taken = False  # one map comes from straight above, rather the first one
            for role, value in enumerate(target.reads):
                edge = _Edge(writer[value], target, value, role)
                self.edges.append(edge)
                if place[id(target)] - place[id(edge.source)] == 1 and not taken:
                    taken = True
                else:
                    trunks.setdefault((edge.side, value), []).append(edge)
        for side in (-1, 1):
            ends: list[int] = []  # where the last trunk of each lane ends
            for edges in (edges for (at, _), edges in trunks.items() if at == side):
                start, end = place[id(edges[0].source)], max(place[id(edge.target)] for edge in edges)
                lane = next((i for i, last in enumerate(ends) if last <= start), len(ends))
                ends[lane : lane + 1] = [end]
                for edge in edges:
                    edge.lane = lane
            self.lanes[side] = len(ends)

    @property
    def width(self) -> float:
        return BOX + 104 + self.room(-1) + self.room(1)

    def pitch(self, side: int) -> float:
        """From lane to lane: less where there are many."""
        return min(LANE, 240 / max(self.lanes[side], 1))

    def room(self, side: int) -> float:
        return self.pitch(side) * self.lanes[side]

    @property
    def height(self) -> float:
        return sum(item.height + item.below for item in self.items)

    @property
    def bottom(self) -> float:
        return self.items[-1].bottom

    def place(self, x: float, y: float) -> None:
        for item in self.items:
            item.x, item.y = x + 52 + self.room(-1), y
            y += item.height + item.below


def _columns(items: list[_Item]) -> list[_Column]:
    """Split such that the picture is not too tall and looks well."""
    total = _Column(items).height

    def ugliness(n: int) -> float:
        height = total / n + 360
        return abs(math.log(height / (n * (BOX + 130)) / _SHAPE)) + 10 * max(0.0, height * 1.1 / TALLEST - 1)

    count = min(range(1, 2 + len(items) // 4), key=ugliness)
    columns: list[_Column] = []
    start = 0
    for left in range(count, 0, -1):
        end = len(items) if left == 1 else _cut(items, start, left)
        columns.append(_Column(_stubs(items, start, end) + items[start:end]))
        start = end
    return columns


def _cut(items: list[_Item], start: int, left: int) -> int:
    """Where the column that begins at `start` ends, of `left` columns: few maps cross it, and no block is torn."""
    heights = [item.height + item.below for item in items[start:]]
    wanted, so_far, best = sum(heights) / left, 0.0, (math.inf, start + 1)
    for i in range(start + 1, len(items) - left + 2):
        so_far += heights[i - start - 1]
        off = abs(so_far - wanted) / wanted
        crossing = len(_stubs(items, start, len(items), i))
        torn = i < len(items) and bool(_block(items[i])) and _block(items[i - 1]) == _block(items[i])
        best = min(best, (off * 12 + crossing + 0.6 * torn, i))
    return best[1]


def _stubs(items: list[_Item], start: int, end: int, cut: int | None = None) -> list[_Item]:
    """For the items before `start` (or `cut`) that those from there to `end` read; the latest one last."""
    begin = start if cut is None else cut
    wanted = {value for item in items[begin:end] for value in item.reads}
    return [
        _Item(item.number, item.name, item.look, writes=item.writes, of=item.number)
        for item in items[:begin]
        if wanted & set(item.writes)
    ]


def _block(item: _Item) -> str:
    """The module that an op belongs to, by its name."""
    return "" if item.step is None else re.split(r"[./][^./]*$", item.name)[0] if re.search(r"[./]", item.name) else ""


# The head: what it is, how it came about, what colours mean.


class _Head:
    least = 1010.0

    def __init__(self, e: Explanation) -> None:
        self.e = e

    def draw(self, canvas: _Canvas, width: float) -> float:
        """Gives where the columns begin."""
        room = width - 2 * MARGIN
        canvas.text(MARGIN, 62, self.e.name, 30, room, "strong")
        canvas.text(MARGIN, 88, headline(self.e).replace(", ", " \N{MIDDLE DOT} "), 13.5, room, "grey")
        y = self._strip(canvas, 124, room)
        y = self._legend(canvas, y + 36, room)
        return y + 40

    def _strip(self, canvas: _Canvas, y: float, room: float) -> float:
        """A bar of nodes for each stage."""
        most = max(len(stage.rows) for stage in self.e.stages)
        longest = 330.0
        for stage in self.e.stages:
            canvas.open(f"{stage.name}: {stage.says}")
            canvas.text(MARGIN, y, stage.name, 13, 84, "strong")
            looks = Counter(_CLASS.get(row.kind, "each") for row in stage.rows)
            x = MARGIN + 92.0
            for look, (_, colour) in _LOOKS.items():
                part = longest * looks[look] / most
                if part:
                    canvas.rect(x, y - 11, max(part - 1, 0.5), 14, 1.5, f'fill="{colour}" fill-opacity=".85"')
                    x += part
            unit = "ops" if stage.name == "fuse" else "nodes"
            x += 8 + canvas.text(x + 8, y, f"{len(stage.rows)} {unit}", 13, 120, "strong")
            start = max(x + 12, MARGIN + 92 + longest + 100)
            says = wrapped(stage.changes or stage.says, 12, room + MARGIN - start)
            for i, line in enumerate(says):
                canvas.text(start, y + 15 * i, line, 12, room + MARGIN - start, "grey")
            canvas.close()
            y += 22 + 15 * (len(says) - 1)
        return y - 22

    def _legend(self, canvas: _Canvas, y: float, room: float) -> float:
        x = float(MARGIN)
        there = {_CLASS.get(row.kind, "each") for stage in self.e.stages for row in stage.rows}
        entries = [(name, colour, True) for look, (name, colour) in _LOOKS.items() if look in there]
        kinds = {value.kind for value in self.e.values}
        entries += [(f"{kind} map", colour, False) for kind, colour in _MAPS.items() if kind in kinds]
        for name, colour, is_op in entries:
            wide = 30 + width_of(name, 12) + 16
            if x + wide > MARGIN + room:
                x, y = float(MARGIN), y + 22
            if is_op:
                canvas.rect(x, y - 10, 20, 12, 3, f'class="box" fill="{colour}" stroke="{colour}"')
                canvas.rect(x, y - 10, 4, 12, 2, f'fill="{colour}"')
            else:
                canvas.path(f"M{x:g} {y - 4:g}h20", f'class="edge" stroke="{colour}" stroke-width="4"')
            canvas.text(x + 27, y, name, 12, 300, "grey")
            x += wide
        return y


# The network.


@dataclass
class _Drawing:
    canvas: _Canvas
    e: Explanation
    columns: Sequence[_Column]

    def __post_init__(self) -> None:
        steps = self.e.steps
        self.most_macs = max((step.macs for step in steps), default=0) or 1
        self.most_bytes = max((step.bytes for step in steps), default=0) or 1
        self.macs = sum(step.macs for step in steps) or 1
        self.bytes = sum(step.bytes for step in steps) or 1

    def draw(self) -> None:
        for column in self.columns:
            self._blocks(column)
        for before, column in zip(self.columns, self.columns[1:]):
            self._bridge(before, column)
        for column in self.columns:
            for edge in column.edges:
                self._edge(column, edge)
            self._labels(column)
            for item in column.items:
                self._item(item)

    def _blocks(self, column: _Column) -> None:
        """A shade behind ops of the same module."""
        for name, run in groupby(column.items, _block):
            items = list(run)
            if name and len(items) > 1:
                x, y = items[0].x - 12, items[0].y - 19
                self.canvas.rect(x, y, BOX + 24, items[-1].bottom + 11 - y, 10, 'class="block"')
                self.canvas.text(x + 10, y + 13, name, 10.5, BOX / 2 - 30, "grey")

    def _bridge(self, before: _Column, column: _Column) -> None:
        """From the last item of a column, round its corner, to its stub in the next one."""
        last = before.items[-1]
        stub = next((item for item in column.items if item.of is not None and item.of == last.number), None)
        if stub is None:
            return
        x, y = last.middle, last.bottom
        low, turn = y + 22, 14
        gutter = stub.x - column.room(-1) - 44
        into = stub.y + stub.height / 2
        d = (
            f"M{x:g} {y:g}V{low - turn:g}Q{x:g} {low:g} {x + turn:g} {low:g}H{gutter - turn:g}"
            f"Q{gutter:g} {low:g} {gutter:g} {low - turn:g}V{into + turn:g}"
            f"Q{gutter:g} {into:g} {gutter + turn:g} {into:g}H{stub.x:g}"
        )
        self.canvas.path(d, f'class="edge" stroke="{_LOOKS["end"][1]}" stroke-width="2.5" stroke-dasharray="1 6"')

    def _edge(self, column: _Column, edge: _Edge) -> None:
        value, source, target = self.e.values[edge.value], edge.source, edge.target
        colour = _MAPS[value.kind]
        if edge.lane is None:
            x = source.middle
            d = f"M{x:g} {source.bottom:g}V{target.y - 7:g}"
            head = f"M{x - 6:g} {target.y - 9:g}h12l-6 9z"
        else:
            side = edge.side
            edge_of_boxes = source.x + (BOX if side > 0 else 0)
            lane = edge_of_boxes + side * (30 + column.pitch(side) * edge.lane)
            start, end = (edge_of_boxes - side * item.inset for item in (source, target))
            y0 = source.bottom - (10 if value.kind == "bits" else 16)
            y1 = target.y + min(18.0, target.height / 2)
            turn = min(26.0, (y1 - y0) / 2)
            d = (
                f"M{start:g} {y0:g}H{edge_of_boxes:g}C{lane:g} {y0:g} {lane:g} {y0:g} {lane:g} {y0 + turn:g}"
                f"V{y1 - turn:g}C{lane:g} {y1:g} {lane:g} {y1:g} {edge_of_boxes + side * 8:g} {y1:g}H{end + side * 8:g}"
            )
            head = f"M{end + side * 9:g} {y1 - 6:g}v12l{-9 * side:g} -6z"
        self.canvas.open(
            f"{_map(value)}: {visible(source.name, 200)} to {visible(target.name, 200)}",
            data_edge=f"{source.number} {target.number} {edge.role}",
        )
        self.canvas.path(d, f'class="edge" stroke="{colour}" stroke-width="{4 if edge.lane is None else 3}"')
        self.canvas.path(head, f'fill="{colour}"')
        self.canvas.close()

    def _labels(self, column: _Column) -> None:
        """Kind and shape of each map, once: beside the line, or below the corner where it leaves its op."""
        straight = {edge.value for edge in column.edges if edge.lane is None}
        done: set[tuple[int, int]] = set()
        for edge in column.edges:
            where = 0 if edge.lane is None else edge.side
            if (edge.value, where) in done or (where and edge.value in straight):
                continue
            done.add((edge.value, where))
            value, source = self.e.values[edge.value], edge.source
            words = _map(value)
            y = source.bottom + 15
            if where == 0:
                x = source.middle + 10
                self.canvas.text(x, y, words, 10, 101, "grey")
            elif where > 0:
                self.canvas.text(source.x + BOX - 2, y, words, 10, 101, "grey", "end")
            else:
                self.canvas.text(source.x + 2, y, words, 10, 101, "grey")

    def _item(self, item: _Item) -> None:
        colour = _LOOKS[item.look][1]
        if item.step is None:
            self._pill(item, colour)
            return
        step, x, y = item.step, item.x, item.y
        macs = f"{amount(step.binary_macs)} binary and {amount(step.real_macs)} real MACs, {step.bytes:,} bytes"
        about = [f"{visible(step.name, 200)}: {step.kind} {step.about}", step.then, macs]
        about += [f"computes {visible(', '.join(step.computes), 1000)}"] if step.computes else []
        self.canvas.open("\n".join(filter(None, about)), data_op=item.number - 1)
        self.canvas.rect(x, y, BOX, item.height, 9, 'class="paper"')
        self.canvas.rect(x, y, BOX, item.height, 9, f'class="box" fill="{colour}" stroke="{colour}"')
        self.canvas.rect(x, y, 6, item.height, 3, f'fill="{colour}"')
        self.canvas.text(x + 18, y + 20, step.name, 13.5, _BESIDE, "strong")
        for i, line in enumerate(item.about):
            self.canvas.text(x + 18, y + 37 + 16 * i, line, 11, _WIDE if i else _BESIDE)
        if item.computes:
            self.canvas.text(x + 18, item.bottom - 9, item.computes, 10.5, _WIDE, "grey")
        for i, (name, part, most, total) in enumerate(self._bars(step)):
            at = y + 11 + 16 * i
            self.canvas.rect(x + BOX - _BARS - 10, at, 50, 7, 3.5, 'class="track"')
            self.canvas.rect(x + BOX - _BARS - 10, at, max(50 * part / most, 3), 7, 3.5, f'fill="{colour}"')
            words = f"{part / total:.1%} {name}" if part / total >= 0.0005 else f"<0.1% {name}"
            self.canvas.text(x + BOX - _BARS + 46, at + 7.5, words, 9.5, _BARS - 50, "grey")
        self.canvas.close()

    def _bars(self, step: Step) -> Iterator[tuple[str, int, int, int]]:
        if step.macs:
            yield "MACs", step.macs, self.most_macs, self.macs
        if step.bytes:
            yield "bytes", step.bytes, self.most_bytes, self.bytes

    def _pill(self, item: _Item, colour: str) -> None:
        """The image, a result, or where a column takes up what an earlier one computes."""
        x, wide = item.x + item.inset, BOX - 2 * item.inset
        self.canvas.rect(x, item.y, wide, item.height, item.height / 2, 'class="paper"')
        if item.of is not None:
            self.canvas.rect(x, item.y, wide, item.height, item.height / 2, 'class="stub"')
            words = f"from {'the ' if item.look == 'end' else ''}{item.name}"
            self.canvas.text(item.middle, item.y + 19.5, words, 11.5, wide - 40, "grey", "middle")
            return
        words = f"{item.name}: {_map(self.e.values[(item.writes or item.reads)[0]])}"
        self.canvas.open(words, data_end=item.number)
        more = f'class="box" fill="{colour}" stroke="{colour}"'
        self.canvas.rect(x, item.y, wide, item.height, item.height / 2, more)
        self.canvas.text(item.middle, item.y + 19.5, words, 12.5, wide - 30, "strong", "middle")
        self.canvas.close()


def _map(value: bnn.Value) -> str:
    return f"{value.kind} {value.c}\N{MULTIPLICATION SIGN}{value.h}\N{MULTIPLICATION SIGN}{value.w}"
