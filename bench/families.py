"""`ovsw-bench families`: networks of every method as an integer file, as a float file and in fp32 engines.

Each network gets random weights and is exported three times: both kinds of `.bnn`, and ONNX for the other engines. All
of them compute the same graph. They are timed in interleaved rounds, and ratios are those within a round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw import Engine
from ovsw.bench.measure import Spread, interleaved, spread
from ovsw.bench.peers import by_name
from ovsw.bench.subcommand import add_options, print_rows
from ovsw.commands.base import add_engine, command

FAMILIES = ("ResNet18", "ReActResNet18", "VGGSmall", "cResNet18", "AdaBin_cResNet18", "cResNet20", "RBNN_cResNet20")
PEERS = ("onnxruntime-fp32", "openvino-fp32")
OURS = "integer"


@dataclass
class FamilyTime:
    """One way to run a network; `over` is its time over that of the integer file, `yardstick` over that of ResNet18."""

    network: str
    engine: str
    ms: Spread
    over: Spread
    yardstick: Spread | None


def options(p: argparse.ArgumentParser) -> None:
    add_options(p, FAMILIES, rounds=30)
    add_engine(p)


@command("ovsw-bench families", "Time networks of every method: integer files, float files, fp32 engines.", options)
def main(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in args.networks for row in _rows(name, Path(folder), args)]
    cells = [
        (r.network, r.engine, *r.ms.cells(3), *r.over.cells(), f"{r.yardstick.median:.2f}" if r.yardstick else "-")
        for r in rows
    ]
    note = f"{args.threads} thread(s), {args.rounds} interleaved rounds; x: median ratio to the integer file in a round"
    head = ("network", "engine", "median ms", "p10 .. p90", "x", "p10 .. p90", "x ResNet18")
    return print_rows(args.json, rows, note, head, cells, right=(2, 4, 6))


def _rows(name: str, folder: Path, args: argparse.Namespace) -> list[FamilyTime]:
    calls = _calls(name, folder, args.threads, args.isa)
    if name != FAMILIES[0] and FAMILIES[0] in args.networks:
        calls["yardstick"] = _calls(FAMILIES[0], folder, args.threads, args.isa)[OURS]
    times = interleaved(calls, args.rounds)
    base, yardstick = times[OURS], times.pop("yardstick", None)
    return [
        FamilyTime(name, engine, spread(t), spread(t / base), None if yardstick is None else spread(t / yardstick))
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
    common: dict[str, Any] = {"mean": spec.input.mean, "std": spec.input.std, "zero_weights": "plus", "verify": 1}
    for what, numerics in (("integer.bnn", "integer"), ("float.bnn", "float"), ("onnx", "float")):
        export_module(model, (1, *spec.input.shape), files[what], numerics=numerics, **common)


def _perturb(norm: Any) -> None:
    """Statistics as after some training, for sums of a few hundred signs."""
    import torch

    with torch.no_grad():
        norm.running_mean.normal_(0.0, 0.3)
        norm.running_var.uniform_(100.0, 400.0)
        norm.weight.normal_(1.0, 0.3)
        norm.bias.normal_(0.0, 0.3)
