"""An ONNX file before it is written, evaluated by ONNX Runtime, or by onnx itself where that is not installed.

Rounding decides signs whose values are almost 0, and everything after a sign depends on it. So the file is also
computed in float64 by our own reader: without the evaluator's signs it must give what the network gives, and with them
what the evaluator gives. Where their signs differ, the values must be almost 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from ovsw.export.errors import VerifyError
from ovsw.export.frontend.onnx_file import Network
from ovsw.export.frontend.onnx_limits import Limits
from ovsw.util.text import first_line

_MOST_IMAGES = 2  # as each takes as long as two runs of the network
_TOLERANCE = 1e-4  # of float32: of the largest output, or of 1
_EQUAL = 1e-6  # the same of float64
_NEAR = 1e-5  # of a map's largest number: rounding may decide such a sign
_COMPARISONS = ("Greater", "GreaterOrEqual")


class OnnxCheck:
    """`data` is the file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        model = onnx.load_from_string(data)
        self.outputs = [value.name for value in model.graph.output]
        self.signs = [node.output[0] for node in model.graph.node if node.op_type in _COMPARISONS]
        with torch.no_grad():
            self.network = _Decided(Path("the ONNX file"), model, Limits.none())
        for name in self.signs:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None))
        self.evaluator, self.run = _evaluator(model)
        self.images = 0

    def compare(self, image: np.ndarray, expected: np.ndarray) -> None:
        """Compares what the file gives for an image (1, c, h, w) with all outputs. Raises VerifyError."""
        if self.images == _MOST_IMAGES:
            return
        self.images += 1
        try:
            results = self.run([*self.outputs, *self.signs], {"input": image})
        except Exception as e:  # whatever it raises for what it does not take
            raise VerifyError(f"{self.evaluator} cannot run the ONNX file: {first_line(e)}") from None
        decisions = dict(zip(self.signs, map(torch.from_numpy, results[len(self.outputs) :])))
        given = _flat(results[: len(self.outputs)])
        own, differ = self.network.decided(image, decisions)
        self._check(given, own, _TOLERANCE, f"in {self.evaluator} from what it says")
        plain = self.network.decided(image, {})[0] if differ else own
        self._check(plain, expected, _EQUAL, "from PyTorch")

    def _check(self, given: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
        error = np.inf
        if given.shape == expected.shape:
            error = np.abs(given - expected).max() / max(1.0, np.abs(expected).max())
        if not error <= tolerance:
            raise VerifyError(f"the ONNX file differs {what} by {error:.3g} of the largest output; nothing was written")


class _Decided(Network):
    """A file in float64 that takes the signs that another one has computed."""

    decisions: dict[str, Tensor]

    def decided(self, image: np.ndarray, decisions: dict[str, Tensor]) -> tuple[np.ndarray, bool]:
        """The outputs, and whether a sign is another one here."""
        self.decisions, self.differ = decisions, False
        with torch.no_grad():
            outputs = self(torch.from_numpy(image).double())
        return _flat([o.numpy() for o in (outputs if isinstance(outputs, tuple) else (outputs,))]), self.differ

    def _run(self, node: Any, values: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
        super()._run(node, values, dtype)
        name = node.outputs[0]
        if dtype is None or name not in self.decisions:
            return
        differ = values[name] != self.decisions[name]
        if bool(differ.any()):
            self.differ = True
            x, threshold = (values[source] for source in node.inputs)
            far = float((x - threshold).abs()[differ].max())
            if far > _NEAR * float(x.abs().max()):
                raise VerifyError(f"the ONNX file gives other signs: {name} is {far:.3g} from where they change")
            values[name] = self.decisions[name]


def _flat(outputs: Any) -> np.ndarray:
    return np.concatenate([np.asarray(o, np.float64).reshape(-1) for o in outputs])


def _evaluator(model: onnx.ModelProto) -> tuple[str, Any]:
    """The evaluator's name, and its function of names of outputs and of inputs."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return "onnx", ReferenceEvaluator(model).run
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # of its own types
        raise VerifyError(f"ONNX Runtime cannot load the ONNX file: {first_line(e)}") from None
    return "ONNX Runtime", session.run
