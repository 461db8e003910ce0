"""Rearranged elements as nodes: slices, pads, shuffles, concatenation, upsampling, in any coding style.

A plane of the result that consists of rows and columns of one plane of one source is part of a `Gather`; planes that
have rows and columns in common are one of these, and several are a `Concat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ovsw.export import ir
from ovsw.export.frontend.values import ZERO, Arranged, Call, array, frame

_MOST_PARTS = 64


@dataclass
class Planes:
    """Per channel of the result: its source (-1: constant), the channel in it, rows, columns, and what fills gaps."""

    source: np.ndarray  # (channels,)
    channel: np.ndarray
    rows: np.ndarray  # (channels, height)
    columns: np.ndarray  # (channels, width)
    value: np.ndarray  # (channels,), not a number where there are no gaps


def planes(x: Arranged) -> Planes | None:
    """The elements as planes, or None if some plane is not rows and columns of one plane."""
    c, h, w = frame(x.shape)
    which, place = (a.reshape(c, h, w) for a in x.located())
    value = np.full((c, h, w), np.nan)
    source, channel, row, column = (np.full((c, h, w), -1) for _ in range(4))
    for i, call in enumerate(x.sources):
        here = which == i
        if call.op == "constant":
            value[here] = array(call.args[0]).reshape(-1)[place[here]]
        else:
            _, height, width = frame(call.shape)
            pixel = place[here] % (height * width)
            source[here], channel[here] = i, place[here] // (height * width)
            row[here], column[here] = pixel // width, pixel % width
    inside = source >= 0
    result = Planes(
        source.max(axis=(1, 2)),
        channel.max(axis=(1, 2)),
        row.max(axis=2),
        column.max(axis=1),
        np.where(inside.all(axis=(1, 2)), np.nan, np.fmax.reduce(value.reshape(c, -1), axis=1)),
    )
    same = (
        (source == result.source[:, None, None])
        & (channel == result.channel[:, None, None])
        & (row == result.rows[:, :, None])
        & (column == result.columns[:, None, :])
    )
    within = (result.rows >= 0)[:, :, None] & (result.columns >= 0)[:, None, :]
    filled = value == result.value[:, None, None]
    fits = np.where(inside, same & within, filled & ~within)
    return result if fits.all() else None


def arranged(name: str, x: Arranged, node: Callable[[Call], ir.Node]) -> ir.Node | str:
    """The nodes that rearrange, or a sentence on why there are none."""
    shape = frame(x.shape)
    whole = x.whole()
    if whole is not None and frame(whole.shape) == shape:
        return node(whole)
    layout = planes(x)
    if layout is None:
        return _laid_over(name, x, node)
    parts = _parts(layout)
    if len(parts) > _MOST_PARTS:
        return f"its elements are moved between channels and pixels in {len(parts)} different ways"
    nodes = [
        _gathered(name if len(parts) == 1 else f"{name}.{i}", part, layout, x, node, shape)
        for i, part in enumerate(parts)
    ]
    if len(nodes) == 1:
        return nodes[0]
    order = np.argsort(np.concatenate(parts))
    joined = ir.Concat(name, nodes, shape)
    if np.array_equal(order, np.arange(len(order))):
        return joined
    return ir.Gather(f"{name}.order", [joined], shape, order, np.arange(shape[1]), np.arange(shape[2]))


def _parts(layout: Planes) -> list[np.ndarray]:
    """Channels that one Gather can make. A constant channel joins neighbours that fill gaps with its value."""
    keys: list[tuple[object, ...]] = []
    fills: dict[tuple[object, ...], float] = {}
    real = np.flatnonzero(layout.source >= 0)
    for c, source in enumerate(layout.source):
        gaps = bool((layout.rows[c] < 0).any() or (layout.columns[c] < 0).any())
        fill = float(layout.value[c]) if gaps else np.nan
        keys.append((source, layout.rows[c].tobytes(), layout.columns[c].tobytes(), fill if gaps else None))
        if source >= 0:
            fills[keys[c]] = fill
    for c in map(int, np.flatnonzero(layout.source < 0)):
        beside = keys[real[max(0, np.searchsorted(real, c) - 1)]]
        if np.isnan(fills[beside]) or fills[beside] == layout.value[c]:
            keys[c], fills[beside] = beside, float(layout.value[c])
    return [np.array([c for c, key in enumerate(keys) if key == part]) for part in dict.fromkeys(keys)]


def _gathered(
    name: str,
    part: np.ndarray,
    layout: Planes,
    x: Arranged,
    node: Callable[[Call], ir.Node],
    shape: ir.Shape,
) -> ir.Node:
    real = part[layout.source[part] >= 0]
    first = real[0] if len(real) else None
    whence = x.sources[layout.source[first]] if first is not None else next(s for s in x.sources if s.op != "constant")
    source = node(whence)
    channels = layout.channel[part]
    rows = layout.rows[first] if first is not None else np.zeros(shape[1], int)
    columns = layout.columns[first] if first is not None else np.zeros(shape[2], int)
    fills = layout.value[part][~np.isnan(layout.value[part])]
    value = float(fills[0]) if len(fills) else 0.0
    c, h, w = source.shape
    size = (len(part), shape[1], shape[2])
    if np.array_equal(rows, np.arange(h)) and np.array_equal(columns, np.arange(w)):
        if np.array_equal(channels, np.arange(c)):
            return source
        before = int(np.argmax(channels >= 0))
        after = len(channels) - c - before
        padded = np.concatenate([np.full(before, -1), np.arange(c), np.full(max(0, after), -1)])
        if value == 0 and np.array_equal(channels, padded):
            return ir.ChannelPad(name, [source], size, before, after)
    return ir.Gather(name, [source], size, channels, rows, columns, value)


def _laid_over(name: str, x: Arranged, node: Callable[[Call], ir.Node]) -> ir.Node | str:
    """Maps that are joined along rows or columns: each with zeros around it, and all added up."""
    c, h, w = frame(x.shape)
    which, _ = x.located()
    terms: list[ir.Node] = []
    for i, call in enumerate(x.sources):
        if call.op == "constant" and not array(call.args[0]).any():
            continue
        if call.op == "constant":
            return "constants are put beside a map in a pattern that is not rows or columns"
        alone = Arranged(np.where(which == i, x.index, 0), [ZERO, call], x.where)
        pieces = _rectangles(alone)
        if pieces is None or len(terms) + len(pieces) > _MOST_PARTS:
            return (
                "its elements are moved between channels and pixels in a way that is not slicing, padding or shuffling"
            )
        for piece in pieces:
            term = arranged(f"{name}.{len(terms)}", piece, node)
            if isinstance(term, str):
                return term
            terms.append(term)
    total = terms[0]
    for i, term in enumerate(terms[1:]):
        total = ir.Add(name if i == len(terms) - 2 else f"{name}.sum{i}", [total, term], (c, h, w))
    return total


def _rectangles(x: Arranged) -> list[Arranged] | None:
    """The elements of one source in pieces, each of whose planes are rows and columns: by their steps of 2 to 4 rows
    and columns (depth to space), or by rows alone.
    """
    if planes(x) is not None:
        return [x]
    c, h, w = frame(x.shape)
    index = x.index.reshape(c, h, w)
    for step in (2, 3, 4):
        pieces = []
        for i in range(step):
            for j in range(step):
                part = np.zeros_like(index)
                part[:, i::step, j::step] = index[:, i::step, j::step]
                pieces.append(Arranged(part.reshape(x.shape), x.sources, x.where))
        if all(planes(piece) is not None for piece in pieces):
            return [piece for piece in pieces if piece.index.any()]
    return None
