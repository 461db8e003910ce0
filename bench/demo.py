"""`ovsw-demo`: the whole runtime in one command.

A trained network classifies real pictures. Then it is timed together with two large networks with random weights, which
are built without torch.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ovsw import Engine, zoo
from ovsw import format as bnn
from ovsw.bench.measure import interleaved
from ovsw.bench.random_nets import STEMS, random_resnet
from ovsw.bench.topology import IMAGENET
from ovsw.commands.base import UsageError, add_engine, command, new_file, whole
from ovsw.commands.show import ClassifiedImage, beside, colours, html_page, terminal_picture
from ovsw.util.files import replace_file
from ovsw.util.text import table, visible

PHOTO = Path(__file__).parent / "data" / "cat.jpg"
_TOP = 3
_PICTURE, _CELL = 16, 40  # columns of a terminal


@dataclass
class Answer:
    """The answers of a network to a picture; `truth` is "" if it is unknown."""

    path: str
    truth: str
    top: list[tuple[str, float]]

    @property
    def verdict(self) -> str:
        return "" if not self.truth else "right" if self.top[0][0] == self.truth else "wrong"

    @property
    def note(self) -> str:
        return f"{self.verdict}: it is a picture of class {self.truth}" if self.truth else ""


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "image",
        metavar="IMG",
        nargs="?",
        help="a photo (default: ten test images of CIFAR-10, one of each class, and a cat)",
    )
    p.add_argument("--html", metavar="FILE", type=new_file, help="write the pictures with their answers as a web page")
    add_engine(p)
    p.add_argument("--repeat", metavar="N", type=whole(1), default=30, help="runs to time (default: %(default)s)")
    p.add_argument("--save", metavar="DIR", help="keep the .bnn files of the random networks in this folder")
    p.add_argument("--profile", action="store_true", help="show the time of each step of the random networks")


@command(
    "ovsw-demo",
    "Classify pictures with a trained network of CIFAR-10's classes, then time it beside binarized ResNet18 and "
    "ResNet34 with random weights.",
    options,
    examples=("", "my-photo.jpg --html answers.html", "--threads 2 --profile"),
)
def main(args: argparse.Namespace) -> int:
    if args.save and not Path(args.save).is_dir():
        raise UsageError(f"--save: the folder {args.save} does not exist")
    entry, engine = zoo.entry(zoo.DEFAULT), zoo.load(zoo.DEFAULT, threads=args.threads, isa=args.isa)
    classified = answers(engine, {args.image: ""} if args.image else pictures())
    print(f"{entry.about}\n")
    print(as_pictures(classified, shutil.get_terminal_size().columns) if colours(sys.stdout) else as_table(classified))
    if args.html:
        rows = [ClassifiedImage(Path(a.path).name, a.path, a.top, a.note) for a in classified]
        replace_file(args.html, html_page(rows, entry.about).encode())
        print(f"\nwrote {args.html}")
    times(engine, args)
    return 0


def pictures() -> dict[str, str]:
    """The class of each bundled picture by its path: one test image per class, and a photo."""
    return {**{str(path): label for label, path in zoo.pictures().items()}, str(PHOTO): "cat"}


def answers(engine: Engine, truths: dict[str, str]) -> list[Answer]:
    """The answers of a network to pictures that it was not trained with."""
    return [Answer(path, truth, engine.classify(path, _TOP)) for path, truth in truths.items()]


def as_table(classified: list[Answer]) -> str:
    answers = [[f"{100 * p:3.0f} %  {label}" for label, p in a.top] for a in classified]
    names, best = [Path(a.path).name for a in classified], ("answer", "second", "third")
    if not any(a.truth for a in classified):
        return table(("picture", *best), [(name, *top) for name, top in zip(names, answers)])
    rows = [(name, a.truth, a.verdict, *top) for name, a, top in zip(names, classified, answers)]
    return f"{table(('picture', 'is', 'verdict', *best), rows)}\n\n{score(classified)}"


def as_pictures(classified: list[Answer], columns: int) -> str:
    """Each picture with its answers, as many in a row as fit into `columns` columns."""
    cells = [_cell(a) for a in classified]
    across = max(1, columns // _CELL)
    lines = []
    for start in range(0, len(cells), across):
        row = cells[start : start + across]
        lines += ["".join(cell[i] for cell in row).rstrip() for i in range(max(map(len, row)))] + [""]
    return "\n".join([*lines, *([score(classified)] if any(a.truth for a in classified) else [])])


def _cell(a: Answer) -> list[str]:
    """Lines that take `_CELL` columns each."""
    room = _CELL - _PICTURE - 2
    answers = [f"{100 * p:3.0f} %  {visible(label)}"[: room - 2] for label, p in a.top]
    texts = ["", visible(Path(a.path).name, room - 2), "", *answers, "", a.verdict]
    return beside(terminal_picture(Path(a.path), _PICTURE), texts, _PICTURE, room)


def score(classified: Iterable[Answer]) -> str:
    verdicts = [a.verdict for a in classified]
    return f"{verdicts.count('right')} of {len(verdicts)} right"


def times(trained: Engine, args: argparse.Namespace) -> None:
    """Times the trained network and large ones with random weights, whose answers are meaningless."""
    image = args.image or str(PHOTO)
    rows = [_timed(zoo.DEFAULT, zoo.entry(zoo.DEFAULT).bytes, trained, image, args)]
    for name in IMAGENET:
        data = bnn.to_bytes(random_resnet(name, numerics="integer", stem=STEMS[0]))
        if args.save:
            replace_file(Path(args.save) / f"{name}.bnn", data)
        engine = Engine(data, threads=args.threads, isa=args.isa)
        rows.append(_timed(f"{name}, random weights", len(data), engine, image, args))
        if args.profile:
            print(f"\n{name}\n{engine.profile(image)}")
    how = f"isa {trained.isa}, {trained.threads} thread(s), {args.repeat} runs"
    print(f"\nTime for one image, {visible(Path(image).name)}, from pixels to answer: {how}\n")
    print(table(("network", "pixels", "file MB", "median ms", "best ms"), rows, right=(1, 2, 3, 4)))


def _timed(name: str, size: int, engine: Engine, image: str, args: argparse.Namespace) -> tuple[str, ...]:
    pixels = engine.batch(image)  # decoded once
    ms = interleaved({"": partial(engine.run, pixels)}, args.repeat)[""]
    _, height, width = engine.input_shape
    return name, f"{height}x{width}", f"{size / 1e6:.2f}", f"{np.median(ms):.2f}", f"{ms.min():.2f}"
