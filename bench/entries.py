"""What is timed: our engine, and the peers that give the right logits, each with one network, ready to be called."""

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
from ovsw.bench.measure import Latency
from ovsw.bench.peers import REFERENCE, Peer, Runner
from ovsw.bench.peers.base import batches, error, fault, one_line
from ovsw.bench.result import OURS, Measurement, Skipped
from ovsw.bench.topology import NETWORKS
from ovsw.util.progress import Progress

BITS = {"1-bit": 1, "int8": 8, "fp16": 16, "bf16": 16, "fp32": 32}


@dataclass
class Entry:
    """One engine at one precision with one network.

    Attributes:
        call: the function that is timed; if it returns a float, it has timed itself, in seconds.
        check: the result of the comparison of its logits.
        files: the files it has loaded.
        shape: the shape of the images of a call.
        like: for a user's file, the network that it is compared with.
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

    def row(self, parameters: int | None, latency: Latency, ours: Latency | None) -> Measurement:
        """The row of a result. The size of a 1-bit network is that of its file, others count as in papers."""
        bits = BITS[self.precision]
        size = self.file_mb if bits == 1 else None if parameters is None else parameters * bits / 8e6
        same = ("network", "engine", "precision", "version", "threads", "batch", "file_mb", "check", "like", "isa")
        copied = {key: getattr(self, key) for key in same}
        ratio = None if ours is None else latency.over(ours)
        return Measurement(**copied, wa=f"{bits}/{bits}", size_mb=size, latency_ms=latency, ratio=ratio)


@dataclass
class Ours:
    """Our engine with a file, and the pixels that all engines get: uint8 (n, h, w, 3)."""

    entry: Entry
    engine: Engine
    pixels: np.ndarray


def pictures(engine: Engine, image: str | None, batch: int) -> np.ndarray:
    """uint8 (n, h, w, 3): `batch` times the image, or as much noise."""
    c, h, w = engine.input_shape
    if image is None:
        return np.random.default_rng(0).integers(0, 256, (batch, h, w, c), np.uint8)
    return np.repeat(engine.batch(image), batch, axis=0)


def load_ours(
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
    images = pixels[0] if batch == 1 else pixels
    entry = Entry(
        *(network, OURS, "1-bit", __version__, engine.numerics, [path], threads, images.shape),
        *(partial(engine.run, images), like, engine.isa),
    )
    return Ours(entry, engine, pixels)


def matching_network(path: Path) -> str | None:
    """The network of the peers that a user's file says it is, if its input has the same size."""
    model = bnn.read(path)
    match = re.match(r"[a-z]+[0-9]+", str(model.metadata.get("arch", "")).lower())
    name = match[0] if match else ""
    return name if name in NETWORKS and NETWORKS[name].input.shape[1:] == model.values[0].shape[1:] else None


def load_peers(
    network: str,
    peers: list[Peer],
    reference: Peer | None,
    threads: int,
    folder: Path,
    shown: np.ndarray,
    progress: Progress,
) -> tuple[list[Entry], list[Skipped]]:
    """The peers that give the logits of the reference, and why others are left out; the reasons are printed as well."""
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    batch = len(shown)
    tests = batches(network, batch, 4, seed=0)
    expected = None
    if reference is not None:
        with contextlib.suppress(Exception), quiet():  # its own line is printed when its turn comes
            expected = _outputs(reference.load(reference.files(network, batch, folder), threads), tests)
    for i, peer in enumerate(peers):
        progress(f"{network}: loading {peer.name}", i, len(peers))
        try:
            if network not in peer.networks:
                raise ValueError("has no such network")
            with quiet():
                files = peer.files(network, batch, folder)
                run = peer.load(files, threads)
                check = check_logits(peer, _outputs(run, tests), expected)
            facts = (network, peer.engine, peer.precision, peer.version(), check, files, threads, shown.shape)
            entries.append(Entry(*facts, _timed(run, shown)))
        except Exception as e:  # whatever another engine may raise
            why = one_line(e)
            skipped.append(Skipped(peer.name, network, why))
            progress.say(f"{peer.name}, {network}: {why}")
    return entries, skipped


def check_logits(peer: Peer, logits: np.ndarray, expected: np.ndarray | None) -> str:
    """How far the peer's logits are from the reference's, in words. Raises ValueError if that is too far."""
    if not peer.comparable:
        return "other weights"
    if peer is REFERENCE:
        return "the reference"
    if expected is None:
        return f"unchecked: no {REFERENCE.name}"
    wrong = fault(logits, expected, peer.precision)
    if wrong:
        raise ValueError(wrong)
    return f"within {error(logits, expected):.1g}"


def _outputs(run: Runner, shown: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.array(run(batch)) for batch in shown])


def _timed(run: Runner, shown: np.ndarray) -> Callable[[], object]:
    def call() -> object:
        run(shown)
        return getattr(run, "seconds", None)

    return call


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences progress bars and warnings of quantisers and compilers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
