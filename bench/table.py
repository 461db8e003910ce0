"""The tables that a result is shown as: the deployment table of the OvSW paper (Table 4), and all engines timed.

Both are made from the result alone, as plain text or Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ovsw.bench.entries import BITS
from ovsw.bench.measure import Latency, Spread
from ovsw.bench.peers import PEERS
from ovsw.bench.result import OURS, Measurement, Result
from ovsw.util.text import table as text_table


@dataclass
class Published:
    """A row of the paper's table: Apple M1 Pro, float networks and its own binary ones in BOLT."""

    network: str
    wa: str
    size_mb: float
    saving: float | None
    ms: float
    acceleration: float | None


PAPER_ENGINE = "paper: M1 Pro, BOLT"
PAPER = [
    Published("resnet18", "32/32", 46.76, None, 27.67, None),
    Published("resnet18", "16/16", 23.38, 2.0, 16.65, 1.66),
    Published("resnet18", "1/1", 2.81, 16.64, 7.97, 3.47),
    Published("resnet34", "32/32", 87.19, None, 48.82, None),
    Published("resnet34", "16/16", 43.60, 2.0, 29.01, 1.68),
    Published("resnet34", "1/1", 4.12, 21.16, 14.28, 3.42),
]

HEAD = (
    *("Network", "W/A", "Size (MB)", "File (MB)", "Memory saving"),
    *("Latency (ms)", "p10 .. p90", "Acceleration", "Engine"),
)
ALL_HEAD = (
    *("Network", "Engine", "Precision", "Version", "Latency (ms)", "p10 .. p90", "Rounds"),
    *("x ovsw", "p10 .. p90", "Peak (MB)", "Logits"),
)


def cells(result: Result, paper: bool) -> list[tuple[str, ...]]:
    """The deployment table: four widths of each network, 1/1 of each file of the user's; the paper's rows.

    In all but 1/1 stands the fastest engine of those timed or, without one, the reason.
    """
    lines: list[tuple[str, ...]] = []
    for network, about in result.networks.items():
        rows = [row for row in result.rows if network in (row.network, row.like)]
        base = fastest(rows, "32/32")
        for bits in () if about.own else (32, 16, 8):
            wa = f"{bits}/{bits}"
            row = fastest(rows, wa)
            if row is None:
                size = None if about.parameters is None else about.parameters * bits / 8e6
                lines.append((_title(network), wa, _mb(size), *"-" * 5, _reason(result, network, bits)))
            else:
                lines.append(_line(row, base, about.parameters, result.context.repeat))
        lines += [_line(row, base, about.parameters, result.context.repeat) for row in rows if row.engine == OURS]
    if paper:
        lines += [
            (_title(line.network), line.wa, _mb(line.size_mb), "-", _times(line.saving))
            + (f"{line.ms:.2f}", "-", _times(line.acceleration), PAPER_ENGINE)
            for line in PAPER
            if line.network in result.networks
        ]
    return lines


def _line(row: Measurement, base: Measurement | None, parameters: int | None, rounds: int) -> tuple[str, ...]:
    """Memory saving and acceleration are over the 32/32 in `base`.

    The latter is the ratio of the medians that show; the ratios of the same rounds decide whether it may be called.
    """
    ms, saving, acceleration = row.latency_ms, "-", "-"
    if row is not base and parameters is not None and row.size_mb:
        saving = _times(parameters * 4e-6 / row.size_mb)
    if row is not base and base is not None:
        faster = base.latency_ms.over(ms)
        acceleration = _times(base.latency_ms.median / ms.median) if clear(ms, base.latency_ms, faster) else "unclear"
    short = f" ({len(ms.samples)} rounds only)" if len(ms.samples) < rounds else ""
    sizes = (_mb(row.size_mb), _mb(row.file_mb), saving)
    engine = f"{row.engine} {row.isa or row.precision}{short}"
    return (_title(row.network), row.wa, *sizes, *ms.cells(), acceleration, engine)


def clear(a: Latency, b: Latency, times: Spread) -> bool:
    """Whether the ratio of two latencies may be called: their spreads do not overlap, and its own has no 1 in it."""
    return a.apart(b) and times.apart(Spread(1.0, 1.0, 1.0))


def fastest(rows: list[Measurement], wa: str) -> Measurement | None:
    return min((r for r in rows if r.wa == wa), key=lambda r: r.latency_ms.median, default=None)


def _reason(result: Result, network: str, bits: int) -> str:
    """Why no engine with `bits` bits was timed."""
    peers = {p.name: p for p in PEERS if BITS[p.precision] == bits}
    whys = {s.peer: s.why for s in result.skipped if s.peer in peers and s.network in (None, network)}
    able = {name: why for name, why in whys.items() if not why.endswith("not installed")}
    if not whys:
        return "not measured"
    if not able:
        return f"no engine for it is installed ({', '.join(dict.fromkeys(peers[n].engine for n in whys))})"
    return "; ".join(f"{name}: {why}" for name, why in able.items())


def all_cells(result: Result) -> list[tuple[str, ...]]:
    """Every engine timed, the fastest first."""
    lines: list[tuple[str, ...]] = []
    for network in dict.fromkeys(row.network for row in result.rows):
        rows = [row for row in result.rows if row.network == network]
        own = next((row for row in rows if row.engine == OURS), None)
        for row in sorted(rows, key=lambda row: row.latency_ms.median):
            ms, times, ratio = row.latency_ms, row.ratio, "-"
            if times:
                called = own is None or row is own or clear(ms, own.latency_ms, times)
                ratio = f"{times.median:.2f}" if called else "unclear"
            peak = f"{row.memory_mb:.0f}" if row.memory_mb else "-"
            lines.append(
                (_title(network), row.engine, row.precision, row.version or "-", *ms.cells(), str(len(ms.samples)))
                + (ratio, times.range() if times else "-", peak, row.check)
            )
    return lines


def show(result: Result, paper: bool, render: Callable[..., str] = text_table) -> str:
    """Both tables, as plain text or with `ovsw.util.text.markdown_table`."""
    parts = [render(HEAD, cells(result, paper), right=(2, 3, 4, 5, 7))]
    if result.rows:
        parts.append("All engines timed; x ovsw: an engine's time over ovsw's in the same round.")
        parts.append(render(ALL_HEAD, all_cells(result), right=(4, 6, 7, 9)))
    if baseline := result.memory.get("baseline_mb"):
        alone = f"python with numpy alone has {baseline:.0f} MB"
        parts.append(f"Peak (MB): resident memory of a process that only loads and runs the network; {alone}.")
    return "\n\n".join(parts)


def _title(network: str) -> str:
    return re.sub("^(c?)resnet", r"\1ResNet", network)


def _mb(size: float | None) -> str:
    return "-" if size is None else f"{size:.2f}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}x".replace(".00x", "x")
