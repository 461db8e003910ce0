"""Trained networks that come with the package, and `ovsw-zoo`, which lists and checks them.

    from ovsw import zoo
    zoo.load("cresnet20-cifar10").classify("cat.jpg")

`data/zoo/index.json` says of each file where it comes from and what it can do. A file's name has the start of its
checksum, so that the index, which is replaced whole, names at every moment files that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.cli import command, offer
from ovsw.engine import Engine
from ovsw.labels import load_labels
from ovsw.text import table

DEFAULT = "cresnet20-cifar10"
NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
INDEX = "index.json"
FOLDER = Path(__file__).parent / "data" / "zoo"
_PICTURES = Path(__file__).parent / "data" / "cifar10"
_NOISE = 100  # images


@dataclass(frozen=True)
class Entry:
    """What the index says of a network.

    Attributes:
        right, right_pytorch: right answers on the `images` of the `test_set`, of the file in the engine and of the
            checkpoint that it was exported from.
        recipe, settings, seed: what to train with, as `ovsw-train RECIPE --set SETTING ... --seed SEED`.
        epoch, epochs: when the checkpoint was saved, and how long the run was meant to be.
        deployed_epochs: how many of them were trained in the arithmetic of the file.
        logits: SHA-256 of its float32 logits of `check_images`, the same on every machine.
    """

    name: str
    title: str
    file: str
    bytes: int
    sha256: str
    arch: str
    classes: tuple[str, ...]
    test_set: str
    images: int
    right: int
    right_pytorch: int
    recipe: str
    settings: tuple[str, ...]
    seed: int
    epoch: int
    epochs: int
    deployed_epochs: int
    date: str
    logits: str

    @property
    def accuracy(self) -> float:
        """The share of right answers in the engine."""
        return self.right / self.images

    @property
    def about(self) -> str:
        """One line on what answers can be expected."""
        score = f"right on {self.accuracy:.2%} of the {self.images:,} test images of {self.test_set}"
        return f"{self.name}, {score}; it knows {len(self.classes)} classes: {', '.join(self.classes)}"


def names() -> list[str]:
    """The networks there are."""
    return list(read_index(FOLDER))


def known(name: str) -> bool:
    """Whether there is a network of this name. Paths of files are told apart without the index."""
    return NAME.fullmatch(name) is not None and name in names()


def entry(name: str) -> Entry:
    """What is known of a network. Raises ValueError for an unknown name."""
    entries = read_index(FOLDER)
    if name not in entries:
        close = difflib.get_close_matches(name, entries, 1, 0.4)
        hint = f", did you mean '{close[0]}'?" if close else f"; there are {', '.join(entries)}"
        raise ValueError(f"no network '{name}' in the zoo{hint}")
    return entries[name]


def path(name: str) -> Path:
    """A network's file, its checksum verified."""
    found = entry(name)
    _read(found)
    return FOLDER / found.file


def load(name: str = DEFAULT, **options: Any) -> Engine:
    """An engine with a network of the zoo, its checksum verified; `options` are those of `Engine`."""
    return Engine(_read(entry(name)), **options)


def pictures() -> dict[str, Path]:
    """By class, the first test image of each of CIFAR-10's classes."""
    return {label: _PICTURES / f"{label}.png" for label in load_labels("cifar10", 10)}


def check_images(engine: Engine) -> np.ndarray:
    """The pictures and a hundred images of noise as pixels: the same bytes everywhere, for ever."""
    channels, height, width = engine.input_shape
    size = height * width * channels
    noise = np.frombuffer(hashlib.shake_256(b"ovsw zoo").digest(_NOISE * size), np.uint8)
    return np.concatenate([engine.batch(list(pictures().values())), noise.reshape(-1, height, width, channels)])


def logits_checksum(engine: Engine) -> str:
    """SHA-256 of the logits of `check_images`, little-endian."""
    return hashlib.sha256(engine.run(check_images(engine)).astype("<f4").tobytes()).hexdigest()


def check(name: str, **options: Any) -> str:
    """Proves that this machine computes what the index says, bit for bit; returns the kernels that it used.

    Raises ValueError.
    """
    engine, expected = load(name, **options), entry(name).logits
    found = logits_checksum(engine)
    if found != expected:
        raise ValueError(f"{name}: its logits on {engine.isa} have the SHA-256 {found}, expected {expected}")
    return engine.isa


def read_index(folder: Path) -> dict[str, Entry]:
    """All entries by name. Raises ValueError."""
    source = folder / INDEX
    try:
        found = [
            Entry(**{**row, "classes": tuple(row["classes"]), "settings": tuple(row["settings"])})
            for row in json.loads(source.read_text(encoding="utf-8"))
        ]
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"{source}: not an index of networks ({type(e).__name__}: {e})") from None
    return {row.name: row for row in found}


def index_bytes(entries: dict[str, Entry]) -> bytes:
    """The index file of these entries, sorted by name."""
    rows = [dataclasses.asdict(entries[name]) for name in sorted(entries)]
    return (json.dumps(rows, indent=2) + "\n").encode()


def _read(found: Entry) -> bytes:
    """A file's bytes, if they are those that the index means."""
    source = FOLDER / found.file
    data = source.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != found.sha256:
        raise ValueError(
            f"{source}: is damaged, {len(data):,} bytes with the SHA-256 {digest}, expected {found.bytes:,} bytes "
            f"with {found.sha256}"
        )
    return data


def options(p: argparse.ArgumentParser) -> None:
    offer(p.add_argument("names", metavar="NAME", nargs="*", help="networks to show (default: all)"), names)
    p.add_argument("--check", action="store_true", help="run them: are the logits those of the index, bit for bit?")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


@command(
    "ovsw-zoo",
    "List the trained networks that come with ovsw.",
    options,
    examples=("", "--check", "cresnet20-cifar10 --json"),
)
def main(args: argparse.Namespace) -> int:
    found = [entry(name) for name in args.names or names()]
    checked = {e.name: check(e.name) for e in found} if args.check else {}
    if args.json:
        extra = [{"accuracy": e.accuracy, **({"checked": checked[e.name]} if checked else {})} for e in found]
        print(json.dumps([{**dataclasses.asdict(e), **more} for e, more in zip(found, extra)], indent=2))
        return 0
    rows = [
        (e.name, f"{e.test_set}, {len(e.classes)} classes", f"{e.accuracy:.2%}", f"{e.bytes:,}")
        + (" ".join([e.recipe, *e.settings]), e.sha256[:16])
        for e in found
    ]
    print(table(("name", "task", "accuracy", "bytes", "recipe", "sha256"), rows, right=(2, 3)))
    for name, isa in checked.items():
        print(f"{name}: file intact, logits of {_NOISE + len(pictures())} images on {isa} are those of the index")
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
