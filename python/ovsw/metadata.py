"""The metadata of a `.bnn` file and the known versions of the format. Nothing here is slow to import."""

from __future__ import annotations

import json
import struct
import warnings
from typing import Any

MAJOR, MINOR = 1, 3  # the newest that ovsw.format writes; a file that needs less says less
KEYS = frozenset({"producer", "arch", "num_classes", "preprocess", "labels", "source", "output"})  # of the metadata
MAX_DEPTH = 100  # of objects and lists in the metadata


def file_version(data: bytes) -> tuple[int, int]:
    """Major and minor version of a file of at least 12 bytes."""
    return struct.unpack_from("<2H", data, 8)


class FormatError(ValueError):
    """A `.bnn` file that breaks a rule of docs/format.md; the message names the field."""


def warn_if_newer(name: object, version: tuple[int, int], metadata: dict[str, Any]) -> None:
    """Warns if a file has a newer minor version, and names the metadata that is ignored."""
    if version > (MAJOR, MINOR):
        unknown = ", ".join(repr(key) for key in metadata if key not in KEYS)
        skipped = f"; its metadata {unknown} is ignored" if unknown else ""
        newer = f"format version {version[0]}.{version[1]} is newer than {MAJOR}.{MINOR}"
        warnings.warn(f"{name}: {newer}, but the file uses nothing that is unknown here{skipped}", stacklevel=3)


def parse_metadata(text: bytes) -> dict[str, Any]:
    """A file's metadata. Follows RFC 8259 strictly, which Python's own reader does not."""
    try:
        metadata = json.loads(text.decode(), parse_constant=_refuse, parse_int=_whole)
        _check_text(metadata, MAX_DEPTH)
    except (ValueError, RecursionError):
        raise FormatError("metadata is not JSON text in UTF-8") from None
    if not isinstance(metadata, dict):
        raise FormatError("metadata is not a JSON object")
    return metadata


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _whole(digits: str) -> int | float:
    """Python refuses whole numbers of more than some thousand digits, which are valid JSON."""
    return int(digits) if len(digits) <= 1000 else float(digits)


def _check_text(value: Any, room: int) -> None:
    """Raises ValueError for half of a surrogate pair, and for nesting deeper than `room`."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list)):
        if not room:
            raise ValueError
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_text(part, room - 1)
