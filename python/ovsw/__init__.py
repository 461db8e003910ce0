"""Binary neural networks on small machines: train with OvSW, export to `.bnn`, run with 1-bit kernels.

    from ovsw import Engine
    engine = Engine("resnet18.bnn")
    engine.classify("cat.jpg")

`Engine` needs numpy and Pillow only; `ovsw.nn` and `ovsw.export` need torch. Names are loaded on first use.
"""

from __future__ import annotations

from ovsw._version import __version__

TYPE_CHECKING = False  # type checkers know this name; importing typing would take longer than the rest of this file
if TYPE_CHECKING:
    from ovsw.engine import Engine, Profile, ProfileRow, Step
    from ovsw.metadata import FormatError

__all__ = ["Engine", "FormatError", "Profile", "ProfileRow", "Step", "__version__"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("ovsw.metadata" if name == "FormatError" else "ovsw.engine"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
