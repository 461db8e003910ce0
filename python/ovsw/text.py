"""How commands write: tables in columns, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns in plain text; those numbered in `right` are right-aligned."""
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, cells[1:])])


def dims(sizes: Iterable[int]) -> str:
    """A shape, such as 64x56x56."""
    return "x".join(map(str, sizes))
