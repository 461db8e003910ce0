"""`ovsw-bench compare A.json B.json`: what has changed between two runs, a verdict per row.

A machine has moods that last longer than a run, so a row is called faster or slower only if three things agree: its
medians differ by more than noise does, its samples have their places apart, and the difference stays when it is divided
by what all engines have in common, which were timed in the same rounds and tell how the machine was.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ovsw.bench.measure import apart
from ovsw.cli import add_version, command
from ovsw.summary import table

SAME = 1.10  # medians that differ by less are the same
CHANGED = 1.15  # and by more may be a change
PARTS = 6  # of a run
KEY = ("network", "engine", "precision", "threads", "batch")
_MACHINE = ("cpu", "machine", "cores", "system", "governor")
_CONTEXT = (*_MACHINE, "threads", "batch", "pinned", "isa", "python", "numpy", "ovsw", "commit")

Key = tuple[Any, ...]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="ovsw-bench compare", description="Compare two results of ovsw-bench --json.")
    p.add_argument("a", metavar="A.json", help="the run before")
    p.add_argument("b", metavar="B.json", help="the run after")
    p.add_argument("--fail-on-change", action="store_true", help="exit code 1 if a row is faster or slower")
    add_version(p)
    return p


@command("ovsw-bench compare")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    a, b = read(args.a), read(args.b)
    for line in differences(a["context"], b["context"]):
        print(f"warning: {line}", file=sys.stderr)
    rows = verdicts(a, b)
    cells = [
        tuple(str(part) for part in row["key"])
        + tuple("-" if row[side] is None else f"{row[side]:.2f}" for side in ("a_ms", "b_ms"))
        + ("-" if row["ratio"] is None else f"{row['ratio']:.2f}", row["verdict"])
        for row in rows
    ]
    head = (*KEY, "A ms", "B ms", "B / A", "verdict")
    print(table(head, cells, right=(3, 4, 5, 6, 7)))
    changed = [row for row in rows if row["verdict"] in ("faster", "slower")]
    print(f"\n{len(changed)} of {len(rows)} rows changed")
    return 1 if changed and args.fail_on_change else 0


def read(path: str) -> dict[str, Any]:
    """A result file. Raises ValueError if it is none."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        for row in result["rows"]:
            _ = [row[part] for part in KEY], float(row["latency_ms"]["median"]), row["latency_ms"]["samples"][0] + 0.0
        _ = result["context"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path}: not a result of ovsw-bench --json ({type(e).__name__}: {e})") from None
    return dict(result)


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Between two contexts, as far as they make results hard to compare."""
    return [f"{key} differs: {a.get(key)} in A, {b.get(key)} in B" for key in _CONTEXT if a.get(key) != b.get(key)]


def verdicts(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each that is in A or B: its key, both medians, their ratio (below 1: B is faster), and the verdict."""
    before, after = _rows(a), _rows(b)
    changes = {key: _median(after[key]) / _median(before[key]) for key in before if key in after}
    made = []
    for key in dict.fromkeys([*before, *after]):
        ratio = changes.get(key)
        if ratio is None:
            verdict = "only in A" if key in before else "only in B"
        else:
            verdict = _verdict(before[key], after[key], ratio, _mood(changes, key))
        sides = {"a_ms": _median(before[key]) if key in before else None}
        sides["b_ms"] = _median(after[key]) if key in after else None
        made.append({"key": key, **sides, "ratio": ratio, "verdict": verdict})
    return made


def _mood(changes: dict[Key, float], key: Key) -> float:
    """How much slower the machine itself was in B when a row was timed: the median over the engines of its network.

    One engine alone can tell nothing, and of two only the other one.
    """
    votes: dict[str, list[float]] = {}
    for other, change in changes.items():
        if _network(other) == _network(key):
            votes.setdefault(_engine(other), []).append(change)
    if len(votes) < 3:
        del votes[_engine(key)]
    return median(map(median, votes.values())) if votes else 1.0


def _verdict(before: dict[str, Any], after: dict[str, Any], ratio: float, mood: float) -> str:
    off, beyond_mood = math.log(ratio), math.log(ratio / mood)
    if abs(off) <= math.log(SAME):
        return "same"
    agree = off * beyond_mood > 0 and min(abs(off), abs(beyond_mood)) > math.log(CHANGED)
    if not agree or not apart(_place(before), _place(after)):
        return "unclear"
    return "faster" if off < 0 else "slower"


def _place(row: dict[str, Any]) -> dict[str, float]:
    """Where the samples are, whatever a few spikes do: the middle half, and the medians of parts of the run, since the
    machine's mood may have changed on the way."""
    samples = np.asarray(row["latency_ms"]["samples"])
    parts = np.array_split(samples, max(1, min(PARTS, len(samples) // 3)))
    low, high = np.percentile(samples, [25, 75])
    medians = [float(np.median(part)) for part in parts]
    return {"p10": min(float(low), *medians), "p90": max(float(high), *medians)}


def _rows(result: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    return {tuple(row[part] for part in KEY): row for row in result["rows"]}


def _network(key: Key) -> str:
    return str(key[KEY.index("network")])


def _engine(key: Key) -> str:
    return str(key[KEY.index("engine")])


def _median(row: dict[str, Any]) -> float:
    return float(row["latency_ms"]["median"])
