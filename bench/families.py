"""`python -m ovsw.bench.families`: networks of every method as integer file, as float file and in fp32 engines.

Each network is made with random weights and exported three times, one of them as ONNX, which the peers run: all compute
the same graph. Everything is timed in turns; ratios are those within a turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw import Engine
from ovsw.bench.measure import Spread, interleaved, spread
from ovsw.bench.peers import by_name
from ovsw.commands.base import command
from ovsw.util.text import table

NETWORKS = ("ResNet18", "ReActResNet18", "VGGSmall", "cResNet18", "AdaBin_cResNet18", "cResNet20", "RBNN_cResNet20")
PEERS = ("onnxruntime-fp32", "openvino-fp32")
OURS = "integer"


@dataclass
class Row:
    """One way to run a network; `over` is its time over that of the integer file, `yardstick` over that of ResNet18."""

    network: str
    engine: str
    ms: Spread
    over: Spread
    yardstick: Spread | None


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("networks", metavar="NET", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    p.add_argument("--threads", metavar="N", type=int, default=1, help="default: %(default)s")
    p.add_argument("--rounds", metavar="N", type=int, default=30, help="turns (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="our kernel table (default: the best that this CPU supports)")
    p.add_argument("--json", action="store_true", help="print JSON")


@command(
    "python -m ovsw.bench.families", "Time integer files beside float files and fp32 engines, interleaved.", options
)
def main(args: argparse.Namespace) -> int:
    if min(args.threads, args.rounds) < 1:
        raise ValueError("--threads and --rounds must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in args.networks for row in _rows(name, Path(folder), args)]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    cells = [
        (r.network, r.engine, f"{r.ms.median:.3f}", r.ms.range(3), f"{r.over.median:.2f}", r.over.range())
        + (f"{r.yardstick.median:.2f}" if r.yardstick else "-",)
        for r in rows
    ]
    print(
        f"{args.threads} thread(s), {args.rounds} interleaved rounds; x: median ratio to the integer file in a round\n"
    )
    head = ("network", "engine", "median ms", "p10 .. p90", "x", "p10 .. p90", "x ResNet18")
    print(table(head, cells, right=(2, 4, 6)))
    return 0


def _rows(name: str, folder: Path, args: argparse.Namespace) -> list[Row]:
    calls = _calls(name, folder, args.threads, args.isa)
    if name != NETWORKS[0] and NETWORKS[0] in args.networks:
        calls["yardstick"] = _calls(NETWORKS[0], folder, args.threads, args.isa)[OURS]
    times = interleaved(calls, args.rounds)
    base, yardstick = times[OURS], times.pop("yardstick", None)
    return [
        Row(name, engine, spread(t), spread(t / base), None if yardstick is None else spread(t / yardstick))
        for engine, t in times.items()
    ]


def _calls(name: str, folder: Path, threads: int, isa: str | None) -> dict[str, Callable[[], object]]:
    """What runs one image through each file of a network, which are made the first time."""
    files = {what: folder / f"{name}.{what}" for what in ("integer.bnn", "float.bnn", "onnx")}
    if not files["onnx"].exists():
        _export(name, files)
    integer, plain = (Engine(files[f"{what}.bnn"], threads=threads, isa=isa) for what in (OURS, "float"))
    channels, height, width = integer.input_shape
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    image = integer.input.normalised(pixels[None])
    calls: dict[str, Callable[[], object]] = {OURS: lambda: integer.run(pixels), "float": lambda: plain.run(pixels)}
    for peer in map(by_name, PEERS):
        if peer.missing() is None:
            run = peer.load([files["onnx"]], threads)
            calls[peer.name] = lambda run=run: run(image)  # type: ignore[misc]
    return calls


def _export(name: str, files: dict[str, Path]) -> None:
    import torch

    from ovsw.export import export_module
    from ovsw.networks import network
    from ovsw.nn import create

    spec = network(name)
    torch.manual_seed(0)
    model = create(spec.name)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            _perturb(module)
    given = spec.input
    common: dict[str, Any] = {"mean": given.mean, "std": given.std, "zero_weights": "plus", "verify": 1}
    for what, numerics in (("integer.bnn", "integer"), ("float.bnn", "float"), ("onnx", "float")):
        export_module(model, (1, *given.shape), files[what], numerics=numerics, **common)


def _perturb(norm: Any) -> None:
    """Statistics as after some training, for sums of a few hundred signs."""
    import torch

    with torch.no_grad():
        norm.running_mean.normal_(0.0, 0.3)
        norm.running_var.uniform_(100.0, 400.0)
        norm.weight.normal_(1.0, 0.3)
        norm.bias.normal_(0.0, 0.3)


if __name__ == "__main__":
    sys.exit(main(None))
