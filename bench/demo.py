"""`ovsw-demo`: the whole runtime in one command, with networks of random weights and a bundled photo."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np

from ovsw import Engine
from ovsw import format as bnn
from ovsw.bench.measure import interleaved
from ovsw.bench.random_nets import random_resnet
from ovsw.cli import command
from ovsw.text import table

NETWORKS = ("resnet18", "resnet34")
PHOTO = Path(__file__).parent / "data" / "cat.jpg"


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("image", metavar="IMG", nargs="?", default=str(PHOTO), help="a photo (default: a bundled cat)")
    p.add_argument("--threads", metavar="N", type=int, default=1, help="threads (default: %(default)s)")
    p.add_argument("--isa", metavar="NAME", help="kernel table to use (default: the best for this CPU)")
    p.add_argument("--repeat", metavar="N", type=int, default=30, help="runs to time (default: %(default)s)")
    p.add_argument("--save", metavar="DIR", help="keep the .bnn files in this folder")
    p.add_argument("--profile", action="store_true", help="show the time of each step")


@command(
    "ovsw-demo", "Run binarized ResNet18 and ResNet34 with random weights on a photo; show latency and size.", options
)
def main(args: argparse.Namespace) -> int:
    if args.repeat < 1:
        raise ValueError(f"--repeat is {args.repeat}, expected at least 1")
    if args.save and not Path(args.save).is_dir():
        raise ValueError(f"--save: the folder {args.save} does not exist")
    rows = []
    for name in NETWORKS:
        data = bnn.to_bytes(random_resnet(name, numerics="integer"))
        if args.save:
            bnn.replace_file(Path(args.save) / f"{name}.bnn", data)
        engine = Engine(data, threads=args.threads, isa=args.isa)
        label, probability = engine.classify(args.image, 1)[0]
        pixels = engine.batch(args.image)  # decoded once
        ms = interleaved({name: partial(engine.run, pixels)}, args.repeat)[name]
        times = (f"{np.median(ms):.2f}", f"{ms.min():.2f}")
        rows.append((name, f"{len(data) / 1e6:.2f}", *times, f"{label} ({100 * probability:.0f} %)"))
        if args.profile:
            print(f"{name}\n{engine.profile(args.image)}\n")
    print(f"{args.image}, isa {engine.isa}, {engine.threads} thread(s), {args.repeat} runs, random weights\n")
    print(table(("network", "file MB", "median ms", "best ms", "answer (means nothing)"), rows, right=(1, 2, 3)))
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
