"""What goes wrong in whole processes happens in a child: this module as a script.

`child` is the parent's side, all else is the child's. What runs there is `engine`, a network on the engine, `train`, a
unit of the training kernels, or `picture`, a file that is decoded.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ovsw import Engine
from ovsw.image import load_pixels

from support import DATA, ROOT

HANG = 600  # seconds that nothing takes, however busy the machine is


def child(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-m", "support.processes", *args]
    return subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=2 * HANG, check=False)


# --- the child's side ------------------------------------------------------------------------------------------------


def workload(what: str, threads: int) -> Callable[[], bytes]:
    """One call of it, with as many threads; returns the bytes of its results."""
    if what == "picture":
        return lambda: load_pixels(ROOT / "python/ovsw/data/cifar10/cat.png", 3, 32, (32, 32)).tobytes()
    if what == "train":
        from support.native_unit import NativeUnit

        unit = NativeUnit(threads=threads)
        return lambda: b"".join(array.tobytes() for array in unit.run())
    engine = Engine(DATA / "tiny.bnn", threads=threads)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 1), np.uint8)
    return lambda: engine.run(pixels).tobytes()


def forks(what: str, count: int) -> None:
    """Forks while other threads run: each child must give the right answer, and end."""
    warnings.simplefilter("ignore")  # newer Pythons warn of just this
    run = workload(what, 1)  # so the locks are what is busy
    expected = workload(what, 2)()
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            run()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = [0]
    while statuses[-1] == 0 and len(statuses) <= count:
        pid = os.fork()
        if pid == 0:
            signal.alarm(HANG)  # ends a child that hangs
            os._exit(0 if run() == run() == expected else 1)
        statuses.append(os.waitpid(pid, 0)[1])
    done.set()
    for thread in threads:
        thread.join()
    assert statuses[-1] == 0, f"child {len(statuses) - 1} ended with status {statuses[-1]}"
    print(f"{count} children")


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def settle(expected: int) -> None:
    """A thread that has been joined is in the system's list for a moment longer."""
    deadline = time.monotonic() + HANG
    while tasks() != expected:
        assert time.monotonic() < deadline, f"{tasks()} threads, expected {expected}"
        time.sleep(0.001)


def refuse_threads(how: str) -> Callable[[], None]:
    """The system refuses more than two new threads from now on, until the returned function is called.

    Root has as many processes as it likes, so it becomes another user first. A user who has more than this process gets
    no thread at all.
    """
    if how == "processes":
        if os.geteuid() == 0:
            os.setresuid(54321, 54321, 54321)
        which, limit = resource.RLIMIT_NPROC, tasks() + 2
    else:
        stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
        stack = 2 << 20 if stack == resource.RLIM_INFINITY else stack
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        which, limit = resource.RLIMIT_AS, pages * resource.getpagesize() + 5 * stack // 2
    before = resource.getrlimit(which)
    resource.setrlimit(which, (limit, before[1]))
    return lambda: resource.setrlimit(which, before)


def refused(what: str, how: str) -> None:
    """A call that cannot have its threads says so and leaves none behind; later ones have them."""
    run = workload(what, 8)
    expected = workload(what, 1)()
    before = tasks()
    allow = refuse_threads(how)
    for _ in range(3):
        try:
            run()
        except RuntimeError as e:
            print(e)
        else:
            raise AssertionError("it ran")
        settle(before)
    allow()
    assert run() == expected
    settle(before + 7)


def leave(what: str, threads: int) -> None:
    """Ends while daemon threads run."""
    started = threading.Semaphore(0)
    run = workload(what, threads)

    def work() -> None:
        while True:
            run()
            started.release()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(8):
        started.acquire()
    time.sleep(0.001 * (os.getpid() % 10))  # at another moment each time


def main() -> None:
    command, what, argument = sys.argv[1:]
    if command == "forks":
        forks(what, int(argument))
    elif command == "refused":
        refused(what, argument)
    else:
        leave(what, int(argument))


if __name__ == "__main__":
    main()
