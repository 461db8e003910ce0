"""How commands print: untrusted text as one visible line, tables, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def visible(text: str, most: int | None = None) -> str:
    """Untrusted text on one line: control characters, line ends, marks that change the direction of writing and halves
    of surrogate pairs are escaped. It is shortened in the middle to `most` characters.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if most is None or len(line) <= most:
        return line
    tail = (most - 2) // 2
    return f"{line[: most - 2 - tail]}..{line[len(line) - tail :]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table in plain text; all cells are made `visible`, and the columns in `right` are right-aligned."""
    cells = [[visible(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """The same table in Markdown."""

    def cell(text: str) -> str:
        return visible(text).replace("|", r"\|")

    def line(row: Sequence[str]) -> str:
        return f"| {' | '.join(map(cell, row))} |"

    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def dims(sizes: Iterable[int]) -> str:
    """A shape, such as 64x56x56."""
    return "x".join(map(str, sizes))


def first_line(e: BaseException) -> str:
    """The first line of an exception's message, or its type if it has none."""
    return next(iter(str(e).strip().splitlines()), type(e).__name__)
