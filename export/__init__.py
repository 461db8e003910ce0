"""From a checkpoint to a `.bnn` file: load, trace, validate, fold, pack, write, one small module each.

from ovsw.export import export
report = export("ckpt.pth", "model.bnn")
"""

from ovsw.export.errors import ExportError, VerifyError
from ovsw.export.export import ExportOptions, Report, export

__all__ = ["ExportError", "ExportOptions", "Report", "VerifyError", "export"]
