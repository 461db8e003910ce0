"""Class names: from a file, or one of the lists that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BUILTIN = ("imagenet", "cifar10")
_DATA = Path(__file__).parent / "data"


def resolve_labels(value: Any, num_classes: int) -> list[str]:
    """The class names that a file's metadata gives, itself or as the name of a built-in list. Raises ValueError."""
    if isinstance(value, str) and value in BUILTIN:
        return load_labels(value, num_classes)
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise ValueError(f"metadata field labels is not a list of strings, nor one of {', '.join(BUILTIN)}")
    if value and len(value) != num_classes:
        raise ValueError(f"metadata has {len(value)} labels, the network {num_classes} classes")
    return value


def load_labels(source: str, count: int) -> list[str]:
    """The `count` names in a file (one per line) or a built-in list; "none" gives no names. Raises ValueError."""
    if source == "none":
        return []
    path = _DATA / f"{source}_labels.txt" if source in BUILTIN else Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{source}: no such file, nor one of {', '.join(BUILTIN)}, none")
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not a text file") from None
    while names and not names[-1].strip():
        names.pop()
    if len(names) != count:
        raise ValueError(f"{source}: has {len(names)} names, the network has {count} classes")
    return [name.strip() for name in names]
