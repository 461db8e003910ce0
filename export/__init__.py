"""From a network to a `.bnn` file: source, graph, passes, proofs, file.

    from ovsw.export import export, export_module
    report = export("ckpt.pth", "model.bnn")
    report = export_module(model, torch.zeros(1, 3, 32, 32), "model.bnn")

Names are loaded on first use, so that `ovsw-export --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovsw.export.errors import ExportError, VerifyError
    from ovsw.export.frontend.layers import register_layer
    from ovsw.export.options import ExportOptions
    from ovsw.export.pipeline import Report, export, export_module, export_source
    from ovsw.export.source import Source

__all__ = [
    "ExportError",
    "ExportOptions",
    "Report",
    "Source",
    "VerifyError",
    "export",
    "export_module",
    "export_source",
    "register_layer",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {
        "ExportOptions": "options",
        "ExportError": "errors",
        "VerifyError": "errors",
        "register_layer": "frontend.layers",
    }
    return getattr(importlib.import_module(f"{__name__}.{homes.get(name, 'pipeline')}"), name)
