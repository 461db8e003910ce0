"""Trained networks that come with the package.

    from ovsw import zoo
    zoo.load("cresnet20-cifar10").classify("cat.jpg")

`data/zoo/index.json` records the origin and the accuracy of each file. A file's name contains the start of its
checksum, so the index, which is replaced atomically, always names files that exist.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.engine import Engine
from ovsw.labels import load_labels

DEFAULT = "cresnet20-cifar10"
NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
INDEX = "index.json"
FOLDER = Path(__file__).parent / "data" / "zoo"
_PICTURES = Path(__file__).parent / "data" / "cifar10"
NOISE_IMAGES = 100  # images


@dataclass(frozen=True)
class EarlierRun:
    """A run of `ovsw-train` that a later one started from; `accuracy` is its last one in PyTorch, in percent.

    `teacher` is the network that it was distilled from, if any.
    """

    recipe: str
    settings: tuple[str, ...]
    seed: int
    epochs: int
    accuracy: float
    teacher: str = ""


@dataclass(frozen=True)
class Entry:
    """A network in the index.

    Attributes:
        right, right_pytorch: right answers on the `images` of the `test_set`, of the file in the engine and of the
            checkpoint that it was exported from.
        right_by_class, images_by_class: the same in the engine, for each of the `classes`.
        mistakes: the most frequent ones, as what it was, what was answered, and how often.
        ms, machine: latency of one image on one thread, the median, and where it was measured.
        before: the runs that this one continues, the first one first.
        recipe, settings, seed: what to train with, as `ovsw-train RECIPE --set SETTING ... --seed SEED`.
        teacher: the network that it was distilled from, if any.
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
    input: tuple[int, ...]
    classes: tuple[str, ...]
    test_set: str
    images: int
    right: int
    right_pytorch: int
    right_by_class: tuple[int, ...]
    images_by_class: tuple[int, ...]
    mistakes: tuple[tuple[str, str, int], ...]
    ms: float
    machine: str
    before: tuple[EarlierRun, ...]
    recipe: str
    settings: tuple[str, ...]
    seed: int
    epoch: int
    epochs: int
    deployed_epochs: int
    date: str
    logits: str
    teacher: str = ""

    @property
    def accuracy(self) -> float:
        """The share of right answers in the engine."""
        return self.right / self.images

    @property
    def about(self) -> str:
        """One line on accuracy and classes."""
        score = f"right on {self.accuracy:.2%} of the {self.images:,} test images of {self.test_set}"
        return f"{self.name}, {score}; it knows {len(self.classes)} classes: {', '.join(self.classes)}"


def names() -> list[str]:
    """The names of all networks."""
    return list(read_index(FOLDER))


def known(name: str) -> bool:
    """Whether there is a network of this name; the index is only read for what can be a name."""
    return NAME.fullmatch(name) is not None and name in names()


def entry(name: str) -> Entry:
    """The entry of a network. Raises ValueError for an unknown name."""
    entries = read_index(FOLDER)
    if name not in entries:
        close = difflib.get_close_matches(name, entries, 1, 0.4)
        hint = f", did you mean '{close[0]}'?" if close else f"; there are {', '.join(entries)}"
        raise ValueError(f"no network '{name}' in the zoo{hint}")
    return entries[name]


def path(name: str) -> Path:
    """A network's file, its checksum verified. Raises ValueError for an unknown name and for a damaged file."""
    network = entry(name)
    file = FOLDER / network.file
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != network.sha256:
        raise ValueError(
            f"{file}: is damaged, {len(data):,} bytes with the SHA-256 {digest}, expected {network.bytes:,} bytes "
            f"with {network.sha256}"
        )
    return file


def checkpoint(name: str = DEFAULT) -> Path:
    """A network's weights before they were packed, as a checkpoint to train on from: `ovsw-train --init`.

    Binary weights are bfloat16 there, with their signs; all others are float32. Raises ValueError for an unknown name.
    """
    return FOLDER / f"{entry(name).name}.pth"


def resolve(model: str) -> tuple[Path, Entry | None]:
    """The file of a model, which is named by its path or as a network of the zoo; with the entry of the latter."""
    return (path(model), entry(model)) if known(model) else (Path(model), None)


def load(name: str = DEFAULT, **options: Any) -> Engine:
    """An engine with a network of the zoo, its checksum verified; `options` are those of `Engine`."""
    return Engine(path(name), **options)


def pictures() -> dict[str, Path]:
    """By class, a test image of each of CIFAR-10's classes; data/cifar10/SOURCES.md says how they were drawn."""
    return {label: _PICTURES / f"{label}.png" for label in load_labels("cifar10", 10)}


def check_images(engine: Engine) -> np.ndarray:
    """The pictures and a hundred images of noise as pixels: the same bytes on every machine and in every version."""
    channels, height, width = engine.input_shape
    size = height * width * channels
    noise = np.frombuffer(hashlib.shake_256(b"ovsw zoo").digest(NOISE_IMAGES * size), np.uint8)
    return np.concatenate([engine.batch(list(pictures().values())), noise.reshape(-1, height, width, channels)])


def logits_checksum(engine: Engine) -> str:
    """SHA-256 of the logits of `check_images`, little-endian."""
    return hashlib.sha256(engine.run(check_images(engine)).astype("<f4").tobytes()).hexdigest()


def check(name: str, **options: Any) -> str:
    """Checks that this machine computes the logits of the index, bit for bit; returns the kernel table that it used.

    Raises ValueError.
    """
    engine, expected = load(name, **options), entry(name).logits
    digest = logits_checksum(engine)
    if digest != expected:
        raise ValueError(f"{name}: its logits on {engine.isa} have the SHA-256 {digest}, expected {expected}")
    return engine.isa


def read_index(folder: Path) -> dict[str, Entry]:
    """All entries by name. Raises ValueError."""
    source = folder / INDEX
    try:
        rows = [_frozen(row) for row in json.loads(source.read_text(encoding="utf-8"))]
        entries = [Entry(**{**row, "before": tuple(EarlierRun(**run) for run in row["before"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"{source}: not an index of networks ({type(e).__name__}: {e})") from None
    return {network.name: network for network in entries}


def _frozen(value: Any) -> Any:
    """With tuples instead of lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def index_bytes(entries: dict[str, Entry]) -> bytes:
    """The index file of these entries, sorted by name."""
    rows = [dataclasses.asdict(entries[name]) for name in sorted(entries)]
    return (json.dumps(rows, indent=2) + "\n").encode()
