"""How everything is timed: warm, in turns (a b c, a b c, ...), so that whatever else the machine does hits all alike.

The verdict on two engines is the ratio of their times in the same turn, with its spread, not that of two averages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovsw.util.text import visible


@dataclass
class Spread:
    """Of a quantity over the rounds."""

    median: float
    p10: float
    p90: float

    def apart(self, other: Spread) -> bool:
        """Whether the two have nothing in common; if they have, nobody should say which is faster."""
        return self.p10 > other.p90 or self.p90 < other.p10

    def range(self, digits: int = 2) -> str:
        return f"{self.p10:.{digits}f} .. {self.p90:.{digits}f}"


@dataclass
class Latency(Spread):
    """Milliseconds per image, in every round too."""

    samples: list[float]

    @classmethod
    def of(cls, ms: Sequence[float]) -> Latency:
        return cls(**vars(spread(ms)), samples=[round(t, 5) for t in ms])

    def over(self, base: Latency) -> Spread:
        """The ratio of both in the rounds that both took part in."""
        both = min(len(self.samples), len(base.samples))
        return spread(np.asarray(self.samples[:both]) / np.asarray(base.samples[:both]))


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    p10, median, p90 = (float(v) for v in np.percentile(values, [10, 50, 90]))
    return Spread(median, p10, p90)


def interleave(
    calls: dict[str, Callable[[], object]],
    times: dict[str, list[float]],
    rounds: int,
    seconds: float = 0.0,
    progress: Callable[[float], None] = lambda fraction: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Exception]:
    """Fills `times` with the seconds of each call in each round, which are all there is if Ctrl-C comes.

    There are at least `rounds` rounds, and as many as it takes to spend `seconds` on each call. A turn is a call that
    is not timed, since the engine before has emptied the caches, and one that is. A call that gives back a float has
    timed itself. One that raises is dropped; gives back those errors.
    """
    broken: dict[str, Exception] = {}
    times.update({name: [] for name in calls})

    def attempt(name: str, count: int) -> float:
        spent = 0.0
        try:
            for _ in range(count):
                start = clock()
                own = calls[name]()
                spent = own if isinstance(own, float) else clock() - start
        except Exception as e:  # whatever an engine may raise
            broken[name] = e
            del times[name]
        return spent

    for name in calls:
        attempt(name, 1)  # warms up
    least = [0.0]
    done = 0
    while times and (done < rounds or min(least) < seconds):
        for name in list(times):
            spent = attempt(name, 2)
            if name in times:
                times[name].append(spent)
        done += 1
        least = [sum(t) for t in times.values()] or [0.0]
        progress(min(done / rounds, min(least) / seconds if seconds else 1.0, 1.0))
    return broken


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each call in each round; an error of any is raised."""
    times: dict[str, list[float]] = {}
    for e in interleave(calls, times, rounds).values():
        raise e
    return {name: 1e3 * np.array(t) for name, t in times.items()}


class Bar:
    """A progress bar on stderr, if that is a terminal and tqdm is installed."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.shown = ("", 0.0)
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ModuleNotFoundError:
                return
            form = "{desc} {percentage:3.0f} %|{bar}| {elapsed}"
            self.bar = tqdm(total=1.0, file=sys.stderr, leave=False, bar_format=form)

    def __call__(self, what: str, fraction: float) -> None:
        what_before, at = self.shown
        now = time.monotonic()
        if self.bar is None or (what == what_before and now < at + 0.2):  # drawing takes time from what is timed next
            return
        self.shown = (what, now)
        self.bar.set_description_str(visible(what), refresh=False)
        self.bar.n = fraction
        self.bar.refresh()

    def say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(visible(line), file=sys.stderr)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
