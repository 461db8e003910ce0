"""What more threads and larger batches bring: every combination in turns, against one thread and one image."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import Engine
from ovsw.bench.measure import interleaved, spread
from ovsw.engine import ImageLike
from ovsw.summary import table

BATCHES = (1, 4, 16)
HEAD = ("threads", "batch", "images/s", "ms/image", "p10 .. p90", "speed-up", "p10 .. p90")


def scaling(data: bytes, isa: str | None, image: ImageLike, rounds: int, network: str) -> dict[str, Any]:
    """Times the model in `data` with 1, 2, 4, ... and all cores, and with each of BATCHES."""
    engines = {n: Engine(data, threads=n, isa=isa) for n in thread_counts(cores())}
    pixels = engines[1]._batch(image)[0][:1]

    def call(engine: Engine, batch: int) -> Callable[[], object]:
        images = np.repeat(pixels, batch, axis=0)
        return lambda: engine.run(images)

    points = [(threads, batch) for threads in engines for batch in BATCHES]
    times = interleaved({f"{t} {b}": call(engines[t], b) for t, b in points}, rounds)
    rows = []
    for threads, batch in points:
        ms = times[f"{threads} {batch}"] / batch
        row: dict[str, Any] = {"threads": threads, "batch": batch, "ms_per_image": spread(ms)}
        row["images_per_s"] = 1e3 / row["ms_per_image"]["median"]
        row["speedup"] = spread(times["1 1"] / ms)
        rows.append(row)
    return {"network": network, "isa": engines[1].isa, "cores": cores(), "rounds": rounds, "points": rows}


def show(scaling: dict[str, Any]) -> str:
    """The points as text."""
    return "\n".join([*head(scaling), "", table(HEAD, cells(scaling), right=range(len(HEAD)))])


def head(scaling: dict[str, Any]) -> list[str]:
    """The paragraphs above the table."""
    return [
        f"{scaling['network']}, {scaling['isa']}, {scaling['cores']} core(s), {scaling['rounds']} interleaved rounds.",
        "Speed-up: the time per image of one thread and batch 1 over this one, in the same round.",
    ]


def cells(scaling: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows under HEAD."""
    rows: list[tuple[str, ...]] = []
    for p in scaling["points"]:
        ms, gain = p["ms_per_image"], p["speedup"]
        rows.append(
            (str(p["threads"]), str(p["batch"]), f"{p['images_per_s']:.1f}")
            + (f"{ms['median']:.3f}", f"{ms['p10']:.3f} .. {ms['p90']:.3f}")
            + (f"{gain['median']:.2f}", f"{gain['p10']:.2f} .. {gain['p90']:.2f}")
        )
    return rows


def thread_counts(cores: int) -> list[int]:
    """Powers of two below `cores`, and `cores`."""
    return [1 << n for n in range(16) if 1 << n < cores] + [cores]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
