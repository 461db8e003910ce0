"""`python tools/threads.py resnet18`: how an inference is shared out, and what more threads than here would do.

Every part of every step is timed alone, on one core, and the parts are then dealt out to threads as the engine does it;
a step ends when its last part does, and after what a job of the pool costs. That leaves out what cores take from each
other, memory bandwidth above all: it is what the sharing out itself allows, an upper bound. Beside the engine's split
stand the two simple ones, pixels only and channels only.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Sequence
from pathlib import Path

from ovsw import format as bnn
from ovsw._testing import Model, pool_seconds
from ovsw.bench.random_nets import random_resnet
from ovsw.util.text import table

Split = tuple[int, int]  # rows, columns


def makespan(parts: Sequence[float], threads: int) -> float:
    """The next part goes to whoever is free first."""
    free = [0.0] * threads
    for seconds in parts:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def choices(engine: Model, threads: int) -> dict[str, list[Split]]:
    steps = engine.splits(threads)
    return {
        "engine": [(rows, columns) for *_, rows, columns in steps],
        "pixels": [(min(threads, max(1, pixels // 4)), 1) for _, pixels, *_ in steps],
        "channels": [
            (1, min(threads, max(1, channels // 64))) if products else (min(threads, max(1, pixels // 4)), 1)
            for _, pixels, channels, products, *_ in steps
        ],
    }


def simulate(engine: Model, how: list[Split], threads: int, job: float, repeats: int) -> list[float]:
    """Seconds of each step."""
    return [makespan(parts, threads) + (job if len(parts) > 1 else 0) for parts in engine.part_seconds(how, repeats)]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("network", help="resnet18, resnet34, cresnet20 or a .bnn file")
    p.add_argument("--threads", default="1,2,4,8", help="numbers separated by commas (default: %(default)s)")
    p.add_argument("--isa", default="", help="the kernel table (default: the best)")
    p.add_argument("--repeats", type=int, default=20, help="of each part, the fastest counts (default: %(default)s)")
    p.add_argument("--steps", action="store_true", help="also how each step is shared out")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    own = Path(args.network)
    data = (
        own.read_bytes()
        if own.suffix == ".bnn"
        else bnn.to_bytes(random_resnet(args.network, numerics="integer", stem="int8"))
    )
    engine = Model(data, args.isa)
    job = pool_seconds(2, 2000)
    alone, lines = 0.0, []
    for threads in map(int, args.threads.split(",")):
        for name, how in choices(engine, threads).items():
            if threads == 1 and name != "engine":
                continue
            seconds = simulate(engine, how, threads, job, args.repeats)
            alone = alone or sum(seconds)
            lines.append([str(threads), name, f"{1e3 * sum(seconds):.2f}", f"{alone / sum(seconds):.2f}"])
            if args.steps and name == "engine":
                for step, (rows, columns), t in zip(engine.splits(threads), how, seconds):
                    print(f"  {threads} threads, {step[0]}: {rows} x {columns}, {1e6 * t:.0f} us")
    print(f"SIMULATED from parts timed alone; a job of the pool takes {1e6 * job:.1f} us here")
    print(table(["threads", "split by", "ms", "times as fast"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
