"""Draws the demo's pictures, one test image of each class of CIFAR-10. From the root of the repository:

    python tools/pictures.py --images DIR

The seed was chosen once, before anybody saw what a network says of them. Logits of the zoo's index are of these
pictures, too: run tools/zoo.py afterwards.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from pathlib import Path

from PIL import Image

from ovsw.commands.base import command
from ovsw.datasets import MemorySet, open_split
from ovsw.util.files import replace_file

SEED = 0
FOLDER = Path("python/ovsw/data/cifar10")
ABOUT = """\
One test image of each class of CIFAR-10 (Alex Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*,
2009; freely distributed for research), pixel for pixel. They were drawn by `tools/pictures.py` with the seed {seed};
nobody chose them by what a network says of them.

| picture | number in the test set |
|---|---:|
"""


def drawn(labels: list[int], classes: int) -> list[int]:
    """Of each class the number of one image. `random()` gives the same numbers in every version of Python."""
    rng = random.Random(SEED)
    members = [[number for number, label in enumerate(labels) if label == c] for c in range(classes)]
    return [numbers[int(rng.random() * len(numbers))] for numbers in members]


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--images", metavar="DIR", type=Path, required=True, help="CIFAR-10 in any form that ovsw-train reads"
    )


@command("tools/pictures.py", "Draw the demo's pictures from CIFAR-10's test images.", options)
def main(args: argparse.Namespace) -> int:
    if not FOLDER.is_dir():
        raise ValueError(f"{FOLDER}: no such folder; run this in the root of the repository")
    images = open_split("cifar10", args.images, "test")
    assert isinstance(images, MemorySet)
    text = ABOUT.format(seed=SEED)
    for name, number in zip(images.names, drawn(images.labels.tolist(), len(images.names))):
        data = io.BytesIO()
        Image.fromarray(images.images[number].numpy().transpose(1, 2, 0)).save(data, "PNG", optimize=True)
        replace_file(FOLDER / f"{name}.png", data.getvalue())
        text += f"| {name} | {number} |\n"
    replace_file(FOLDER / "SOURCES.md", text.encode())
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
