"""ExecuTorch, which computes by XNNPACK: float32, and int8 by its quantiser (per channel, symmetric weights)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ovsw.bench.peers.base import Peer, Runner, calibration


class ExecuTorch(Peer):
    modules = ("executorch", "torch", "torchao", "onnx")
    quick = False  # ten seconds to get ready

    def files(self, network: str, batch: int, folder: Path) -> list[Path]:
        path = folder / f"{network}-{batch}.{self.precision}.pte"
        path.write_bytes(_program(super().files(network, batch, folder)[0], network, batch, self.precision == "int8"))
        return [path]

    def load(self, files: list[Path], threads: int) -> Runner:
        import torch
        from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
        from executorch.runtime import Runtime

        _unsafe_reset_threadpool(threads)
        data = files[0].read_bytes()
        program = Runtime.get().load_program(data)
        method = program.load_method("forward")

        def run(image: np.ndarray, keep: tuple[Any, ...] = (data, program)) -> np.ndarray:
            # The method needs both as long as it lives, and its answer lies in memory that the next call overwrites.
            return np.array(method.execute((torch.from_numpy(image),))[0].numpy())

        return run


def _program(model: Path, network: str, batch: int, int8: bool) -> bytes:
    import onnx
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from ovsw.bench.peers.torch import module_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [torch.from_numpy(image) for image in calibration(network, batch)]
        module = module_of(onnx.load(model))
        if int8:
            module = _quantized(torch.export.export(module, (data[0],)).module(), data)
        exported = torch.export.export(module, (data[0],))
        lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        return bytes(lowered.to_executorch().buffer)


def _quantized(module: Any, data: list[Any]) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    how = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(module, xnnpack_quantizer.XNNPACKQuantizer().set_global(how))
    for image in data:
        prepared(image)
    return convert_pt2e(prepared)


PEERS: list[Peer] = [ExecuTorch("executorch", "fp32"), ExecuTorch("executorch", "int8")]
