"""What `ovsw-bench families`, `micro` and `training` share: their options and how they print rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ovsw.commands.base import whole
from ovsw.util.text import table


def add_options(p: argparse.ArgumentParser, default: Sequence[str], rounds: int, known: Sequence[str] = ()) -> None:
    """NET ..., --rounds and --json."""
    names = f"of {', '.join(known)}" if known else "networks"
    p.add_argument(
        "networks", metavar="NET", nargs="*", default=list(default), help=f"{names} (default: {', '.join(default)})"
    )
    p.add_argument(
        "--rounds", metavar="N", type=whole(1), default=rounds, help="interleaved rounds (default: %(default)s)"
    )
    p.add_argument("--json", action="store_true", help="print the rows as JSON")


def print_rows(
    as_json: bool, rows: Sequence[Any], note: str, head: Sequence[str], cells: Sequence[Sequence[str]], right: Any
) -> int:
    """Prints dataclasses as JSON, or else a note and a table of their cells."""
    print(json.dumps(list(map(asdict, rows)), indent=2) if as_json else f"{note}\n\n{table(head, cells, right)}")
    return 0
