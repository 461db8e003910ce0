"""Training with OvSW: the method as a plug-in for any loop, and a trainer with the paper's recipes.

from ovsw.train import OvSW
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovsw.train.method import OvSW

__all__ = ["OvSW"]


def __getattr__(name: str) -> Any:
    """Loads torch on first use, so that `ovsw-train --help` and `--list` do not wait for it."""
    if name == "OvSW":
        from ovsw.train.method import OvSW

        return OvSW
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
