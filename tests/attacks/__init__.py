"""Attack files: one small `.bnn` file for every rule that a reader checks, and what the readers say of each.

`container.py`, `graphs.py` and `integers.py` say what each file is: a valid base and one change. `python -m attacks`
(in tests/) writes the files and `index.tsv` beside them, in which the messages are kept by hand. `limits.py` has the
valid files next to them, right at each limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = FOLDER / "files"
INDEX = FOLDER / "index.tsv"


@dataclass(frozen=True)
class Attack:
    """`rule` quotes the sentence of docs/format.md or docs/numerics.md that the file breaks, or the row of a limit."""

    name: str
    rule: str
    change: str
    make: Callable[[], bytes]
