"""`make soak`: the engine under load. Every result is compared with the first, and what is left over is counted.

Eight threads on one engine, eight engines at once that come and go, pools of processes by fork and by spawn, files
loaded and closed again and again. Afterwards memory must be what it was after warming up, and no thread, file
descriptor or child process may be left.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's own threads end at a fork and would be counted as missing

import numpy as np

from ovsw import Engine, zoo

from support import DATA

WORKERS = 8
# With an arena for each thread the C library keeps fragments in all of them: 1.5 MB more or less from cycle to cycle,
# under which a leak could hide. With one arena memory is the same to 100 kB.
M_ARENA_MAX = -8
HANG = 600  # seconds that nothing takes, however busy the machine is


def networks() -> list[Path]:
    """A tiny one, where locks and threads are all the work, and a trained ResNet."""
    return [DATA / "tiny.bnn", zoo.path("cresnet20-cifar10")]


def images_for(engine: Engine, count: int = 2) -> np.ndarray:
    channels, height, width = engine.input_shape
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels), np.uint8)


@dataclass
class Left:
    """What a process has: threads, file descriptors, and kB of memory."""

    threads: int
    files: int
    memory: int

    @classmethod
    def now(cls) -> Left:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what is free is not in use
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        files = len(list(Path("/proc/self/fd").iterdir()))
        return cls(
            int(status["Threads"]), files, int(status["RssAnon"].split()[0])
        )  # files come and go as the kernel likes


@dataclass
class Soak:
    """Counts of what was done, and findings, each a line."""

    inferences: int = 0
    wrong: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, engine: Engine, images: np.ndarray, expected: bytes) -> None:
        same = engine.run(images).tobytes() == expected
        with self.lock:
            self.inferences += len(images)
            self.wrong += not same

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + n


def together(calls: list[Callable[[], None]]) -> None:
    """All at once, each in a thread of its own; an exception there is one here."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(calls), timeout=HANG)

    def guarded(call: Callable[[], None]) -> None:
        try:
            barrier.wait()
            call()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def one_engine(soak: Soak, path: Path, threads: int, rounds: int) -> None:
    """`WORKERS` threads on one engine."""
    engine = Engine(path, threads=threads)
    images = images_for(engine)
    expected = engine.run(images).tobytes()

    def call() -> None:
        for _ in range(rounds):
            soak.compare(engine, images, expected)

    together([call] * WORKERS)


def many_engines(soak: Soak, path: Path, threads: int, rounds: int) -> None:
    """`WORKERS` engines at once; each is dropped every now and then, while the others run."""
    images = images_for(Engine(path))
    expected = Engine(path).run(images).tobytes()

    def call() -> None:
        for i in range(rounds):
            if i % 20 == 0:
                engine = Engine(path, threads=threads)
            soak.compare(engine, images, expected)

    together([call] * WORKERS)


def load_and_close(soak: Soak, path: Path, cycles: int) -> None:
    images = images_for(Engine(path), 1)
    expected = Engine(path).run(images).tobytes()
    for i in range(cycles):
        soak.compare(Engine(path, threads=1 + i % 2), images, expected)
    soak.count("files loaded and closed", cycles)


_inherited: dict[Path, Engine] = {}  # what a forked worker has from its parent


def in_pool(task: tuple[Path, int, bytes]) -> tuple[int, int, bool]:
    """A worker's side: runs, and says how many inferences were wrong, and whether the engine was its parent's."""
    path, rounds, expected = task
    inherited = path in _inherited
    engine = _inherited[path] if inherited else Engine(path, threads=2)
    images = images_for(engine)
    wrong = sum(engine.run(images).tobytes() != expected for _ in range(rounds))
    return rounds * len(images), wrong, inherited


def pool(soak: Soak, path: Path, method: str, rounds: int) -> None:
    """Four worker processes. Forked ones use the parent's engine, whose threads they do not have."""
    engine = Engine(path, threads=2)
    images = images_for(engine)
    expected = engine.run(images).tobytes()
    _inherited[path] = engine
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
            context = multiprocessing.get_context(method)
            with ProcessPoolExecutor(4, mp_context=context) as workers:
                results = list(workers.map(in_pool, [(path, rounds, expected)] * WORKERS))
    finally:
        del _inherited[path]
    for inferences, wrong, inherited in results:
        soak.inferences += inferences
        soak.wrong += wrong
        if inherited != (method == "fork"):
            soak.findings.append(f"a worker of a {method} pool has {'its own' if not inherited else 'an old'} engine")
    soak.count(f"tasks in {method} pools", len(results))


def cycle(soak: Soak, rounds: int, loads: int) -> None:
    """Everything once, on each network."""
    for path in networks():
        for threads in (1, 2):
            one_engine(soak, path, threads, rounds)
            many_engines(soak, path, threads, rounds)
        load_and_close(soak, path, loads)
        for method in ("fork", "spawn"):
            if method in multiprocessing.get_all_start_methods():
                pool(soak, path, method, rounds)


def soak_for(inferences: int, loads: int, cycles: int, grown_kb: int) -> Soak:
    """At least so many inferences and loads in so many cycles, after one that warms up and is not counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    per_round = len(networks()) * (2 * 2 * WORKERS + 2 * WORKERS) * 2
    rounds = max(1, -(-inferences // (cycles * per_round)))
    loads_each = -(-loads // (cycles * len(networks())))
    threads = Left.now().threads
    cycle(Soak(), rounds, loads_each)
    wait_for_threads(threads)
    before = Left.now()
    soak = Soak()
    grown = []
    for _ in range(cycles):
        cycle(soak, rounds, loads_each)
        wait_for_threads(threads)
        grown.append(Left.now().memory - before.memory)
    after = Left.now()
    print("memory after each cycle, over that after warming up: " + " ".join(f"{kb:+}" for kb in grown) + " kB")
    print(f"threads {threads} -> {after.threads}, file descriptors {before.files} -> {after.files}")
    if soak.wrong:
        soak.findings.append(f"{soak.wrong} calls gave another result")
    if after.memory - before.memory > grown_kb:
        soak.findings.append(f"memory grew from {before.memory} to {after.memory} kB, allowed are {grown_kb} more")
    for what, first in (("threads", threads), ("files", before.files)):
        if (last := getattr(after, what)) != first:
            soak.findings.append(f"{what}: {first} before, {last} after")
    if children := multiprocessing.active_children():
        soak.findings.append(f"{len(children)} child processes are left")
    return soak


def wait_for_threads(count: int) -> None:
    """Until no more than these are left: threads that were joined are in the system's list for a moment longer."""
    deadline = time.monotonic() + HANG
    while Left.now().threads > count and time.monotonic() < deadline:
        time.sleep(0.01)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="campaigns.soak", description=__doc__.splitlines()[0] if __doc__ else None)
    default = "(default: %(default)s)"
    p.add_argument("--inferences", type=int, default=100_000, help=f"at least so many {default}")
    p.add_argument("--loads", type=int, default=1000, help=f"files loaded and closed besides {default}")
    p.add_argument("--cycles", type=int, default=10, help=f"everything is done so many times {default}")
    p.add_argument("--grown", type=int, default=1024, metavar="KB", help=f"by which memory may grow {default}")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    cpu = time.process_time()
    soak = soak_for(args.inferences, args.loads, args.cycles, args.grown)
    counts = ", ".join(f"{n:,} {what}" for what, n in soak.counts.items())
    seconds = time.process_time() - cpu + sum(os.times()[2:4])
    print(f"{soak.inferences:,} inferences, {soak.wrong} wrong; {counts}; {seconds:.0f} CPU-seconds")
    for finding in soak.findings:
        print(f"FOUND {finding}")
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())
