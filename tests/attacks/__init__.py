"""Attack files: one small `.bnn` file for every rule that a reader checks, and what the readers say of each.

`container.py`, `graphs.py` and `integers.py` say what each file is: a valid base and one change. `index.tsv` names the
change, quotes the sentence of docs/format.md or docs/numerics.md that it breaks (or the row of a limit), and has the
messages, all by hand. `limits.py` has the valid files next to them, right at each limit.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
FILES = FOLDER / "files"
INDEX = FOLDER / "index.tsv"
