"""How commands write: what a file says as one visible line, tables in columns, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def visible(text: str, most: int | None = None) -> str:
    """What a file says, on one line and with nothing that a terminal obeys: control characters, ends of lines, marks
    that turn the direction of writing and halves of surrogate pairs are escaped. It is cut in the middle to `most`.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if most is None or len(line) <= most:
        return line
    tail = (most - 2) // 2
    return f"{line[: most - 2 - tail]}..{line[len(line) - tail :]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns in plain text, all cells made `visible`; those numbered in `right` are right-aligned."""
    cells = [[visible(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])


def dims(sizes: Iterable[int]) -> str:
    """A shape, such as 64x56x56."""
    return "x".join(map(str, sizes))
