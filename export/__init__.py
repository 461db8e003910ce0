"""From a checkpoint to a `.bnn` file: load, trace, validate, fold, pack, write, one small module each.

    from ovsw.export import export
    report = export("ckpt.pth", "model.bnn")

Names are loaded on first use, so that `ovsw-export --help` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovsw.export.errors import ExportError, VerifyError
    from ovsw.export.pipeline import ExportOptions, Report, export

__all__ = ["ExportError", "ExportOptions", "Report", "VerifyError", "export"]


def __getattr__(name: str) -> Any:
    if name in ("ExportError", "VerifyError"):
        from ovsw.export import errors as module
    elif name in __all__:
        from ovsw.export import pipeline as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
