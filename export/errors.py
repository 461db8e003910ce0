"""What can go wrong with an export."""

from __future__ import annotations

from collections.abc import Sequence


class ExportError(ValueError):
    """The network or an option cannot be used. `problems` lists every fault, not only the first."""

    def __init__(self, summary: str, problems: Sequence[str] = ()) -> None:
        super().__init__("\n  ".join([summary, *problems]))
        self.summary, self.problems = summary, list(problems)


class NotIntegerError(ExportError):
    """The network cannot be computed in integers; the message names the first layer for which that is so."""


class VerifyError(RuntimeError):
    """The exported model does not compute what the network computes. Nothing was written."""
