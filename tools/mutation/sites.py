"""Where the product can be mutated, and the draw.

A place is a range of one file with the faults that can be put there; a mutant is one of them, told as lines before and
after, so that it can be found again when the file has changed elsewhere. The draw orders places by a hash of seed and
place: it is uniform, and a change to one file leaves the draw in all others as it was.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Folders of the product, the longest first: what a mutant is counted under.
ROOMS = (
    "python/ovsw/nn",
    "python/ovsw/datasets",
    "python/ovsw/train",
    "python/ovsw/repro",
    "python/ovsw",
    "export",
    "bench",
    "csrc",
    "kernels",
    "include",
)
# The judges of the tests are no part of the product, and ARM kernels cannot be judged on this CPU.
LEFT_OUT = ("kernels/reference/", "kernels/arm_neon/", "kernels/arm_neon_dot/", "csrc/binding/testing.cc")
SUFFIXES = {"python": (".py",), "cpp": (".cc", ".h", ".hpp")}


@dataclass(frozen=True)
class Fault:
    """One way to change a file: its kind, and the whole text afterwards, made when it is asked for."""

    kind: str
    apply: Callable[[], str]


@dataclass(frozen=True)
class Place:
    path: str
    key: str  # what the hash is of: the line, its number among equal ones, the range in it
    lines: tuple[int, int]  # of the statement around it
    faults: tuple[Fault, ...]

    def rank(self, seed: int) -> bytes:
        return hashlib.sha256(f"{seed} {self.path} {self.key}".encode()).digest()


@dataclass(frozen=True)
class Mutant:
    path: str
    kind: str
    before: str  # whole lines
    after: str
    nth: int  # of the places in the file where `before` stands
    lines: tuple[int, int]  # of the statement, in the file that it was drawn from

    @property
    def name(self) -> str:
        text = f"{self.path} {self.before} {self.after} {self.nth}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def room(self) -> str:
        return next(room for room in ROOMS if self.path.startswith(room + "/"))

    def into(self, source: str) -> str | None:
        """The file with this fault; None if the lines are no longer there."""
        at = -1
        for _ in range(self.nth + 1):
            at = find_lines(source, self.before, at + 1)
            if at < 0:
                return None
        return source[:at] + self.after + source[at + len(self.before) :]


def find_lines(source: str, lines: str, start: int) -> int:
    """Where `lines` stand as whole lines, at or after `start`."""
    at = source.find(lines, start)
    while at > 0 and source[at - 1] != "\n":
        at = source.find(lines, at + 1)
    return at


def difference(path: str, kind: str, source: str, changed: str, lines: tuple[int, int]) -> Mutant:
    """The mutant that makes `changed` of `source`."""
    old, new = source.splitlines(keepends=True), changed.splitlines(keepends=True)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before = "".join(old[head : len(old) - tail])
    start, nth, at = sum(map(len, old[:head])), 0, find_lines(source, before, 0)
    while at < start:
        nth, at = nth + 1, find_lines(source, before, at + 1)
    return Mutant(path, kind, before, "".join(new[head : len(new) - tail]), nth, lines)


def key_of(source_lines: list[str], line: int, columns: tuple[int, int]) -> str:
    """The key of a place on a line (counted from 0): what stands there and how many equal lines come before."""
    text = source_lines[line]
    return f"{text.strip()} {source_lines[:line].count(text)} {columns[0]} {columns[1]}"


def files(root: Path, language: str) -> Iterator[str]:
    for room in sorted({room.split("/")[0] for room in ROOMS}):
        for path in sorted((root / room).rglob("*")):
            name = str(path.relative_to(root))
            if path.suffix in SUFFIXES[language] and not name.startswith(LEFT_OUT) and path.is_file():
                yield name


def differs(source: str, changed: str) -> bool:
    """Whether `changed` is Python, and another program."""
    try:
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def places(root: Path, language: str) -> list[Place]:
    """All of them, in one language."""
    if language == "python":
        from mutation.python_faults import find
    else:
        from mutation.cpp_faults import find
    return [place for name in files(root, language) for place in find(name, (root / name).read_text())]


def draw(root: Path, places: list[Place], seed: int) -> Iterator[Mutant]:
    """One mutant of each place, in the order of the draw."""
    for place in sorted(places, key=lambda place: place.rank(seed)):
        fault = place.faults[place.rank(seed)[-1] % len(place.faults)]
        source = (root / place.path).read_text()
        changed = fault.apply()
        if changed != source and (not place.path.endswith(".py") or differs(source, changed)):
            yield difference(place.path, fault.kind, source, changed, place.lines)
