"""Class names: from a file, or one of the lists that come with the package."""

from __future__ import annotations

from pathlib import Path

BUILTIN = ("imagenet", "cifar10")
_DATA = Path(__file__).parent / "data"


def load_labels(source: str, count: int) -> list[str]:
    """The `count` names in a file (one per line) or a built-in list; "none" gives no names. Raises ValueError."""
    if source == "none":
        return []
    path = _DATA / f"{source}_labels.txt" if source in BUILTIN else Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{source}: no such file and not a built-in list ({', '.join(BUILTIN)}, none)")
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not a text file") from None
    while names and not names[-1].strip():
        names.pop()
    if len(names) != count:
        raise ValueError(f"{source}: has {len(names)} names, the network has {count} classes")
    return [name.strip() for name in names]
