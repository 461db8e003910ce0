"""What a `.bnn` file says of itself, and the versions of the format that are known; nothing slow to import."""

from __future__ import annotations

import json
import warnings
from typing import Any

MAJOR, MINOR = 1, 2  # the newest that ovsw.format writes; a file that needs less says less
KEYS = frozenset({"producer", "arch", "num_classes", "preprocess", "labels", "source", "output"})  # of the metadata
MAX_DEPTH = 100  # of objects and lists in the metadata


class FormatError(ValueError):
    """A `.bnn` file that breaks a rule of docs/format.md; the message names the field."""


def warn_if_newer(name: object, version: tuple[int, int], metadata: dict[str, Any]) -> None:
    """Says that a file which could be read is of a newer minor version, and what in it is passed over."""
    if version > (MAJOR, MINOR):
        unknown = ", ".join(repr(key) for key in metadata if key not in KEYS)
        skipped = f"; what it says under {unknown} is not known and passed over" if unknown else ""
        words = f"is of format version {version[0]}.{version[1]}, newer than {MAJOR}.{MINOR}"
        warnings.warn(f"{name}: {words}, but has nothing that has to be known{skipped}", stacklevel=3)


def parse_metadata(text: bytes) -> dict[str, Any]:
    """A file's metadata, by the letter of RFC 8259, which Python's own reader does not keep to."""
    try:
        found = json.loads(text.decode(), parse_constant=_refuse, parse_int=_whole)
        _check_text(found, MAX_DEPTH)
    except (ValueError, RecursionError):
        raise FormatError("metadata is not JSON text in UTF-8") from None
    if not isinstance(found, dict):
        raise FormatError("metadata is not a JSON object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _whole(digits: str) -> int | float:
    """Python refuses to read whole numbers of more than some thousand digits; they are numbers all the same."""
    return int(digits) if len(digits) <= 1000 else float(digits)


def _check_text(value: Any, room: int) -> None:
    """Raises ValueError for half of a surrogate pair, and for what is deeper than `room`."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list)):
        if not room:
            raise ValueError
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_text(part, room - 1)
