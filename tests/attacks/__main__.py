"""`python -m attacks` in tests/: writes the attack files and brings index.tsv up to date.

Messages stay as they are in the index; those of a new attack are `?` until somebody writes what they must be.
"""

from __future__ import annotations

from attacks import FILES, INDEX, container, graphs, integers

COLUMNS = ("file", "rule", "change", "C++", "Python")
ATTACKS = [*container.ATTACKS, *graphs.ATTACKS, *integers.ATTACKS]


def main() -> None:
    known = {}
    if INDEX.exists():
        known = {line.split("\t")[0]: line.split("\t")[3:] for line in INDEX.read_text().splitlines()[1:]}
    FILES.mkdir(exist_ok=True)
    lines = ["\t".join(COLUMNS)]
    for attack in ATTACKS:
        name = f"{attack.name}.bnn"
        (FILES / name).write_bytes(attack.make())
        lines.append("\t".join((name, attack.rule, attack.change, *known.get(name, ("?", "?")))))
    INDEX.write_text("\n".join(lines) + "\n")
    for path in FILES.iterdir():
        if path.stem not in {attack.name for attack in ATTACKS}:
            path.unlink()
    print(f"{len(ATTACKS)} files, {sum(path.stat().st_size for path in FILES.iterdir())} bytes")


if __name__ == "__main__":
    main()
