"""`python -m attacks` in tests/: writes the attack files and puts new ones into index.tsv.

What the index says of a new attack is `?` until somebody writes what it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ovsw import format as bnn

from attacks import FILES, INDEX, container, graphs, integers

COLUMNS = ("file", "rule", "change", "C++", "Python")
ATTACKS: dict[str, Callable[[], bytes]] = {
    **container.ATTACKS,
    **{name: partial(bnn.to_bytes, model) for name, model in graphs.ATTACKS.items()},
    **{f"integer-{name}": partial(bnn.to_bytes, model) for name, model in integers.ATTACKS.items()},
}


def main() -> None:
    known = {line.split("\t")[0]: line for line in INDEX.read_text().splitlines()[1:]}
    lines = ["\t".join(COLUMNS)]
    for name, make in ATTACKS.items():
        file = f"{name}.bnn"
        (FILES / file).write_bytes(make())
        lines.append(known.get(file, "\t".join((file, *"????"))))
    INDEX.write_text("\n".join(lines) + "\n")
    for path in FILES.iterdir():
        if path.stem not in ATTACKS:
            path.unlink()
    print(f"{len(ATTACKS)} files, {sum(path.stat().st_size for path in FILES.iterdir())} bytes")


if __name__ == "__main__":
    main()
