"""The pictures of `ovsw-bench`: the table as bars, the time of each step, the roofline, and the gain of threads.

Each function takes a result or a part of it and writes a PNG to a path or an open file. Needs matplotlib, no screen.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional, Union

import numpy as np

from ovsw.bench.measure import Latency, Spread
from ovsw.bench.profile import NetworkProfile, TimedStep
from ovsw.bench.result import OURS, Measurement, Result
from ovsw.bench.scaling import Scaling
from ovsw.bench.table import PAPER, fastest
from ovsw.util.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Target = Union[str, Path, IO[bytes]]

_WA_COLOURS = {"32/32": "#9ecae1", "16/16": "#6baed6", "8/8": "#3182bd", "1/1": "#de2d26"}
_PAPER_COLOUR = "#222222"
_OPS = ("bconv", "conv", "linear", "maxpool", "avgpool", "channel_pad", "eltwise", "input")
_OP_COLOURS = dict(zip(_OPS, ("#de2d26", "#3182bd", "#31a354", "#756bb1", "#e6850e", "#8c6d31", "#e377c2", "#777777")))


def table_plot(result: Result, path: Target, paper: bool = True) -> None:
    """Latency of the fastest engine of each width and of ours, a panel per network, the paper's figures beside them."""
    published = {(line.network, line.wa): line.ms for line in PAPER} if paper else {}
    panels = {network: _bars(rows, network, published) for network, rows in _networks(result).items()}
    if not panels:
        raise ValueError("there is no row to draw")
    lengths = [len(bars) for bars in panels.values()]
    figure = _figure(8, 0.6 + sum(0.7 + 0.62 * n for n in lengths))
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": [n + 0.5 for n in lengths]})
    for axis, (network, bars) in zip(axes.flat, panels.items()):
        _panel(axis, bars)
        axis.set_title(_short(network, 60), loc="left", fontweight="bold")
    axes.flat[-1].set_xlabel("latency, ms per image (bars: median, whiskers: p10 .. p90)")
    if any(there for bars in panels.values() for _, _, _, there in bars):
        marker = axes.flat[0].plot([], [], "D", color=_PAPER_COLOUR, ms=6)
        figure.legend(marker, ["paper, M1 Pro"], loc="outside upper right", frameon=False)
    machine = f"{result.context.cpu}, {result.context.threads} thread(s), batch {result.context.batch}"
    figure.suptitle(_short(machine, 70), x=0.01, ha="left", fontsize=10)
    _save(figure, path)


def _networks(result: Result) -> dict[str, list[Measurement]]:
    """The rows of each network, a user's file with those it is compared with."""
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in result.rows:
        groups[row.like or row.network].append(row)
    return groups


Bar = tuple[str, str, Optional[Latency], Optional[float]]  # W/A, whose, latency here and that of the paper


def _bars(rows: list[Measurement], network: str, published: dict[tuple[str, str], float]) -> list[Bar]:
    """The fastest of each width, and all of ours."""
    bars: list[Bar] = []
    for wa in ("32/32", "16/16", "8/8"):
        row = fastest(rows, wa)
        there = published.get((network, wa))
        if row:
            bars.append((wa, f"{row.engine} {row.precision}", row.latency_ms, there))
        elif there:
            bars.append((wa, "no engine here", None, there))
    for row in (r for r in rows if r.engine == OURS):
        own = row.network != network
        there = None if own else published.get((network, row.wa))
        bars.append((row.wa, row.network if own else f"{OURS} {row.isa or row.precision}", row.latency_ms, there))
    return bars


def _panel(axis: Axes, bars: list[Bar]) -> None:
    for y, (wa, _, ms, there) in enumerate(bars):
        low = y - 0.12 if there else y
        if ms:
            axis.barh(low, ms.median, 0.5, color=_WA_COLOURS[wa], xerr=_whiskers([ms]), capsize=3, ecolor="#444444")
            _value(axis, ms.p90, low, f"{ms.median:.2f}", "bold")
        if there:
            axis.plot(there, y + 0.3, "D", color=_PAPER_COLOUR, ms=6)
            _value(axis, there, y + 0.3, f"{there:.2f}", "normal")
    axis.set_yticks(range(len(bars)), [f"{wa}\n{_short(whose, 32)}" for wa, whose, _, _ in bars])
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.set_xlim(0, 1.12 * max(max(ms.p90 if ms else 0.0, there or 0.0) for _, _, ms, there in bars))
    axis.tick_params(axis="y", length=0)
    _plain(axis)


def _value(axis: Axes, x: float, y: float, text: str, weight: str) -> None:
    axis.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9, fontweight=weight)


def _whiskers(spreads: Sequence[Spread]) -> np.ndarray:
    """Down and up from the medians; of a rate, p10 is above p90."""
    return np.array([np.abs(np.sort([s.p10, s.p90]) - s.median) for s in spreads]).T


def steps_plot(profile: NetworkProfile, path: Target, network: str) -> None:
    """Where the time of a network goes: a bar per step in the order of execution."""
    from matplotlib.patches import Patch

    steps = profile.steps
    figure = _figure(8, 1.5 + 0.23 * len(steps))
    axis = figure.subplots()
    ms = [Spread(s.ms, s.p10, s.p90) for s in steps]
    y = range(len(steps))
    line = {"ecolor": "#444444", "elinewidth": 0.8}
    axis.barh(y, [s.ms for s in steps], 0.75, color=[_colour(s.op) for s in steps], xerr=_whiskers(ms), error_kw=line)
    for at, step in enumerate(steps):
        text = f"{100 * step.share:.1f} %" + (f", {step.gmacs:.0f} GMAC/s" if step.macs else "")
        axis.annotate(text, (step.p90, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set_yticks(y, [_short(s.name, 40) for s in steps], fontsize=8)
    axis.set(xlim=(0, 1.3 * max(s.p90 for s in steps)), ylim=(len(steps) - 0.4, -0.6))
    axis.set_xlabel("ms (bars: median, whiskers: p10 .. p90)")
    _plain(axis)
    known = [(op, colour) for op, colour in _OP_COLOURS.items() if op in {s.op for s in steps}]
    patches = [Patch(color=colour, label=op) for op, colour in known]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=8, frameon=False)
    axis.set_title(_about(profile, network), loc="left", fontsize=10)
    _save(figure, path)


def roofline(profile: NetworkProfile, path: Target, network: str) -> None:
    """Multiply-adds per byte against GMAC/s, with the ceilings measured; layers of one shape are one point."""
    layers = _layers(profile)
    if not layers:
        raise ValueError("there is no step with multiply-adds to draw")
    figure = _figure(9, max(5.6, 2.2 + 0.17 * len(layers)))
    axis = figure.subplots()
    x, y = [layer.macs / layer.bytes for layer in layers], [layer.macs / layer.ms / 1e6 for layer in layers]
    span = np.array([min(x) / 2.5, max(x) * 2.5])
    copies, peaks = profile.ceilings.copy, profile.ceilings.gmacs
    top = max([*peaks.values(), *y])
    for copy, style in ((copies[0], "-"), (copies[-1], ":")):
        label = f"copy of {copy.bytes / 1e6:.1f} MB: {copy.gb_per_s:.0f} GB/s"
        axis.plot(span, copy.gb_per_s * span, style, color="#999999", lw=1.2, label=label)
    for name, gmacs in peaks.items():
        colour = _colour(name.split()[0])
        style = "--" if "i16 x" in name else "-"
        axis.plot(span, [gmacs, gmacs], style, color=colour, lw=1.2, label=f"{name}: {gmacs:.0f} GMAC/s")
    colours = [_colour(layer.op) for layer in layers]
    areas = [20 + 600 * layer.share for layer in layers]
    axis.scatter(x, y, areas, c=colours, alpha=0.55, zorder=3)
    axis.scatter(x, y, 8, c=colours, zorder=4)
    axis.set(xscale="log", yscale="log", xlim=span, ylim=(min(y) / 2.5, 2 * top), ylabel="GMAC/s")
    axis.set_xlabel("multiply-adds per byte read or written (inputs, output, weights)")
    axis.grid(which="both", alpha=0.2)
    axis.set_title(_about(profile, network) + "; area: share of the time", loc="left", fontsize=10)
    lines = axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, title="measured here")
    axis.add_artist(lines)
    key = "\n".join(f"{n:>2}  {layer.label}" for n, layer in enumerate(layers, start=1))
    axis.text(1.03, 0.0, key, transform=axis.transAxes, fontsize=7.5, va="bottom", family="monospace")
    figure.draw_without_rendering()
    _number(axis, x, y, areas)
    _save(figure, path)


@dataclass
class _Layer:
    """Steps of one op and shape together."""

    op: str
    label: str
    macs: float
    bytes: int
    ms: float
    share: float


def _layers(profile: NetworkProfile) -> list[_Layer]:
    """Steps with multiply-adds, in the order of their first one."""
    groups: dict[tuple[str, str, str], list[TimedStep]] = defaultdict(list)
    for step in profile.steps:
        if step.macs:
            groups[step.op, step.shape, step.window].append(step)
    layers = []
    for (op, shape, window), steps in groups.items():
        times = f" ({len(steps)}x)" if len(steps) > 1 else ""
        sums = (sum(getattr(s, key) for s in steps) for key in ("macs", "bytes", "ms", "share"))
        layers.append(_Layer(op, f"{op} {shape}{'' if window == '-' else ', ' + window}{times}", *sums))
    return layers


def _number(axis: Axes, x: list[float], y: list[float], areas: list[float]) -> None:
    """Numbers the points from 1; each number goes to the nearest free place."""
    pixel = axis.figure.dpi / 72
    points = axis.transData.transform(np.column_stack([x, y]))
    radii = [pixel * np.sqrt(area) / 2 for area in areas]
    taken = list(zip(points, radii))
    for n, (point, radius) in enumerate(zip(points, radii), start=1):
        for step in range(400):  # along a spiral
            angle, far = 2.4 * step, radius + 9 + 0.4 * step
            place = point + far * np.array([np.cos(angle), np.sin(angle)])
            if all(np.hypot(*(place - other)) > 8 + room for other, room in taken):
                break
        taken.append((place, 8.0))
        line = {"arrowstyle": "-", "lw": 0.5, "color": "#555555", "shrinkA": 0, "shrinkB": 0}
        where: Any = {"xytext": tuple((place - point) / pixel), "textcoords": "offset points"}
        centred: Any = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 5}
        axis.annotate(str(n), (x[n - 1], y[n - 1]), arrowprops=line, **where, **centred)


def scaling_plot(scaling: Scaling, path: Target) -> None:
    """Images per second and speed-up over the threads, a line per batch."""
    threads = sorted({p.threads for p in scaling.points})
    batches = sorted({p.batch for p in scaling.points})
    figure = _figure(8, 4.0)
    left, right = figure.subplots(1, 2)
    for n, batch in enumerate(batches):
        line = sorted((p for p in scaling.points if p.batch == batch), key=lambda p: p.threads)
        at = [threads.index(p.threads) + 0.06 * (n - (len(batches) - 1) / 2) for p in line]
        style: dict[str, Any] = {"fmt": "o-", "ms": 4, "capsize": 3, "lw": 1.2, "label": f"batch {batch}"}
        rates = [Spread(*(1e3 / ms for ms in vars(p.ms_per_image).values())) for p in line]
        for axis, values in ((left, rates), (right, [p.speedup for p in line])):
            axis.errorbar(at, [v.median for v in values], yerr=_whiskers(values), **style)
    right.plot(range(len(threads)), threads, ":", color="#999999", label="as many times as threads")
    for axis, title in ((left, "images per second"), (right, "speed-up over 1 thread, batch 1")):
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xticks(range(len(threads)), [str(t) for t in threads])
        axis.set(xlabel="threads", ylim=(0, None))
        axis.grid(alpha=0.3)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.suptitle(
        _short(f"{scaling.network}, {scaling.isa}; whiskers: p10 .. p90", 80), x=0.01, ha="left", fontsize=10
    )
    _save(figure, path)


def _about(profile: NetworkProfile, network: str) -> str:
    return f"{_short(network, 40)}: {profile.total_ms:.2f} ms in all, {profile.isa}, {profile.threads} thread(s)"


def _colour(op: str) -> str:
    return _OP_COLOURS.get(op, "#777777")


def _plain(axis: Axes) -> None:
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _short(text: str, most: int) -> str:
    """Names come from files and users: shortened, and without formulas for matplotlib."""
    line = visible(" ".join(text.split()))
    return (line if len(line) <= most else line[: most - 1] + "…").replace("$", r"\$")


def _figure(width: float, height: float) -> Figure:
    """A figure outside the global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Target) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name with letters that the font does not have
        figure.savefig(path, format="png", dpi=120)
