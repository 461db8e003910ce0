"""`ovsw-bench micro`: every kernel of every table on the layers of real networks, on one thread.

The tables run in interleaved rounds and every step is timed; layers of one shape are one row. The same rounds time, for
each binary convolution, a plain 64-bit popcount dot over as many multiply-adds. `--emulate` counts instructions on an
ARM CPU instead (tools/arm64).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ovsw import Engine, Step, _bench, cpu
from ovsw import format as bnn
from ovsw.bench.emulate import counts
from ovsw.bench.measure import spread
from ovsw.bench.random_nets import STEMS, random_resnet
from ovsw.bench.subcommand import add_options, print_rows
from ovsw.bench.topology import NETWORKS
from ovsw.commands.base import command
from ovsw.util.text import dims


@dataclass
class Timed:
    """A layer shape on one table, or all binary convolutions; `popcnt`: the time of plain popcounts over its own."""

    network: str
    op: str
    shape: str
    layers: int
    isa: str
    us: float
    p10: float
    p90: float
    gmacs: float
    popcnt: float | None


@dataclass(frozen=True)
class Counted:
    """A layer shape on an emulated CPU."""

    network: str
    cpu: str
    isa: str
    op: str
    shape: str
    instructions: int
    per_128_macs: float | None


def options(p: argparse.ArgumentParser) -> None:
    add_options(p, ("resnet18", "cresnet20"), rounds=30, known=list(NETWORKS))
    p.add_argument("--isa", metavar="NAME", help="one kernel table only (default: each that this CPU supports)")
    p.add_argument("--numerics", choices=("integer", "float"), default="integer", help="default: %(default)s")
    p.add_argument(
        "--stem", choices=STEMS, default=STEMS[0], help="weights of the first convolution (default: %(default)s)"
    )
    p.add_argument("--emulate", metavar="CPU", help="count instructions per 128 MACs on this ARM CPU: cortex-a72, ...")


@command("ovsw-bench micro", "Time every kernel of every table on real layer shapes.", options)
def main(args: argparse.Namespace) -> int:
    if args.emulate:
        return _emulate(args)
    isas = [args.isa] if args.isa else cpu.supported_isas()
    rows = [row for net in args.networks for row in measure(net, args.numerics, isas, args.rounds, args.stem)]
    cells = [
        (r.network, r.op, r.shape, str(r.layers), r.isa, f"{r.us:.1f}", f"{r.p10:.1f} .. {r.p90:.1f}")
        + (f"{r.gmacs:.1f}" if r.gmacs else "-", f"{r.popcnt:.2f}" if r.popcnt else "-")
        for r in rows
    ]
    note = f"{args.numerics}, one thread, {args.rounds} interleaved rounds"
    note += "\npopcnt: the time of plain popcount dots over this one's"
    head = ("network", "op", "shape", "layers", "isa", "us", "p10 .. p90", "GMAC/s", "popcnt")
    return print_rows(args.json, rows, note, head, cells, right=(3, 5, 7, 8))


def _emulate(args: argparse.Namespace) -> int:
    """Every layer shape on an emulated ARM CPU: what the kernel of its best table, or of `--isa`, executes."""
    cpu = args.emulate
    options = ("--engine=ovsw", "--steps", f"--stem={args.stem}", *([f"--isa={args.isa}"] if args.isa else []))
    rows: dict[Counted, None] = {}
    for row in counts([cpu], args.networks, *options):
        layer_of = (row["network"], cpu, row["engine"].split()[-1])
        for s in row["steps"]:
            rows[Counted(*layer_of, s["op"], _shape(s), s["instructions"], s["per_128_macs"])] = None
    cells = [
        (r.network, r.op, r.shape, r.isa, str(r.instructions), f"{r.per_128_macs:.2f}" if r.per_128_macs else "-")
        for r in rows
    ]
    note = f"{cpu}, emulated, one inference; layers of one shape that take as many instructions are one row"
    head = ("network", "op", "shape", "isa", "instructions", "per 128 MACs")
    return print_rows(args.json, list(rows), note, head, cells, right=(4, 5))


def _shape(step: dict[str, Any]) -> str:
    return f"{dims(step['input'])} -> {dims(step['output'])}, {dims(step['window'])}"


def measure(network: str, numerics: str, isas: list[str], rounds: int, stem: str = STEMS[0]) -> list[Timed]:
    """One row per layer shape and table, and a last one per table for all binary convolutions together."""
    data = bnn.to_bytes(random_resnet(network, numerics=numerics, stem=stem if numerics == "integer" else None))
    engines = {isa: Engine(data, threads=1, isa=isa) for isa in isas}
    first = next(iter(engines.values()))
    c, h, w = first.input_shape
    image = np.random.default_rng(0).integers(0, 256, (1, h, w, c), np.uint8)
    layers: dict[Step, list[int]] = defaultdict(list)  # without their names
    for i, step in enumerate(first.steps[1:], start=1):
        layers[replace(step, name="")].append(i)
    binary = [layer for layer in layers if layer.op == "bconv"]
    for engine in engines.values():
        engine.run(image)
    seconds: dict[str, list[np.ndarray]] = {isa: [] for isa in isas}
    plain: dict[Step, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for isa, engine in engines.items():
            seconds[isa].append(engine.time_steps(image)[0])
        for layer in binary:
            (cout, oh, ow), (kh, kw) = layer.output, layer.window
            plain[layer].append(_bench.time_popcount(oh * ow, cout, -(-kh * kw * layer.input[0] // 64)))
    rows = []
    for isa in isas:
        times = np.asarray(seconds[isa])
        for layer, indices in layers.items():
            each = times[:, indices].mean(axis=1)
            ratio = np.asarray(plain[layer]) / each if layer in binary else None
            rows.append(_timed(network, layer.op, _shape(vars(layer)), len(indices), isa, each, layer.macs, ratio))
        total = times[:, [i for layer in binary for i in layers[layer]]].sum(axis=1)
        popcounts = sum(len(layers[layer]) * np.asarray(plain[layer]) for layer in binary)
        count, macs = sum(len(layers[b]) for b in binary), sum(len(layers[b]) * b.macs for b in binary)
        rows.append(_timed(network, "bconv", "all", count, isa, total, macs, popcounts / total))
    return rows


def _timed(
    network: str, op: str, shape: str, layers: int, isa: str, seconds: np.ndarray, macs: float, ratio: np.ndarray | None
) -> Timed:
    us = spread(1e6 * seconds)
    popcnt = None if ratio is None else float(np.median(ratio))
    return Timed(network, op, shape, layers, isa, us.median, us.p10, us.p90, macs / us.median / 1e3, popcnt)
