"""What is timed: our engine and the peers that give the right logits, each with one network, ready to be called."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ovsw import Engine
from ovsw import format as bnn
from ovsw._version import __version__
from ovsw.bench.measure import Bar, Latency
from ovsw.bench.peers import REFERENCE, Peer, Runner
from ovsw.bench.peers.base import batches, error, fault, one_line
from ovsw.bench.result import OURS, Row, Skipped
from ovsw.bench.topology import NETWORKS

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

    def row(self, parameters: int | None, latency: Latency, ours: Latency | None) -> Row:
        """As results have it. A 1-bit network is as large as its file, others as papers count."""
        bits = BITS[self.precision]
        size = self.file_mb if bits == 1 else None if parameters is None else parameters * bits / 8e6
        same = ("network", "engine", "precision", "version", "threads", "batch", "file_mb", "check", "like", "isa")
        about = {key: getattr(self, key) for key in same}
        ratio = None if ours is None else latency.over(ours)
        return Row(**about, wa=f"{bits}/{bits}", size_mb=size, latency_ms=latency, ratio=ratio)


@dataclass
class Ours:
    """Our engine with a file, and what all engines are shown: uint8 (n, h, w, 3)."""

    entry: Entry
    engine: Engine
    pixels: np.ndarray


def pictures(engine: Engine, image: str | None, batch: int) -> np.ndarray:
    """uint8 (n, h, w, 3): `batch` times the image, or as much noise."""
    c, h, w = engine.input_shape
    if image is None:
        return np.random.default_rng(0).integers(0, 256, (batch, h, w, c), np.uint8)
    return np.repeat(engine.batch(image), batch, axis=0)


def ours(
    network: str,
    path: Path,
    threads: int,
    isa: str | None,
    image: str | None,
    batch: int,
    like: str | None,
    limit: int | None = None,
) -> Ours:
    """Our engine with this file, from uint8 pixels to logits."""
    engine = Engine(path, threads=threads, isa=isa, memory_limit=limit)
    pixels = pictures(engine, image, batch)
    given = pixels[0] if batch == 1 else pixels
    about = (network, OURS, "1-bit", __version__, engine.numerics, [path], threads, given.shape)
    return Ours(Entry(*about, partial(engine.run, given), like, engine.isa), engine, pixels)


def kin(path: Path) -> str | None:
    """Which of the networks that peers know a user's file has the shape of, as far as it says."""
    model = bnn.read(path)
    match = re.match(r"[a-z]+[0-9]+", str(model.metadata.get("arch", "")).lower())
    name = match[0] if match else ""
    return name if name in NETWORKS and NETWORKS[name].input.shape[1:] == model.values[0].shape[1:] else None


def theirs(
    network: str, peers: list[Peer], judge: Peer | None, threads: int, folder: Path, shown: np.ndarray, progress: Bar
) -> tuple[list[Entry], list[Skipped]]:
    """The peers that give the judge's logits, and why others are left out (also said, as it happens)."""
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    batch = len(shown)
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
            skipped.append(Skipped(peer.name, network, why))
            progress.say(f"{peer.name}, {network}: {why}")
    return entries, skipped


def judged(peer: Peer, logits: np.ndarray, right: np.ndarray | None) -> str:
    """How far the peer's logits are from the judge's, in words; raises ValueError if that is too far."""
    if not peer.comparable:
        return "other weights"
    if peer is REFERENCE:
        return "the judge"
    if right is None:
        return f"unchecked: no {REFERENCE.name}"
    wrong = fault(logits, right, peer.precision)
    if wrong:
        raise ValueError(wrong)
    return f"within {error(logits, right):.1g}"


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
