"""Step 6, write: the file appears under its name whole, or not at all."""

from __future__ import annotations

from pathlib import Path

from ovsw import format as bnn
from ovsw.export.errors import ExportError


def check_target(source: Path, target: Path, force: bool) -> None:
    """Refuses an output that cannot or must not be written, before any work is done."""
    if not target.parent.is_dir():
        raise ExportError(f"{target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise ExportError(f"{target}: is a folder")
    if target.exists() and source.exists() and target.samefile(source):
        raise ExportError(f"{target}: is the checkpoint itself")
    if target.exists() and not force:
        raise ExportError(f"{target}: exists already; --force overwrites it")


def write(data: bytes, target: Path) -> None:
    try:
        bnn.replace_file(target, data)
    except OSError as e:
        raise ExportError(f"{target}: cannot be written: {e.strerror or e}") from None
