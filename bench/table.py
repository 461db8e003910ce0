"""The tables that a result is shown as: the deployment table of the OvSW paper (Table 4), and all engines timed.

Both are made from the result's JSON alone, as plain text or Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ovsw.bench.entries import BITS, OURS
from ovsw.bench.measure import apart, ratio
from ovsw.bench.peers import PEERS
from ovsw.summary import table as text_table

# The paper's figures: Apple M1 Pro, float networks and its own binary ones in BOLT.
PAPER_ENGINE = "paper: M1 Pro, BOLT"
PAPER: list[dict[str, Any]] = [
    {"network": network, "wa": wa, "size_mb": size, "saving": saving, "ms": ms, "acceleration": acceleration}
    for network, wa, size, saving, ms, acceleration in (
        ("resnet18", "32/32", 46.76, None, 27.67, None),
        ("resnet18", "16/16", 23.38, 2.0, 16.65, 1.66),
        ("resnet18", "1/1", 2.81, 16.64, 7.97, 3.47),
        ("resnet34", "32/32", 87.19, None, 48.82, None),
        ("resnet34", "16/16", 43.60, 2.0, 29.01, 1.68),
        ("resnet34", "1/1", 4.12, 21.16, 14.28, 3.42),
    )
]

HEAD = (
    *("Network", "W/A", "Size (MB)", "File (MB)", "Memory saving"),
    *("Latency (ms)", "p10 .. p90", "Acceleration", "Engine"),
)
ALL_HEAD = (
    *("Network", "Engine", "Precision", "Version", "Latency (ms)", "p10 .. p90", "Rounds"),
    *("x ovsw", "p10 .. p90", "Peak (MB)", "Logits"),
)


def deployment(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows 32/32, 16/16 and 1/1 of each network, and 1/1 for each file of the user's.

    In 32/32 and 16/16 stands the fastest engine of those timed. Without one, `latency` is None and `note` says why.
    """
    made = []
    for network, about in result["networks"].items():
        rows = [row for row in result["rows"] if network in (row["network"], row.get("like"))]
        base = _fastest(rows, "32/32")
        parameters = about["parameters"]
        for bits in () if about["own"] else (32, 16):
            wa = f"{bits}/{bits}"
            row = _fastest(rows, wa)
            if row is None:
                size = None if parameters is None else parameters * bits / 8e6
                made.append({"network": network, "wa": wa, "size_mb": size, "note": _reason(result, network, bits)})
            else:
                made.append(_line(row, base, parameters))
        made += [_line(row, base, parameters) for row in rows if row["engine"] == OURS]
    return made


def _line(row: dict[str, Any], base: dict[str, Any] | None, parameters: int | None) -> dict[str, Any]:
    line = {key: row[key] for key in ("network", "wa", "engine", "precision", "version", "size_mb", "file_mb")}
    line["latency"] = row["latency_ms"]
    line["isa"] = row.get("isa")
    if row is not base and parameters is not None and row["size_mb"]:
        line["saving"] = parameters * 4e-6 / row["size_mb"]
    if row is not base and base is not None:
        line["acceleration"] = ratio(base["latency_ms"]["samples"], row["latency_ms"]["samples"])
        line["clear"] = clear(row["latency_ms"], base["latency_ms"], line["acceleration"])
    return line


def clear(a: dict[str, Any], b: dict[str, Any], times: dict[str, float]) -> bool:
    """Whether the ratio of two latencies may be called: their spreads do not overlap, and its own has no 1 in it."""
    return apart(a, b) and apart(times, {"p10": 1.0, "p90": 1.0})


def _fastest(rows: list[dict[str, Any]], wa: str) -> dict[str, Any] | None:
    return min((r for r in rows if r["wa"] == wa), key=lambda r: r["latency_ms"]["median"], default=None)


def _reason(result: dict[str, Any], network: str, bits: int) -> str:
    """Why no engine with so many bits was timed."""
    peers = {p.name: p for p in PEERS if BITS[p.precision] == bits}
    whys = {s["peer"]: s["why"] for s in result["skipped"] if s["peer"] in peers and s["network"] in (None, network)}
    able = {name: why for name, why in whys.items() if not why.endswith("not installed")}
    if not whys:
        return "not measured"
    if not able:
        return f"no engine for it is installed ({', '.join(dict.fromkeys(peers[n].engine for n in whys))})"
    return "; ".join(f"{name}: {why}" for name, why in able.items())


def cells(result: dict[str, Any], paper: bool) -> list[tuple[str, ...]]:
    """The deployment table in words; the paper's rows last."""
    made: list[tuple[str, ...]] = []
    for line in deployment(result):
        latency, faster = line.get("latency"), line.get("acceleration")
        name = f"{line.get('engine')} {line.get('isa') or line.get('precision')}"
        if latency and len(latency["samples"]) < result["context"]["repeat"]:
            name += f" ({len(latency['samples'])} rounds only)"
        made.append(
            (_title(line["network"]), line["wa"], _mb(line["size_mb"]), _mb(line.get("file_mb")))
            + (_times(line.get("saving")),)
            + (f"{latency['median']:.2f}" if latency else "-", _range(latency))
            + ("-" if not faster else _times(faster["median"]) if line["clear"] else "unclear",)
            + (name if latency else line["note"],)
        )
    if paper:
        made += [
            (_title(line["network"]), line["wa"], _mb(line["size_mb"]), "-", _times(line["saving"]))
            + (f"{line['ms']:.2f}", "-", _times(line["acceleration"]), PAPER_ENGINE)
            for line in PAPER
            if line["network"] in result["networks"]
        ]
    return made


def all_cells(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every engine timed, the fastest first."""
    made: list[tuple[str, ...]] = []
    for network in dict.fromkeys(row["network"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["network"] == network]
        own = next((row for row in rows if row["engine"] == OURS), None)
        for row in sorted(rows, key=lambda row: row["latency_ms"]["median"]):
            ms, times = row["latency_ms"], row["ratio"]
            called = own is None or row is own or clear(ms, own["latency_ms"], times)
            made.append(
                (_title(network), row["engine"], row["precision"], row["version"] or "-")
                + (f"{ms['median']:.2f}", _range(ms), str(len(ms["samples"])))
                + ("-" if not times else f"{times['median']:.2f}" if called else "unclear", _range(times))
                + (f"{row['memory_mb']:.0f}" if row.get("memory_mb") else "-", row["check"])
            )
    return made


def text(result: dict[str, Any], paper: bool) -> str:
    return _show(result, paper, text_table)


def markdown(result: dict[str, Any], paper: bool) -> str:
    return _show(result, paper, markdown_table)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    def line(row: Sequence[str]) -> str:
        return f"| {' | '.join(row)} |"

    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def _show(result: dict[str, Any], paper: bool, render: Any) -> str:
    parts = [render(HEAD, cells(result, paper), right=(2, 3, 4, 5, 7))]
    if result["rows"]:
        parts.append("All engines timed; x ovsw: an engine's time over ovsw's in the same round.")
        parts.append(render(ALL_HEAD, all_cells(result), right=(4, 6, 7, 9)))
    baseline = result.get("memory", {}).get("baseline_mb")
    if baseline:
        alone = f"python with numpy alone has {baseline:.0f} MB"
        parts.append(f"Peak (MB): resident memory of a process that only loads and runs the network; {alone}.")
    return "\n\n".join(parts)


def _title(network: str) -> str:
    return re.sub("^(c?)resnet", r"\1ResNet", network)


def _mb(size: float | None) -> str:
    return "-" if size is None else f"{size:.2f}"


def _times(factor: Any) -> str:
    return "-" if factor is None else f"{factor:.2f}x".replace(".00x", "x")


def _range(values: dict[str, float] | None) -> str:
    return "-" if not values else f"{values['p10']:.2f} .. {values['p90']:.2f}"
