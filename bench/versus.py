"""`python -m ovsw.bench.versus`: the binary networks against their float and int8 forms in other engines.

All run turn by turn, so that whatever else the machine does hits all of them; the verdict is the ratio of each turn,
not of two averages. A peer that is missing, breaks or gives other logits than ONNX Runtime gets one line instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.bench.peers import REFERENCE, Peer, Runner, crash, select
from ovsw.bench.peers.base import SIDES, error, fault, images
from ovsw.bench.random_nets import random_resnet
from ovsw.cli import add_version, command
from ovsw.summary import table

WA = {"1-bit": "1/1", "int8": "8/8", "fp16": "16/16", "bf16": "16/16", "fp32": "32/32"}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m ovsw.bench.versus",
        description="Time the binary networks and other engines, interleaved, batch 1; peers run the float networks.",
    )
    p.add_argument("networks", metavar="NET", nargs="*", default=["resnet18"], help=", ".join(SIDES))
    p.add_argument("--threads", metavar="N", type=int, default=1, help="threads of each (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="one kernel table only (default: each that this CPU supports)")
    p.add_argument("--numerics", choices=("integer", "float"), default="integer", help="default: %(default)s")
    p.add_argument("--peers", metavar="A,B", help="only these, such as ncnn,openvino-int8, or none (default: all)")
    p.add_argument("--list-peers", action="store_true", help="show the peers and which can be used here")
    p.add_argument("--rounds", metavar="N", type=int, default=40, help="turns (default: %(default)s)")
    p.add_argument("--json", metavar="FILE", help="also write the figures here")
    add_version(p)
    return p


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each call in each round, taken in turns: a b c, a b c, ...

    A call that gives back a float has timed itself, in seconds.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            own = call()
            times[name].append(1e3 * (own if isinstance(own, float) else time.perf_counter() - start))
    return {name: np.array(t) for name, t in times.items()}


@dataclass
class Entry:
    """One engine at one precision with one network, ready to be timed."""

    network: str
    engine: str
    precision: str
    version: str
    check: str
    call: Callable[[], object]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision}"


@command("ovsw.bench.versus")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    unknown = [n for n in args.networks if n not in SIDES]
    if unknown:
        raise ValueError(f"unknown network '{unknown[0]}', known are {', '.join(SIDES)}")
    if min(args.rounds, args.threads) < 1:
        raise ValueError("--rounds and --threads must be at least 1")
    peers = select(args.peers)
    if args.list_peers:
        print(list_peers(peers))
        return 0
    # Idle threads of one engine must not spin while another is timed; read when its OpenMP is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    isas = [args.isa] if args.isa else [name for name, supported in _core.tables() if supported]
    usable, skipped = [], []
    for peer in peers:
        why = _attempt(peer.available) or crash(peer)
        if why is None:
            usable.append(peer)
        else:
            skipped.append({"peer": peer.name, "network": None, "why": why})
            print(f"{peer.name}: {why}", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for network in args.networks:
        entries = ours(network, args.numerics, isas, args.threads)
        base = next(e.name for e in entries if e.engine == f"ovsw {_best(isas)}")
        found, wrong = theirs(network, usable, args.threads)
        skipped += wrong
        rows += measure([*entries, *found], base, args.rounds)
    about = context(args.threads, args.rounds, args.numerics)
    print(f"{about['cpu']}, {args.threads} thread(s), batch 1, {args.rounds} interleaved rounds, load {about['load']}")
    print(
        f"ratio: an engine's time over that of ovsw {_best(isas)} in the same round; unclear: its spread has 1 in it\n"
    )
    print(show(rows))
    if args.json:
        made = json.dumps({"context": about, "rows": rows, "skipped": skipped}, indent=2)
        Path(args.json).write_text(made + "\n")
    return 0


def list_peers(peers: list[Peer]) -> str:
    """What `--list-peers` prints."""
    rows = []
    for peer in peers:
        why = _attempt(peer.available)
        rows.append((peer.name, peer.precision, (peer.version() or "-") if why is None else "-", why or "yes"))
    return table(("peer", "precision", "version", "usable"), rows)


def ours(network: str, numerics: str, isas: list[str], threads: int) -> list[Entry]:
    """Our engine with each of these kernel tables, from uint8 pixels to logits."""
    data = bnn.to_bytes(random_resnet(network, numerics=numerics))
    side = SIDES[network]
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)

    def entry(isa: str) -> Entry:
        engine = Engine(data, threads=threads, isa=isa)
        return Entry(network, f"ovsw {isa}", "1-bit", __version__, numerics, lambda: engine.run(pixels))

    return [entry(isa) for isa in isas]


def theirs(network: str, peers: list[Peer], threads: int) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The peers that give the right logits, and why others are left out (also on stderr, as it happens)."""
    entries: list[Entry] = []
    skipped: list[dict[str, Any]] = []
    shown = images(network, 4, seed=0)
    judge = None
    if any(p.comparable for p in peers) and REFERENCE.available() is None:
        with contextlib.suppress(Exception):  # it gets its own line when its turn comes
            judge = _outputs(REFERENCE.load(network, threads), shown)
    for peer in peers:
        try:
            if network not in peer.networks:
                raise ValueError("has no such network")
            with _quiet():
                run = peer.load(network, threads)
                check = judged(peer, _outputs(run, shown), judge)
            entry = Entry(network, peer.engine, peer.precision, peer.version(), check, _timed(run, shown[0]))
        except Exception as e:  # whatever another engine may raise
            why = _one_line(e)
            skipped.append({"peer": peer.name, "network": network, "why": why})
            print(f"{peer.name}, {network}: {why}", file=sys.stderr)
            continue
        entries.append(entry)
    return entries, skipped


def judged(peer: Peer, found: np.ndarray, judge: np.ndarray | None) -> str:
    """How far the peer's logits are from the judge's, in words; raises ValueError if that is too far."""
    if not peer.comparable:
        return "other weights"
    if peer is REFERENCE:
        return "the judge"
    if judge is None:
        return f"unchecked: no {REFERENCE.name}"
    wrong = fault(found, judge, peer.precision)
    if wrong:
        raise ValueError(wrong)
    return f"within {error(found, judge):.1g}"


def measure(entries: list[Entry], base: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each entry, in the order of their times."""
    times = interleaved({e.name: e.call for e in entries}, rounds)
    rows = []
    for e in entries:
        ms = times[e.name]
        row: dict[str, Any] = {"network": e.network, "wa": WA[e.precision], "engine": e.engine}
        row.update(precision=e.precision, version=e.version, check=e.check)
        row["latency_ms"] = {**_spread(ms), "samples": [round(float(t), 4) for t in ms]}
        row["ratio"] = _spread(ms / times[base])
        rows.append(row)
    return sorted(rows, key=lambda row: row["latency_ms"]["median"])


def show(rows: list[dict[str, Any]]) -> str:
    cells = []
    for r in rows:
        ms, ratio = r["latency_ms"], r["ratio"]
        unclear = ratio["p10"] <= 1.0 <= ratio["p90"] and ratio["p10"] != ratio["p90"]
        cells.append(
            (r["network"], r["engine"], r["precision"], r["version"] or "-")
            + (f"{ms['median']:.2f}", f"{ms['p10']:.2f} .. {ms['p90']:.2f}")
            + (f"{ratio['median']:.2f}", f"{ratio['p10']:.2f} .. {ratio['p90']:.2f}" + " unclear" * unclear)
            + (r["check"],)
        )
    head = ("network", "engine", "precision", "version", "median ms", "p10 .. p90", "ratio", "p10 .. p90", "logits")
    return table(head, cells, right=(4, 6))


def context(threads: int, rounds: int, numerics: str) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown",
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ovsw": __version__,
        "tables": [name for name, supported in _core.tables() if supported],
        "threads": threads,
        "rounds": rounds,
        "numerics": numerics,
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _best(isas: list[str]) -> str:
    """Of these tables the one that an Engine would take by itself, or else the first."""
    order = [name for name, _ in _core.tables()]
    return min(isas, key=lambda isa: order.index(isa) if isa in order else len(order))


def _spread(values: np.ndarray) -> dict[str, float]:
    p10, median, p90 = (float(v) for v in np.percentile(values, [10, 50, 90]))
    return {"median": median, "p10": p10, "p90": p90}


def _outputs(run: Runner, shown: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.array(run(image)) for image in shown])


def _timed(run: Runner, image: np.ndarray) -> Callable[[], object]:
    def call() -> object:
        run(image)
        return getattr(run, "seconds", None)

    return call


def _attempt(available: Callable[[], str | None]) -> str | None:
    """A broken installation is a reason too."""
    try:
        return available()
    except Exception as e:  # whatever an import may raise
        return _one_line(e)


def _one_line(e: Exception) -> str:
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text if len(text) <= 160 else text[:157] + '...'}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, warnings and advice of quantisers and compilers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


if __name__ == "__main__":
    sys.exit(main(None))
