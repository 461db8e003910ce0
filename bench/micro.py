"""`python -m ovsw.bench.micro`: every kernel of every table on the layers of real networks, one thread.

The engines run turn by turn, step by step timed; layers of one shape are one row. Beside each binary convolution a
plain 64-bit popcount dot over the same multiply-adds is timed in the same rounds. `--emulate` counts instructions on
an ARM CPU instead (tools/arm64).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import Engine, _core
from ovsw import format as bnn
from ovsw.bench.emulate import counts
from ovsw.bench.measure import spread
from ovsw.bench.random_nets import random_resnet
from ovsw.cli import add_version, command
from ovsw.summary import table

NETWORKS = ("resnet18", "cresnet20")
Layer = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # op, input, output, kernel


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m ovsw.bench.micro", description="Time every kernel of every table on real layer shapes."
    )
    p.add_argument("networks", metavar="NET", nargs="*", default=list(NETWORKS), help="resnet18, resnet34, cresnet20")
    p.add_argument("--isa", metavar="NAME", help="one kernel table only (default: each that this CPU supports)")
    p.add_argument("--numerics", choices=("integer", "float"), default="integer", help="default: %(default)s")
    p.add_argument("--emulate", metavar="CPU", help="instead: instructions per 128 MACs on cortex-a72 and the like")
    p.add_argument("--rounds", metavar="N", type=int, default=30, help="turns (default: %(default)s)")
    p.add_argument("--json", action="store_true", help="print JSON")
    add_version(p)
    return p


@command("ovsw.bench.micro")
def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.rounds < 1:
        raise ValueError("--rounds must be at least 1")
    if args.emulate:
        return _emulate(args.emulate, args.networks, args.isa, args.json)
    isas = [args.isa] if args.isa else [name for name, supported in _core.tables() if supported]
    rows = [row for net in args.networks for row in measure(net, args.numerics, isas, args.rounds)]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    cells = [
        (r["network"], r["op"], r["shape"], str(r["layers"]), r["isa"])
        + (f"{r['us']:.1f}", f"{r['p10']:.1f} .. {r['p90']:.1f}")
        + (f"{r['gmacs']:.1f}" if r["gmacs"] else "-", f"{r['popcnt']:.2f}" if r["popcnt"] else "-")
        for r in rows
    ]
    print(f"{args.numerics}, one thread, {args.rounds} interleaved rounds")
    print("popcnt: the time of plain popcount dots over this one's\n")
    head = ("network", "op", "shape", "layers", "isa", "us", "p10 .. p90", "GMAC/s", "popcnt")
    print(table(head, cells, right=(3, 5, 7, 8)))
    return 0


def _emulate(cpu: str, networks: list[str], isa: str | None, as_json: bool) -> int:
    """Every layer shape on an emulated ARM CPU: what the kernel of its best table, or of `isa`, executes."""
    found = []
    for row in counts([cpu], networks, "--engine=ovsw", "--steps", *([f"--isa={isa}"] if isa else [])):
        for step in row["steps"]:
            about = {"network": row["network"], "cpu": cpu, "isa": row["engine"].split()[-1]}
            shape = " -> ".join(_dims(step[end]) for end in ("input", "output") if end in step)
            about.update(op=step["op"], shape=f"{shape}, {_dims(step['kernel'])}" if "kernel" in step else shape)
            about.update(instructions=step["instructions"], per_128_macs=step["per_128_macs"])
            if about not in found:
                found.append(about)
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    cells = [
        tuple(r[key] for key in ("network", "op", "shape", "isa"))
        + (str(r["instructions"]), f"{r['per_128_macs']:.2f}" if r["per_128_macs"] else "-")
        for r in found
    ]
    print(f"{cpu}, emulated, one inference; layers of one shape that take as many instructions are one row\n")
    print(table(("network", "op", "shape", "isa", "instructions", "per 128 MACs"), cells, right=(4, 5)))
    return 0


def measure(network: str, numerics: str, isas: list[str], rounds: int) -> list[dict[str, Any]]:
    """One row per layer shape and table, and a last one per table for all binary convolutions together."""
    data = bnn.to_bytes(random_resnet(network, numerics=numerics))
    engines = {isa: Engine(data, threads=1, isa=isa) for isa in isas}
    first = next(iter(engines.values()))
    c, h, w = first.input_shape
    image = np.random.default_rng(0).integers(0, 256, (1, h, w, c), np.uint8)
    steps = first._core.steps()
    layers: dict[Layer, list[int]] = defaultdict(list)
    for i, step in enumerate(steps):
        layers[(step["op"], step["input"], step["output"], step["kernel"])].append(i)
    for engine in engines.values():
        engine.run(image)
    seconds: dict[str, list[list[float]]] = {isa: [] for isa in isas}
    plain: dict[Layer, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for isa, engine in engines.items():
            seconds[isa].append(engine._core.time_steps(image, 1)[0][1:])
        for layer in layers:
            if layer[0] == "bconv":
                _, (cin, _, _), (cout, oh, ow), (kh, kw) = layer
                words = -(-kh * kw * cin // 64)
                plain[layer].append(_core.time_popcount(oh * ow, cout, words))
    rows = []
    for isa in isas:
        times = np.asarray(seconds[isa])
        for layer, indices in layers.items():
            op, _, _, kernel = layer
            each = times[:, indices].mean(axis=1)
            ratio = np.asarray(plain[layer]) / each if op == "bconv" else None
            shape = f"{_dims(layer[1])} -> {_dims(layer[2])}, {_dims(kernel)}"
            rows.append(_row(network, op, shape, len(indices), isa, each, steps[indices[0]]["macs"], ratio))
        binary = [i for layer, indices in layers.items() if layer[0] == "bconv" for i in indices]
        total = times[:, binary].sum(axis=1)
        all_plain = sum(len(layers[layer]) * np.asarray(t) for layer, t in plain.items())
        macs = sum(steps[i]["macs"] for i in binary)
        rows.append(_row(network, "bconv", "all", len(binary), isa, total, macs, all_plain / total))
    return rows


def _row(
    network: str, op: str, shape: str, layers: int, isa: str, seconds: np.ndarray, macs: float, ratio: Any
) -> dict[str, Any]:
    us = spread(1e6 * seconds)
    row: dict[str, Any] = {"network": network, "op": op, "shape": shape, "layers": layers, "isa": isa}
    row.update(us=us["median"], p10=us["p10"], p90=us["p90"], gmacs=macs / us["median"] / 1e3)
    row["popcnt"] = None if ratio is None else float(np.median(ratio))
    return row


def _dims(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


if __name__ == "__main__":
    sys.exit(main(None))
