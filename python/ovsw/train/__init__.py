"""Training with OvSW: the method as a plug-in for any loop, and a trainer with the paper's recipes.

from ovsw.train import OvSW, Deployed, freeze
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovsw.train.deployed import Deployed, freeze
    from ovsw.train.method import OvSW

__all__ = ["Deployed", "OvSW", "freeze"]
_HOMES = {"Deployed": "deployed", "OvSW": "method", "freeze": "deployed"}


def __getattr__(name: str) -> Any:
    """Loads torch on first use, so that `ovsw-train --help` and `--list` do not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
