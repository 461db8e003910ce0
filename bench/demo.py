"""`ovsw-demo`: the whole runtime in one command. A trained network says what is on real pictures; then two large ones
with random weights, made without torch, show what time they take.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.bench.measure import interleaved
from ovsw.bench.random_nets import random_resnet
from ovsw.cli import UsageError, add_engine, command, whole
from ovsw.files import replace_file
from ovsw.text import table, visible

NETWORKS = ("resnet18", "resnet34")
PHOTO = Path(__file__).parent / "data" / "cat.jpg"


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "image",
        metavar="IMG",
        nargs="?",
        help="a photo (default: ten test images of CIFAR-10, one of each class, and a cat)",
    )
    add_engine(p)
    p.add_argument("--repeat", metavar="N", type=whole(1), default=30, help="runs to time (default: %(default)s)")
    p.add_argument("--save", metavar="DIR", help="keep the .bnn files of the random networks in this folder")
    p.add_argument("--profile", action="store_true", help="show the time of each step of these")


@command(
    "ovsw-demo",
    "Classify pictures with a trained network of CIFAR-10's classes, then show latency and size of binarized ResNet18 "
    "and ResNet34 with random weights.",
    options,
    examples=("", "my-photo.jpg", "--threads 2 --profile"),
)
def main(args: argparse.Namespace) -> int:
    if args.save and not Path(args.save).is_dir():
        raise UsageError(f"--save: the folder {args.save} does not exist")
    trained(args)
    random(args)
    return 0


def trained(args: argparse.Namespace) -> None:
    """What the zoo's default network says of pictures that it was not trained with."""
    entry, engine = zoo.entry(zoo.DEFAULT), zoo.load(zoo.DEFAULT, threads=args.threads, isa=args.isa)
    pictures = {args.image: "-"} if args.image else _pictures()
    rows = []
    for path, truth in pictures.items():
        label, probability = engine.classify(path, 1)[0]
        verdict = "-" if truth == "-" else "right" if label == truth else "wrong"
        median, _ = _ms(engine, path, args)
        rows.append((Path(path).name, truth, label, f"{100 * probability:.0f} %", verdict, f"{median:.3f}"))
    print(f"{entry.about}\n{_how(engine, args)}\n")
    print(table(("picture", "is", "answer", "sure", "verdict", "median ms"), rows, right=(3, 5)))
    if not args.image:
        print(f"\n{sum(row[4] == 'right' for row in rows)} of {len(rows)} right")


def _pictures() -> dict[str, str]:
    """By path, what is on the bundled pictures."""
    return {**{str(path): label for label, path in zoo.pictures().items()}, str(PHOTO): "cat"}


def random(args: argparse.Namespace) -> None:
    """What large networks take, whose answers mean nothing."""
    image = args.image or str(PHOTO)
    rows = []
    for name in NETWORKS:
        data = bnn.to_bytes(random_resnet(name, numerics="integer"))
        if args.save:
            replace_file(Path(args.save) / f"{name}.bnn", data)
        engine = Engine(data, threads=args.threads, isa=args.isa)
        label, probability = engine.classify(image, 1)[0]
        median, best = _ms(engine, image, args)
        answer = f"{label} ({100 * probability:.0f} %)"
        rows.append((name, f"{len(data) / 1e6:.2f}", f"{median:.2f}", f"{best:.2f}", answer))
        if args.profile:
            print(f"\n{name}\n{engine.profile(image)}")
    print(f"\nImageNet's networks with random weights, {visible(Path(image).name)}, {_how(engine, args)}\n")
    print(table(("network", "file MB", "median ms", "best ms", "answer (means nothing)"), rows, right=(1, 2, 3)))


def _ms(engine: Engine, image: str, args: argparse.Namespace) -> tuple[float, float]:
    """Median and least of the milliseconds from pixels to logits."""
    pixels = engine.batch(image)  # decoded once
    ms = interleaved({"": partial(engine.run, pixels)}, args.repeat)[""]
    return float(np.median(ms)), float(ms.min())


def _how(engine: Engine, args: argparse.Namespace) -> str:
    return f"isa {engine.isa}, {engine.threads} thread(s), {args.repeat} runs"


if __name__ == "__main__":
    sys.exit(main(None))
