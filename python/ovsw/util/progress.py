"""Progress on stderr of what takes its time: in a terminal one line drawn again and again, elsewhere a line seldom."""

from __future__ import annotations

import sys
import time

from ovsw.util.text import visible

FIRST = 2.0  # seconds until the first word
AGAIN = 0.2  # seconds until a terminal sees the next
SELDOM = 60.0  # and what is not a terminal, such as a log


class Progress:
    """`with Progress("ovsw export") as progress: progress("images", 3, 100)`; what is done quickly says nothing."""

    def __init__(self, prog: str) -> None:
        self.prog = prog
        self.began = time.monotonic()
        self.next = self.began + FIRST
        self.drawn = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Makes room for other words."""
        self._draw("")

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """`done` of `total`, if that is known."""
        now = time.monotonic()
        if now < self.next:
            return
        terminal = sys.stderr.isatty()
        self.next = now + (AGAIN if terminal else SELDOM)
        share = f" {done:,} of {total:,}, {100 * done / total:.0f} %," if total else ","
        line = visible(f"{self.prog}: {what}{share} {now - self.began:.0f} s")
        if terminal:
            self._draw(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def step(self, what: str) -> None:
        """Something begins that cannot say how far it is: a terminal sees at once what it is waiting for."""
        if sys.stderr.isatty():
            self._draw(visible(f"{self.prog}: {what} ..."))

    def _draw(self, line: str) -> None:
        """Over what is there."""
        if line or self.drawn:
            print(f"\r{line:<{self.drawn}}", end="" if line else "\r", file=sys.stderr, flush=True)
            self.drawn = len(line)
