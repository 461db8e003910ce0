"""The gain of more threads and larger batches: all combinations, interleaved, against one thread and one image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ovsw import Engine, cpu
from ovsw.bench.measure import Spread, interleaved, spread
from ovsw.engine import NO_LIMIT, ImageLike
from ovsw.util.text import table, visible

BATCHES = (1, 4, 16)
HEAD = ("threads", "batch", "images/s", "ms/image", "p10 .. p90", "speed-up", "p10 .. p90")


@dataclass
class Point:
    threads: int
    batch: int
    ms_per_image: Spread
    images_per_s: float
    speedup: Spread


@dataclass
class Scaling:
    network: str
    isa: str
    cores: int
    rounds: int
    points: list[Point]


def scaling(data: bytes, isa: str | None, image: ImageLike, rounds: int, network: str) -> Scaling:
    """Times the model in `data` with 1, 2, 4, ... and all cores, and with each of BATCHES."""
    engines = {n: Engine(data, threads=n, isa=isa, memory_limit=NO_LIMIT) for n in thread_counts(cpu.usable_cores())}
    pixels = engines[1].batch(image)[:1]

    def call(engine: Engine, batch: int) -> Callable[[], object]:
        images = np.repeat(pixels, batch, axis=0)
        return lambda: engine.run(images)

    pairs = [(threads, batch) for threads in engines for batch in BATCHES]
    times = interleaved({f"{t} {b}": call(engines[t], b) for t, b in pairs}, rounds)
    points = []
    for threads, batch in pairs:
        each = times[f"{threads} {batch}"] / batch
        ms = spread(each)
        points.append(Point(threads, batch, ms, 1e3 / ms.median, spread(times["1 1"] / each)))
    return Scaling(network, engines[1].isa, cpu.usable_cores(), rounds, points)


def show(scaling: Scaling) -> str:
    """The points as text."""
    return "\n".join([*head(scaling), "", table(HEAD, cells(scaling), right=range(len(HEAD)))])


def head(scaling: Scaling) -> list[str]:
    """The paragraphs above the table."""
    return [
        f"{visible(scaling.network)}, {scaling.isa}, {scaling.cores} core(s), {scaling.rounds} interleaved rounds.",
        "Speed-up: the time per image of one thread and batch 1 over this one, in the same round.",
    ]


def cells(scaling: Scaling) -> list[tuple[str, ...]]:
    """The rows under HEAD."""
    return [
        (str(p.threads), str(p.batch), f"{p.images_per_s:.1f}", *p.ms_per_image.cells(3), *p.speedup.cells())
        for p in scaling.points
    ]


def thread_counts(cores: int) -> list[int]:
    """Powers of two below `cores`, and `cores`."""
    return [1 << n for n in range(16) if 1 << n < cores] + [cores]
