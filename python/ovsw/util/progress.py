"""Progress of long tasks on stderr: one line that is redrawn in a terminal, an occasional line in a log."""

from __future__ import annotations

import sys
import time

from ovsw.util.text import visible

FIRST = 2.0  # seconds until the first line
AGAIN = 0.2  # seconds between lines in a terminal
SELDOM = 60.0  # seconds between lines elsewhere, such as in a log


class Progress:
    """`with Progress("ovsw export") as progress: progress("images", 3, 100)`; quick tasks print nothing.

    `in_logs=False` prints to terminals only.
    """

    def __init__(self, prog: str, in_logs: bool = True) -> None:
        self.prog, self.in_logs = prog, in_logs
        self.began = time.monotonic()
        self.next = self.began + FIRST
        self.drawn = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Removes the line from a terminal."""
        self._draw("")

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        self.clear()
        print(visible(line), file=sys.stderr, flush=True)

    def __call__(self, what: str, done: float = 0, total: int = 0) -> None:
        """`done` of `total`, if that is known; a total of 1 shows percents alone."""
        now = time.monotonic()
        if now < self.next:
            return
        terminal = sys.stderr.isatty()
        self.next = now + (AGAIN if terminal else SELDOM)
        count = f" {done:,} of {total:,}," if total > 1 else ""
        share = f"{count} {100 * done / total:.0f} %," if total else ","
        line = visible(f"{self.prog}: {what}{share} {now - self.began:.0f} s")
        if terminal:
            self._draw(line)
        elif self.in_logs:
            print(line, file=sys.stderr, flush=True)

    def step(self, what: str) -> None:
        """Shows a task without measurable progress in a terminal at once."""
        if sys.stderr.isatty():
            self._draw(visible(f"{self.prog}: {what} ..."))

    def _draw(self, line: str) -> None:
        """Overwrites the line in a terminal."""
        if line or self.drawn:
            print(f"\r{line:<{self.drawn}}", end="" if line else "\r", file=sys.stderr, flush=True)
            self.drawn = len(line)
