"""ONNX Runtime: float32, and int8 by its own static quantisation (QDQ, u8 activations, s8 weights per channel).

All other peers are compared with its float32 answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner, calibration


class OnnxRuntime(Peer):
    modules = ("onnxruntime", "onnx")

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        (model,) = super().files(network, batch, folder)
        return [model if self.precision == "fp32" else _quantized(model, network, batch)]

    def load(self, files: list[Path], threads: int) -> Runner:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that wait for the next call must not take time from the engine whose turn it is. Between the ops of
        # one call spinning is this engine's best, so with several threads it only has to stop when the call ends.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(str(files[0]), options, providers=["CPUExecutionProvider"])
        return lambda image: session.run(None, {"input": image})[0]


def _quantized(model: Path, network: str, batch: int) -> Path:
    """s8 activations would be as slow as float32 on x86."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.images = iter(calibration(network, batch))

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {"input": image}

    target = model.with_suffix(".int8.onnx")
    kinds: dict[str, Any] = {
        "quant_format": quantization.QuantFormat.QDQ,
        "activation_type": quantization.QuantType.QUInt8,
        "weight_type": quantization.QuantType.QInt8,
    }
    quantization.quantize_static(str(model), str(target), Reader(), per_channel=True, **kinds)
    return target


PEERS: list[Peer] = [OnnxRuntime("onnxruntime", "fp32"), OnnxRuntime("onnxruntime", "int8")]
