"""Types for signatures in the modules of ops: at run time these imports would be circular, or would need torch."""

from __future__ import annotations

from torch import Tensor

from ovsw import format as bnn
from ovsw.export.onnx_out import Writer
from ovsw.export.ops.affine import Affine
from ovsw.export.ops.fused import Fused, Lowered, Tensors
from ovsw.export.passes.fold import Folding
from ovsw.export.passes.quantize import Quantizer
from ovsw.export.passes.sink import Sinking

__all__ = ["Affine", "Folding", "Fused", "Lowered", "Quantizer", "Sinking", "Tensor", "Tensors", "Writer", "bnn"]
