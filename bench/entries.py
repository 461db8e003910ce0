"""What is timed: our engine and the peers that give the right logits, each with one network, ready to be called."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovsw import Engine
from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.bench.measure import Progress
from ovsw.bench.peers import REFERENCE, Peer, Runner
from ovsw.bench.peers.base import SIDES, batches, error, fault, one_line

OURS = "ovsw"
BITS = {"1-bit": 1, "int8": 8, "fp16": 16, "bf16": 16, "fp32": 32}


@dataclass
class Entry:
    """One engine at one precision with one network.

    Attributes:
        call: what is timed; one that gives back a float has timed itself, in seconds.
        check: what is known about its logits.
        files: what it has loaded.
        shape: that of the images of a call.
        like: the network it takes part in the comparison of, for a user's own file.
        isa: our kernel table.
    """

    network: str
    engine: str
    precision: str
    version: str
    check: str
    files: list[Path]
    threads: int
    shape: tuple[int, ...]
    call: Callable[[], object]
    like: str | None = None
    isa: str | None = None

    @property
    def name(self) -> str:
        return f"{self.network} {self.engine} {self.precision}"

    @property
    def batch(self) -> int:
        return 1 if len(self.shape) == 3 else self.shape[0]

    @property
    def file_mb(self) -> float:
        return sum(path.stat().st_size for path in self.files) / 1e6

    def row(self, parameters: int | None) -> dict[str, Any]:
        """As results have it, but for the times. A 1-bit network is as large as its file, others as papers count."""
        bits = BITS[self.precision]
        size = self.file_mb if bits == 1 else None if parameters is None else parameters * bits / 8e6
        row: dict[str, Any] = {
            "network": self.network,
            "wa": f"{bits}/{bits}",
            "engine": self.engine,
            "precision": self.precision,
        }
        row.update(version=self.version, threads=self.threads, batch=self.batch)
        row.update(size_mb=size, file_mb=self.file_mb, check=self.check)
        row.update({key: value for key, value in (("like", self.like), ("isa", self.isa)) if value is not None})
        return row


@dataclass
class Input:
    """The pictures that all engines get: uint8 (n, h, w, 3), and as the float networks want them."""

    pixels: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    normalised: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        scaled = (self.pixels.astype(np.float32) / 255.0 - self.mean) / self.std
        self.normalised = np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def pictures(engine: Engine, model: bnn.Model, image: str | None, batch: int) -> Input:
    """`batch` times the image, or as much noise."""
    c, h, w = engine.input_shape
    if image is None:
        pixels = np.random.default_rng(0).integers(0, 256, (batch, h, w, c), np.uint8)
    else:
        pixels = np.repeat(engine._batch(image)[0], batch, axis=0)
    return Input(pixels, *(model.tensors[i].array.astype(np.float32) for i in (model.mean, model.std)))


def ours(
    network: str, path: Path, threads: int, isa: str | None, image: str | None, batch: int, like: str | None
) -> tuple[Entry, Input]:
    """Our engine with this file, from uint8 pixels to logits."""
    engine = Engine(path, threads=threads, isa=isa)
    given = pictures(engine, bnn.read(path), image, batch)
    pixels = given.pixels[0] if batch == 1 else given.pixels

    def call() -> None:
        engine.run(pixels)

    about = (network, OURS, "1-bit", __version__, engine.numerics, [path], threads, pixels.shape)
    return Entry(*about, call, like, engine.isa), given


def kin(path: Path) -> str | None:
    """Which of the networks that peers know a user's file has the shape of, as far as it says."""
    model = bnn.read(path)
    found = re.match(r"[a-z]+[0-9]+", str(model.metadata.get("arch", "")).lower())
    name = found[0] if found else ""
    value = model.values[model.ops[0].input]
    return name if SIDES.get(name) == value.shape[1] == value.shape[2] else None


def theirs(
    network: str,
    peers: list[Peer],
    judge: Peer | None,
    threads: int,
    batch: int,
    folder: Path,
    shown: np.ndarray,
    progress: Progress,
) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The peers that give the judge's logits, and why others are left out (also said, as it happens)."""
    entries: list[Entry] = []
    skipped: list[dict[str, Any]] = []
    tests = batches(network, batch, 4, seed=0)
    right = None
    if judge is not None:
        with contextlib.suppress(Exception), quiet():  # it gets its own line when its turn comes
            right = _outputs(judge.load(judge.files(network, batch, folder), threads), tests)
    for i, peer in enumerate(peers):
        progress(f"{network}: loading {peer.name}", i / len(peers))
        try:
            if network not in peer.networks:
                raise ValueError("has no such network")
            with quiet():
                files = peer.files(network, batch, folder)
                run = peer.load(files, threads)
                check = judged(peer, _outputs(run, tests), right)
            about = (network, peer.engine, peer.precision, peer.version(), check, files, threads, shown.shape)
            entries.append(Entry(*about, _timed(run, shown)))
        except Exception as e:  # whatever another engine may raise
            why = one_line(e)
            skipped.append({"peer": peer.name, "network": network, "why": why})
            progress.say(f"{peer.name}, {network}: {why}")
    return entries, skipped


def judged(peer: Peer, found: np.ndarray, right: np.ndarray | None) -> str:
    """How far the peer's logits are from the judge's, in words; raises ValueError if that is too far."""
    if not peer.comparable:
        return "other weights"
    if peer is REFERENCE:
        return "the judge"
    if right is None:
        return f"unchecked: no {REFERENCE.name}"
    wrong = fault(found, right, peer.precision)
    if wrong:
        raise ValueError(wrong)
    return f"within {error(found, right):.1g}"


def _outputs(run: Runner, shown: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.array(run(batch)) for batch in shown])


def _timed(run: Runner, shown: np.ndarray) -> Callable[[], object]:
    def call() -> object:
        run(shown)
        return getattr(run, "seconds", None)

    return call


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, warnings and advice of quantisers and compilers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
