"""`ovsw-bench compare A.json B.json`: what has changed between two runs, with a verdict per row.

The load of a machine changes more slowly than a run takes, so a row is called faster or slower only if three things
agree: its medians differ by more than noise, its samples do not overlap, and the difference remains when it is divided
by the drift that all engines of the same rounds have in common.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ovsw.bench.measure import Latency, Spread
from ovsw.commands.base import command
from ovsw.util.text import table, visible

SAME = 1.10  # medians that differ by less are the same
CHANGED = 1.15  # and by more may be a change
PARTS = 6  # of a run
_MACHINE = ("cpu", "machine", "cores", "system", "governor")
_CONTEXT = (*_MACHINE, "threads", "batch", "pinned", "isa", "python", "numpy", "ovsw", "commit")


class Key(NamedTuple):
    """Rows of two runs with the same key are compared."""

    network: str
    engine: str
    precision: str
    threads: int
    batch: int


@dataclass
class SavedResult:
    """A result file; its context may be of any version of ovsw."""

    context: dict[str, Any]
    rows: dict[Key, Latency]


@dataclass
class Change:
    """A row that is in A or B: both medians, their ratio (below 1: B is faster), and the verdict."""

    key: Key
    a_ms: float | None
    b_ms: float | None
    ratio: float | None
    verdict: str


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("a", metavar="A.json", help="the run before")
    p.add_argument("b", metavar="B.json", help="the run after")
    p.add_argument("--fail-on-change", action="store_true", help="exit with code 1 if a row is faster or slower")


@command(
    "ovsw-bench compare",
    "Compare two results of ovsw-bench --json.",
    options,
    examples=("a.json b.json", "a.json b.json --fail-on-change"),
)
def main(args: argparse.Namespace) -> int:
    a, b = read(args.a), read(args.b)
    for line in differences(a.context, b.context):
        print(f"warning: {visible(line)}", file=sys.stderr)
    rows = verdicts(a, b)
    cells = [
        (*map(str, row.key), *("-" if n is None else f"{n:.2f}" for n in (row.a_ms, row.b_ms, row.ratio)), row.verdict)
        for row in rows
    ]
    print(table((*Key._fields, "A ms", "B ms", "B / A", "verdict"), cells, right=(3, 4, 5, 6, 7)))
    changed = [row for row in rows if row.verdict in ("faster", "slower")]
    print(f"\n{len(changed)} of {len(rows)} rows changed")
    return 1 if changed and args.fail_on_change else 0


def read(path: str) -> SavedResult:
    """Reads a result file of any version. Raises ValueError."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = {}
        for row in result["rows"]:
            key = Key(*(row[part] for part in Key._fields))
            samples = [float(ms) for ms in row["latency_ms"]["samples"]]
            if not samples or not all(0.0 < ms < math.inf for ms in samples):
                raise ValueError(f"no times of {key.engine} {key.precision} with {key.network}")
            rows[key] = Latency.of(samples)
        return SavedResult(dict(result["context"].items()), rows)
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path}: not a result of ovsw-bench --json ({type(e).__name__}: {e})") from None


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Between two contexts, as far as they make results hard to compare."""
    return [f"{key} differs: {a.get(key)} in A, {b.get(key)} in B" for key in _CONTEXT if a.get(key) != b.get(key)]


def verdicts(a: SavedResult, b: SavedResult) -> list[Change]:
    ratios = {key: b.rows[key].median / a.rows[key].median for key in a.rows if key in b.rows}
    changes = []
    for key in dict.fromkeys([*a.rows, *b.rows]):
        before, after = a.rows.get(key), b.rows.get(key)
        if before and after:
            verdict = _verdict(before, after, ratios[key], _drift(ratios, key))
        else:
            verdict = "only in A" if before else "only in B"
        a_ms, b_ms = (None if times is None else times.median for times in (before, after))
        changes.append(Change(key, a_ms, b_ms, ratios.get(key), verdict))
    return changes


def _drift(ratios: dict[Key, float], key: Key) -> float:
    """How much slower the machine itself was in B when a row was timed: the median over the engines of its network.

    With fewer than three engines the row's own one does not count.
    """
    votes: dict[str, list[float]] = {}
    for other, ratio in ratios.items():
        if other.network == key.network:
            votes.setdefault(other.engine, []).append(ratio)
    if len(votes) < 3:
        del votes[key.engine]
    return median(map(median, votes.values())) if votes else 1.0


def _verdict(before: Latency, after: Latency, ratio: float, drift: float) -> str:
    off, beyond_drift = math.log(ratio), math.log(ratio / drift)
    if abs(off) <= math.log(SAME):
        return "same"
    agree = off * beyond_drift > 0 and min(abs(off), abs(beyond_drift)) > math.log(CHANGED)
    if not agree or not _range(before).apart(_range(after)):
        return "unclear"
    return "faster" if off < 0 else "slower"


def _range(times: Latency) -> Spread:
    """The range of the samples without spikes: the middle half, widened by the medians of parts of the run, as the load
    of the machine may have changed during it."""
    samples = np.asarray(times.samples)
    parts = np.array_split(samples, max(1, min(PARTS, len(samples) // 3)))
    low, high = np.percentile(samples, [25, 75])
    medians = [float(np.median(part)) for part in parts]
    return Spread(times.median, min(float(low), *medians), max(float(high), *medians))
