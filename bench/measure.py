"""How everything is timed: warmed up and interleaved (a b c, a b c, ...), so that other load affects all alike.

Two engines are compared by the ratio of their times in the same round, with its spread, not by two averages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Spread:
    """Median, 10th and 90th percentile of a quantity over the rounds."""

    median: float
    p10: float
    p90: float

    def apart(self, other: Spread) -> bool:
        """Whether the two do not overlap; if they do, neither should be called faster."""
        return self.p10 > other.p90 or self.p90 < other.p10

    def cells(self, digits: int = 2, unit: str = "") -> tuple[str, str]:
        """The median and the range, as tables show them side by side."""
        return f"{self.median:.{digits}f}{unit}", self.range(digits)

    def range(self, digits: int = 2) -> str:
        return f"{self.p10:.{digits}f} .. {self.p90:.{digits}f}"


@dataclass
class Latency(Spread):
    """Milliseconds per image, with the samples of all rounds."""

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
    """Fills `times` with the seconds of each call in each round, so that Ctrl-C leaves what has been measured.

    There are at least `rounds` rounds, and as many as it takes to spend `seconds` on each call. In each round a call
    runs twice, and the second run is timed, since the engine before it has emptied the caches. A call that returns a
    float has timed itself. A call that raises is dropped; returns those errors.
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
    """Milliseconds of each call in each round. Raises the first error of a call."""
    times: dict[str, list[float]] = {}
    for e in interleave(calls, times, rounds).values():
        raise e
    return {name: 1e3 * np.array(t) for name, t in times.items()}
